import { describe, expect, it } from "vitest";
import { Backoff } from "../src/backoff";
import { chosen, type Inspected, names } from "../src/chosen";
import { label, tooltip } from "../src/figures";

describe("back-off", () => {
  it("doubles up to half a minute, and begins anew after a steady run", () => {
    const backoff = new Backoff();
    const waits = Array.from({ length: 8 }, () => backoff.after(100));
    expect(waits).toEqual([500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
    expect(backoff.after(3_600_000)).toBe(500);
    expect(backoff.after(100)).toBe(1000);
    backoff.reset();
    expect(backoff.after(0)).toBe(500);
  });
});

describe("chosen settings", () => {
  const keys = ["model.name", "completion.lines", "server.disabled_languages", "engine.threads"];
  const restricted = new Set(["model.name", "engine.threads"]);
  const known: Record<string, Inspected> = {
    "model.name": { globalValue: "mine", workspaceValue: "/evil" },
    "completion.lines": { globalValue: "single", workspaceValue: "multi", workspaceFolderValue: "auto" },
    "engine.threads": { workspaceValue: 4 },
    "server.disabled_languages": {},
  };
  const found = chosen(keys, restricted, (key) => known[key]);

  it("are those that somebody set, the nearest place first", () => {
    expect(found["completion"]).toEqual({ lines: "auto" });
  });

  it("are a list where one is wanted, whatever was written", () => {
    for (const value of [undefined, null, 5, "python", {}, [5, null]]) {
      expect(names(value)).toEqual([]);
    }
    expect(names(["python", 5, "c"])).toEqual(["python", "c"]);
  });

  it("are not taken from a workspace where they name things, trusted or not", () => {
    expect(found).toEqual({ model: { name: "mine" }, completion: { lines: "auto" } });
  });

  it("may be false, zero or empty", () => {
    const values: Record<string, Inspected> = {
      "a.b": { globalValue: false },
      "a.c": { globalValue: 0 },
      "a.d": { globalValue: "" },
      "a.e": { globalValue: null },
    };
    const found = chosen(Object.keys(values), new Set(), (key) => values[key]);
    expect(found).toEqual({ a: { b: false, c: 0, d: "" } });
  });
});

describe("the status bar", () => {
  it("says what the engine does", () => {
    expect(label(undefined, false)).toContain("spin");
    expect(label({ state: "loading", text: "Loading x", percentage: 40 }, false)).toContain("40 %");
    expect(label({ state: "ready", text: "x", percentage: 100 }, false)).not.toContain("spin");
    expect(label({ state: "failed", text: "no", percentage: 0 }, false)).toContain("error");
    expect(label({ state: "ready", text: "x", percentage: 100 }, true)).toContain("off");
  });

  it("has the figures that there are", () => {
    const ready = { state: "ready", text: "small", percentage: 100 } as const;
    const figures = {
      first_token_ms_p50: 12.4,
      tokens_per_second: 71.2,
      draft_tokens_checked: 200,
      draft_tokens_accepted: 150,
    };
    const text = tooltip(ready, figures, "");
    for (const part of ["small", "12 ms", "71", "75 %"]) {
      expect(text).toContain(part);
    }
    expect(tooltip(ready, {}, "")).toBe("completion-ls: **small**");
    expect(tooltip({ state: "failed", text: "No card.", percentage: 0 }, figures, "")).toBe("No card.");
    expect(tooltip(ready, figures, "for python")).toContain("off for python");
  });
});
