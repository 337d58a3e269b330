// @ts-check
/** How full the context was: tokens over time against the limit. */

import { Chart } from "./chart.js";
import { el } from "./dom.js";
import { clockText, exactTime, grouped, percent } from "./format.js";

/** @typedef {import("./api.js").Point} Point */

/** @type {import("./chart.js").Subject<Point>} */
const SUBJECT = {
  id: "chart",
  curves: [
    { of: "total_tokens", kind: "total", word: "in context" },
    { of: "main_thread_tokens", kind: "main", word: "main thread" },
  ],
  area: ["total_tokens", null],
  limit: "limit",
  place: (point) => Date.parse(point.at),
  ends,
  sentence,
  closer: (point) =>
    `${exactTime(point.at)}: ${grouped(point.total_tokens)} in context, ` +
    `${grouped(point.main_thread_tokens)} main thread`,
  tableName: "Tokens over time",
  tableOpener: "Show as a table",
  head: ["When", "In context", "Main thread", "Of the limit"],
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

  /** @param {Point[]} points oldest first @param {number} limit */
  show(points, limit) {
    this.#chart.show(points, limit);
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
    `Now ${grouped(last.total_tokens)} tokens in context, ` +
    `${grouped(last.main_thread_tokens)} of them on the main thread; ` +
    `at most ${grouped(peak)}, ${percent(peak / limit)} of the limit of ${grouped(limit)}.`
  );
}
