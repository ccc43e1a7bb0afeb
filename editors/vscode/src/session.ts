/** One suggestion that is streamed, and what of it may be shown where. No VS Code in here. */

export interface Place {
  readonly line: number;
  readonly character: number;
}

/** What a request for a suggestion is about. Two equal ones get the same suggestion. */
export interface Asked {
  readonly uri: string;
  readonly version: number;
  readonly place: Place;
  /** The item that is selected in the suggest widget, as text; empty without one. */
  readonly selected: string;
  /** The user asked for it: then there may be several items. */
  readonly byHand: boolean;
}

/** Whether both are about the same place, whoever asked. */
export function samePlace(one: Asked, other: Asked): boolean {
  return (
    one.uri === other.uri &&
    one.version === other.version &&
    one.place.line === other.place.line &&
    one.place.character === other.place.character &&
    one.selected === other.selected
  );
}

/** An item as the server sends it. */
export interface Item {
  readonly insertText: string;
  readonly range?: { readonly start: Place; readonly end: Place };
  /** What other editors run when it was accepted; for us its argument is the item's id. */
  readonly command?: { readonly arguments?: readonly unknown[] };
}

/** The server's notification; `items` holds the whole text so far. */
export interface Partial {
  readonly streamId: string;
  readonly seq: number;
  readonly items: readonly Item[];
  readonly done: boolean;
}

export class Session {
  items: readonly Item[] = [];
  /** No more text will come. */
  ended = false;
  /** Nothing of it may be shown any more: Escape, or it was accepted. */
  dismissed = false;
  private readonly first: Promise<void>;
  private arrived!: () => void;

  constructor(
    readonly id: string,
    readonly asked: Asked,
  ) {
    this.first = new Promise((resolve) => (this.arrived = resolve));
  }

  /** Take a part; true where there is more to show than before. */
  grow(part: Partial): boolean {
    if (part.streamId !== this.id || this.ended || this.dismissed) {
      return false;
    }
    const before = this.items;
    this.items = part.items;
    if (part.items.length > 0) {
      this.arrived();
    }
    return !sameItems(before, part.items);
  }

  /** The response came, or there will be none. True where it has more to show than the parts had. */
  end(items: readonly Item[] = this.items): boolean {
    const before = this.items;
    if (!this.dismissed) {
      this.items = items;
    }
    this.ended = true;
    this.arrived();
    return !this.dismissed && !sameItems(before, this.items);
  }

  dismiss(): void {
    this.dismissed = true;
    this.items = [];
    this.arrived();
  }

  /** Whether it answers another request as well. One that ended without any text does not: why there was
   * none may be over. One that was dismissed does, with nothing, until the user asks. */
  serves(asked: Asked): boolean {
    if (this.dismissed) {
      return samePlace(this.asked, asked) && !asked.byHand;
    }
    const isEmpty = this.ended && this.items.length === 0;
    return !isEmpty && samePlace(this.asked, asked) && (this.asked.byHand || !asked.byHand);
  }

  /** Resolves with the first text, the end, or the dismissal. */
  hasSomething(): Promise<void> {
    return this.first;
  }
}

function sameItems(one: readonly Item[], other: readonly Item[]): boolean {
  return (
    one.length === other.length &&
    one.every((item, index) => item.insertText === other[index]?.insertText)
  );
}
