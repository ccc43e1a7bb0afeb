/** How long to wait before a server that ended is started again. */

const FIRST_MS = 500;
const LAST_MS = 30_000;
/** A server that ran so long had not just crashed at its start. */
const STEADY_MS = 60_000;

export class Backoff {
  private next = FIRST_MS;

  /** Milliseconds to wait, where the server had run for so many. */
  after(ranMs: number): number {
    if (ranMs >= STEADY_MS) {
      this.reset();
    }
    const wait = this.next;
    this.next = Math.min(2 * this.next, LAST_MS);
    return wait;
  }

  reset(): void {
    this.next = FIRST_MS;
  }
}
