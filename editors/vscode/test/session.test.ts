import { describe, expect, it } from "vitest";
import { type Asked, type Item, Session, samePlace } from "../src/session";

const asked: Asked = {
  uri: "file:///a.py",
  version: 3,
  place: { line: 1, character: 4 },
  selected: "",
  byHand: false,
};
const items = (...texts: string[]): Item[] => texts.map((insertText) => ({ insertText }));
const part = (streamId: string, seq: number, ...texts: string[]) => ({
  streamId,
  seq,
  items: items(...texts),
  done: false,
});

describe("a session", () => {
  it("grows with its own parts and says when there is more to show", async () => {
    const session = new Session("7", asked);
    expect(session.grow(part("7", 0, "ret"))).toBe(true);
    await session.hasSomething();
    expect(session.grow(part("7", 1, "ret"))).toBe(false);
    expect(session.grow(part("6", 2, "return a"))).toBe(false);
    expect(session.grow(part("7", 2, "return a"))).toBe(true);
    expect(session.items).toEqual(items("return a"));
  });

  it("ends with the response, which may have more", () => {
    const session = new Session("7", asked);
    session.grow(part("7", 0, "ret"));
    expect(session.end(items("return", "raise"))).toBe(true);
    expect(session.items).toEqual(items("return", "raise"));
    expect(session.grow(part("7", 1, "return a"))).toBe(false);
  });

  it("keeps what is shown where no response comes", async () => {
    const session = new Session("7", asked);
    session.grow(part("7", 0, "ret"));
    expect(session.end()).toBe(false);
    expect(session.items).toEqual(items("ret"));
    const empty = new Session("8", asked);
    empty.end();
    await empty.hasSomething();
    expect(empty.items).toEqual([]);
  });

  it("waits for text, not for a part without any", async () => {
    const session = new Session("7", asked);
    let has = false;
    void session.hasSomething().then(() => (has = true));
    session.grow(part("7", 0));
    await Promise.resolve();
    expect(has).toBe(false);
    session.grow(part("7", 1, "x"));
    await session.hasSomething();
  });

  it("shows nothing any more once it was dismissed", async () => {
    const session = new Session("7", asked);
    session.grow(part("7", 0, "ret"));
    session.dismiss();
    await session.hasSomething();
    expect(session.grow(part("7", 1, "return"))).toBe(false);
    expect(session.end(items("return a"))).toBe(false);
    expect(session.items).toEqual([]);
  });

  it("answers with nothing where it was dismissed, unless the user asks", () => {
    const byHand = { ...asked, byHand: true };
    for (const first of [asked, byHand]) {
      const session = new Session("7", first);
      session.grow(part("7", 0, "ret"));
      session.dismiss();
      session.end([]);
      expect(session.serves(asked)).toBe(true);
      expect(session.serves(byHand)).toBe(false);
      expect(session.serves({ ...asked, version: 4 })).toBe(false);
    }
  });

  it("serves whoever asks for no more than it was asked for", () => {
    const byHand = { ...asked, byHand: true };
    expect(new Session("7", asked).serves(asked)).toBe(true);
    expect(new Session("7", asked).serves(byHand)).toBe(false);
    expect(new Session("7", byHand).serves(asked)).toBe(true);
    expect(new Session("7", byHand).serves({ ...byHand, version: 4 })).toBe(false);
  });

  it("is not asked again where it ended without text", () => {
    const session = new Session("7", asked);
    session.end([]);
    expect(session.serves(asked)).toBe(false);
    const full = new Session("8", asked);
    full.end(items("return"));
    expect(full.serves(asked)).toBe(true);
  });
});

it("is about one place of one version, with one item selected", () => {
  expect(samePlace(asked, { ...asked, place: { line: 1, character: 4 } })).toBe(true);
  for (const other of [
    { uri: "file:///b.py" },
    { version: 4 },
    { place: { line: 2, character: 4 } },
    { place: { line: 1, character: 5 } },
    { selected: "return" },
  ]) {
    expect(samePlace(asked, { ...asked, ...other })).toBe(false);
  }
});
