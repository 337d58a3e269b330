// @ts-check
/** The chart of tokens over time against the limit. */

import { Chart } from "./chart.js";
import { el, setText } from "./dom.js";
import { clockText, exactTime, grouped, percent } from "./format.js";

/** @typedef {import("./api.js").Point} Point */

const MEASURED = "in context";
const ESTIMATED = "if folded";

/** @type {import("./chart.js").Subject<Point>} */
const SUBJECT = {
  id: "chart",
  curves: [
    { of: "total_tokens", kind: "total", word: MEASURED },
    { of: "main_thread_tokens", kind: "main", word: "main thread" },
  ],
  area: ["total_tokens", null],
  limit: "limit",
  position: (point) => Date.parse(point.at),
  ends,
  sentence,
  details: (point) =>
    `${exactTime(point.at)}: ${grouped(point.total_tokens)} in all, ` +
    `${grouped(point.main_thread_tokens)} on the main thread`,
  tableName: "Tokens over time",
  tableOpener: "Show as a table",
  head: ["When", "In all", "Main thread", "Of the limit"],
  cells: (point, limit) => [
    exactTime(point.at),
    grouped(point.total_tokens),
    grouped(point.main_thread_tokens),
    percent(point.total_tokens / limit),
  ],
};

export class Timeline {
  #chart = new Chart(SUBJECT);
  element = el(
    "section",
    { class: "card chart-card", "aria-label": "Tokens over time" },
    el("div", { class: "card-head" }, el("h2", {}, "Tokens over time"), this.#chart.legend),
    this.#chart.element,
  );

  /** @param {Point[]} points oldest first @param {number} limit @param {boolean} isMeasured by the proxy */
  show(points, limit, isMeasured) {
    this.#chart.show(points, limit);
    const name = this.#chart.legend.querySelector(".key-total");
    if (name) setText(name, isMeasured ? MEASURED : ESTIMATED);
  }

  stop() {
    this.#chart.stop();
  }
}

/** @param {Point[]} points @returns {[string, string]} */
function ends(points) {
  const [from, to] = [points[0], points[points.length - 1]].map((point) => Date.parse(point.at));
  return [clockText(from, to - from), clockText(to, to - from)];
}

/** @param {Point[]} points @param {number} limit */
function sentence(points, limit) {
  const last = points[points.length - 1];
  const peak = Math.max(...points.map((point) => point.total_tokens));
  return (
    `Now ${grouped(last.total_tokens)} tokens, ` +
    `${grouped(last.main_thread_tokens)} of them on the main thread; ` +
    `at most ${grouped(peak)}, ${percent(peak / limit)} of the limit of ${grouped(limit)}.`
  );
}
