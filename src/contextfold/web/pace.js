// @ts-check
/**
 * Runs work that many events request: once for all of them, and not more often than its interval. Work that fails is
 * tried again at growing intervals.
 */

// The wait after a first failure; it doubles with every further one.
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 10_000;

export class Pace {
  #timer = 0;
  #lastMs = -Infinity;
  // Failures in a row.
  #failures = 0;
  #isRunning = false;
  #isWanted = false;
  #isStopped = false;

  /**
   * @param {import("./app.js").Page} page  learns when work begins to fail and when it succeeds again
   * @param {string} part  of the view that the work brings up to date
   * @param {number} intervalMs
   * @param {() => Promise<void>} work  rejects if it must be tried again
   */
  constructor(page, part, intervalMs, work) {
    this.page = page;
    this.part = part;
    this.intervalMs = intervalMs;
    this.work = work;
  }

  /** Request the work. */
  mark() {
    this.#isWanted = true;
    if (this.#isStopped || this.#isRunning || this.#timer) return;
    const wait = Math.max(0, this.#lastMs + this.#waitMs - performance.now());
    this.#timer = setTimeout(() => this.#run(), wait);
  }

  /** Request the work without waiting for the next try: the daemon answers again. */
  resume() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (this.#failures) this.#lastMs = -Infinity;
    this.mark();
  }

  stop() {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    if (this.#failures) this.page.behind(this.part, false);
  }

  get #waitMs() {
    if (!this.#failures) return this.intervalMs;
    return Math.max(this.intervalMs, Math.min(FIRST_WAIT_MS * 2 ** (this.#failures - 1), LONGEST_WAIT_MS));
  }

  async #run() {
    this.#timer = 0;
    // Everything is read again when the tab becomes visible.
    if (document.hidden) return;
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
    if (wasBehind === isDone) this.page.behind(this.part, !isDone);
    if (this.#isWanted || !isDone) this.mark();
  }
}
