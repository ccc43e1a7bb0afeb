/** The life of something that runs: started, started again when it ended by itself, stopped. One at a
 * time, whoever asks for what and when. No VS Code in here. */

import { Backoff } from "./backoff";

/** One that has not answered for so long will not. */
const STARTING_MS = 60_000;

export interface Running {
  /** Resolves when it answers; rejects where it will not. */
  readonly ready: Promise<void>;
  /** End it; it may be called at any time. */
  stop(): Promise<void>;
}

/** Begins one, and calls `ended` when that ended by itself after it was ready. */
export type Begin<R extends Running> = (ended: () => void) => R;

export interface Witness<R extends Running> {
  /** One is begun, and does not answer yet. */
  begun(): void;
  answers(one: R): void;
  /** One that answered is gone, or is about to be stopped. */
  gone(): void;
  /** One ended by itself, or did not start: `why` goes on from its name. The next begins after `waitMs`. */
  lost(why: string, waitMs: number): void;
}

export class Life<R extends Running> {
  private wanted: Begin<R> | undefined;
  private one: R | undefined;
  private isAnswering = false;
  private startedAt = 0;
  private again: ReturnType<typeof setTimeout> | undefined;
  private readonly backoff = new Backoff();
  /** Starts and stops happen one after the other. */
  private queue: Promise<void> = Promise.resolve();
  /** Wait no longer for one that does not answer. */
  private cutShort: () => void = () => undefined;

  constructor(private readonly witness: Witness<R>) {}

  /** The one that answers. */
  get active(): R | undefined {
    return this.isAnswering ? this.one : undefined;
  }

  /** Start one, in place of any other. */
  start(begin: Begin<R>): Promise<void> {
    this.wanted = begin;
    this.backoff.reset();
    this.cutShort();
    return this.inTurn(async () => {
      if (this.wanted !== begin) {
        return; // a later turn starts or stops
      }
      await this.end();
      await this.begin();
    });
  }

  /** Stop it. Nothing runs when this has resolved. */
  stop(): Promise<void> {
    this.wanted = undefined;
    this.cutShort();
    return this.inTurn(() => this.end());
  }

  private inTurn(work: () => Promise<void>): Promise<void> {
    this.queue = this.queue.then(work, work);
    return this.queue;
  }

  private async begin(): Promise<void> {
    const wanted = this.wanted;
    if (!wanted || this.one) {
      return;
    }
    this.startedAt = Date.now();
    this.witness.begun();
    try {
      const one = wanted(() => {
        if (this.one === one && this.isAnswering) {
          this.lost("ended.");
        }
      });
      this.one = one;
      const cut = new Promise<void>((resolve) => (this.cutShort = resolve));
      await inTime(Promise.race([one.ready, cut]));
      if (this.wanted === wanted) {
        this.isAnswering = true;
        this.witness.answers(one);
      }
    } catch (error) {
      // Where something else is wanted by now, that follows at once.
      if (this.wanted === wanted) {
        this.lost(`could not be started: ${String(error)}.`);
      }
    }
  }

  private lost(why: string): void {
    const one = this.one;
    const ranMs = this.isAnswering ? Date.now() - this.startedAt : 0;
    this.release();
    one?.stop().catch(() => undefined);
    const wait = this.backoff.after(ranMs);
    this.again = setTimeout(() => void this.inTurn(() => this.begin()), wait);
    this.witness.lost(why, wait);
  }

  private async end(): Promise<void> {
    clearTimeout(this.again);
    const one = this.one;
    this.release();
    await one?.stop().catch(() => undefined);
  }

  private release(): void {
    const answered = this.isAnswering;
    this.one = undefined;
    this.isAnswering = false;
    if (answered) {
      this.witness.gone();
    }
  }
}

async function inTime(started: Promise<void>): Promise<void> {
  let late: ReturnType<typeof setTimeout> | undefined;
  const limit = new Promise<never>((_, reject) => {
    const why = new Error(`there was no answer in ${STARTING_MS / 1000} s`);
    late = setTimeout(() => reject(why), STARTING_MS);
  });
  try {
    await Promise.race([started, limit]);
  } finally {
    clearTimeout(late);
  }
}
