import { describe, expect, it } from "vitest";
import { tooltip } from "../src/figures";
import { idOf, size, takenPart } from "../src/taken";

const item = { insertText: "width * (w)\r\n    print(w)" };

describe("what a change takes of an item", () => {
  it.each([
    ["", "width", "acceptWord"],
    ["width", " *", "acceptWord"],
    ["", "width * (w)\r\n", "acceptLine"],
    ["width", " * (w)\r\n", "acceptLine"],
  ])("is a part: %j then %j", (typed, inserted, action) => {
    expect(takenPart(item, typed, inserted, "")).toBe(action);
  });

  it.each([
    ["", "w"], // a key
    ["width ", "* "].reverse() as [string, string], // another text
    ["width * ", "()"], // a pair that the editor closes
    ["width * (w)", "\r\n    "], // Enter
    ["width * (w)\r\n", "    print(w)"], // the rest: a command tells of that
    ["", "widths"],
    ["", ""],
  ])("is none: %j then %j", (typed, inserted) => {
    expect(takenPart(item, typed, inserted, "")).toBeUndefined();
  });

  it("is none where the suggest widget puts it in", () => {
    expect(takenPart(item, "wi", "dth", "width")).toBeUndefined();
    expect(takenPart(item, "width", " *", "width")).toBe("acceptWord");
  });
});

it("has the id of a command, whatever a server sends", () => {
  expect(idOf({ ...item, command: { arguments: ["a.0", 1] } })).toBe("a.0");
  for (const command of [undefined, {}, { arguments: [] }, { arguments: [5] }]) {
    expect(idOf({ ...item, ...(command && { command }) })).toBeUndefined();
  }
});

it("counts code points and line ends", () => {
  expect(size("a\r\n🥸")).toBe(3);
});

it("tells of the counts in the tooltip", () => {
  const state = { state: "ready", text: "model", percentage: 100 } as const;
  const suggestions = {
    shown: 40,
    accepted: 12,
    characters_judged_after_5_min: 200,
    characters_kept_after_5_min: 150,
  };
  expect(tooltip(state, { suggestions }, "")).toBe(
    "completion-ls: **model**\n\nSuggestions accepted: 12 of 40\n\nAccepted text kept after 5 minutes: 75 %",
  );
  expect(tooltip(state, { suggestions: { shown: 0 } }, "")).toBe("completion-ls: **model**");
});
