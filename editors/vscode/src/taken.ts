/** What of an item a change of the document takes, and what the server is told of it. No VS Code in here. */

import type { Item } from "./session";

export type Action = "accept" | "acceptWord" | "acceptLine" | "reject";

/** Pairs that the editor closes when the first of both is typed. */
const PAIRS = new Set(["()", "[]", "{}", "<>", '""', "''", "``"]);

/** The item's id for the server: the argument of its command. */
export function idOf(item: Item): string | undefined {
  const id = item.command?.arguments?.[0];
  return typeof id === "string" ? id : undefined;
}

/** Code points, a line end counts as one. */
export function size(text: string): number {
  return [...text.replace(/\r\n?/g, "\n")].length;
}

/** Whether a text that went in at once is a word or a line of an item, behind `typed`. VS Code tells of all
 * of an item, but not of a part. What a single key can do is not taken for one: a character, a pair, or
 * white space, as Enter makes it. `selected` is what the suggest widget would have put in. */
export function takenPart(
  item: Item,
  typed: string,
  inserted: string,
  selected: string,
): "acceptWord" | "acceptLine" | undefined {
  const text = item.insertText;
  const isPart = text.startsWith(typed + inserted) && typed.length + inserted.length < text.length;
  if (!isPart || size(inserted) < 2 || PAIRS.has(inserted) || inserted.trim() === "") {
    return undefined;
  }
  if (selected.length > typed.length && selected.startsWith(typed + inserted)) {
    return undefined;
  }
  return /[\r\n]$/.test(inserted) ? "acceptLine" : "acceptWord";
}
