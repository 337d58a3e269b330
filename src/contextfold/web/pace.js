// @ts-check
/** Work that many events ask for and that is done once for all of them, no more often than its interval. */

export class Pace {
  #timer = 0;
  #lastMs = -Infinity;
  #isRunning = false;
  #isWanted = false;
  #isStopped = false;

  /** @param {() => Promise<void>} work @param {number} intervalMs */
  constructor(work, intervalMs) {
    this.work = work;
    this.intervalMs = intervalMs;
  }

  /** Something changed: do the work soon. */
  mark() {
    this.#isWanted = true;
    if (this.#isStopped || this.#isRunning || this.#timer) return;
    const wait = Math.max(0, this.#lastMs + this.intervalMs - performance.now());
    this.#timer = setTimeout(() => this.#run(), wait);
  }

  stop() {
    this.#isStopped = true;
    clearTimeout(this.#timer);
  }

  async #run() {
    this.#timer = 0;
    this.#isWanted = false;
    this.#isRunning = true;
    this.#lastMs = performance.now();
    try {
      await this.work();
    } finally {
      this.#isRunning = false;
      if (this.#isWanted) this.mark();
    }
  }
}
