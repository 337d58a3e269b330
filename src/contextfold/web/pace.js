// @ts-check
/**
 * Work that many events ask for and that is done once for all of them, no more often than its interval. Work that
 * fails is tried again, less and less often. Knows nothing of what the work is.
 */

const FIRST_WAIT_MS = 1000; // after a failure
const LONGEST_WAIT_MS = 10_000;

export class Pace {
  #timer = 0;
  #lastMs = -Infinity;
  #failures = 0; // in a row
  #isRunning = false;
  #isWanted = false;
  #isStopped = false;

  /**
   * @param {() => Promise<void>} work  rejects when it is to be tried again
   * @param {number} intervalMs
   * @param {(isBehind: boolean) => void} onBehind  told when work begins to fail and when that is over
   */
  constructor(work, intervalMs, onBehind) {
    this.work = work;
    this.intervalMs = intervalMs;
    this.onBehind = onBehind;
  }

  /** Something changed: do the work soon. */
  mark() {
    this.#isWanted = true;
    if (this.#isStopped || this.#isRunning || this.#timer) return;
    const wait = Math.max(0, this.#lastMs + this.#waitMs - performance.now());
    this.#timer = setTimeout(() => this.#run(), wait);
  }

  /** The daemon is heard again: do the work soon, however long it was to wait for its next try. */
  resume() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (this.#failures) this.#lastMs = -Infinity;
    this.mark();
  }

  stop() {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    if (this.#failures) this.onBehind(false);
  }

  get #waitMs() {
    if (!this.#failures) return this.intervalMs;
    return Math.max(this.intervalMs, Math.min(FIRST_WAIT_MS * 2 ** (this.#failures - 1), LONGEST_WAIT_MS));
  }

  async #run() {
    this.#timer = 0;
    if (document.hidden) return; // who looks again is shown everything afresh
    this.#isWanted = false;
    this.#isRunning = true;
    this.#lastMs = performance.now();
    let isDone = true;
    try {
      await this.work();
    } catch (error) {
      console.warn(error);
      isDone = false;
    }
    this.#isRunning = false;
    if (!this.#isStopped) this.#ended(isDone);
  }

  /** @param {boolean} isDone */
  #ended(isDone) {
    const wasBehind = this.#failures > 0;
    this.#failures = isDone ? 0 : this.#failures + 1;
    if (wasBehind === isDone) this.onBehind(!isDone);
    if (this.#isWanted || !isDone) this.mark();
  }
}
