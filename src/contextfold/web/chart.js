// @ts-check
/**
 * Tokens over time against the limit: a drawing, a sentence that says the same, and a table on demand.
 * Knows points and pixels, not where the points come from.
 */

import { el, fill, setText, svg } from "./dom.js";
import { clockText, exactTime, grouped, percent } from "./format.js";

const HEIGHT = 170;
const EDGE = { top: 14, right: 10, bottom: 22, left: 54 };
const MOST_POINTS = 240;
const TICKS = 4;

/** @typedef {import("./api.js").Point} Point */

export class Chart {
  /** @type {Point[]} */
  #points = [];
  #limit = 1;
  #width = 0;
  #summary = el("p", { id: "chart-summary" });
  #readout = el("p", { class: "readout number" }); // stands in for the summary while one looks closer
  #grid = svg("g", { class: "grid" });
  #area = svg("path", { class: "area" });
  #total = svg("path", { class: "line total" });
  #main = svg("path", { class: "line main" });
  #limitLine = svg("line", { class: "limit" });
  #limitText = svg("text", { class: "limit-text" });
  #dots = svg("g", { class: "dots" });
  #cross = svg("line", { class: "cross" });
  #drawing = svg(
    "svg",
    { class: "chart", height: HEIGHT, role: "img", "aria-labelledby": "chart-summary" },
    this.#grid,
    this.#area,
    this.#limitLine,
    this.#limitText,
    this.#main,
    this.#total,
    this.#dots,
    this.#cross,
  );
  #table = el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Tokens over time" });
  #details = /** @type {HTMLDetailsElement} */ (
    el("details", { ontoggle: () => this.#showTable() }, el("summary", {}, "Show as a table"), this.#table)
  );
  #observer = new ResizeObserver(() => this.#draw());

  constructor() {
    this.element = el(
      "section",
      { class: "card chart-card", "aria-label": "Tokens over time" },
      el(
        "div",
        { class: "card-head" },
        el("h2", {}, "Tokens over time"),
        el(
          "ul",
          { class: "legend" },
          el("li", { class: "key-total" }, "in context"),
          el("li", { class: "key-main" }, "main thread"),
          el("li", { class: "key-limit" }, "limit"),
        ),
      ),
      this.#drawing,
      el("div", { class: "chart-text" }, this.#summary, this.#readout),
      this.#details,
    );
    this.#observer.observe(this.element);
    this.#drawing.addEventListener("pointermove", (event) => this.#point(/** @type {PointerEvent} */ (event)));
    this.#drawing.addEventListener("pointerleave", () => this.#leave());
  }

  stop() {
    this.#observer.disconnect();
  }

  /** @param {Point[]} points oldest first @param {number} limit */
  show(points, limit) {
    this.#points = points.slice(-MOST_POINTS);
    this.#limit = Math.max(1, limit);
    setText(this.#summary, this.#sentence());
    this.#draw(true);
    this.#showTable();
  }

  #sentence() {
    const last = this.#points.at(-1);
    if (!last) return "Nothing has been counted yet.";
    const peak = Math.max(...this.#points.map((point) => point.total_tokens));
    return (
      `Now ${grouped(last.total_tokens)} tokens in context, ` +
      `${grouped(last.main_thread_tokens)} of them on the main thread; ` +
      `at most ${grouped(peak)}, ${percent(peak / this.#limit)} of the limit of ${grouped(this.#limit)}.`
    );
  }

  // ---- scales

  get #span() {
    const times = this.#points.map((point) => Date.parse(point.at));
    return { from: times[0] ?? 0, to: times.at(-1) ?? 0 };
  }

  get #top() {
    return 1.06 * Math.max(this.#limit, ...this.#points.map((point) => point.total_tokens));
  }

  /** @returns {(ms: number) => number} */
  get #x() {
    const { from, to } = this.#span;
    const right = this.#width - EDGE.right;
    return (ms) => (to > from ? EDGE.left + ((ms - from) / (to - from)) * (right - EDGE.left) : right);
  }

  /** @returns {(tokens: number) => number} */
  get #y() {
    const top = this.#top;
    const room = HEIGHT - EDGE.top - EDGE.bottom;
    return (tokens) => EDGE.top + room * (1 - tokens / top);
  }

  // ---- drawing

  #draw(isNew = false) {
    const width = Math.floor(this.element.clientWidth - parseFloat(getComputedStyle(this.element).paddingLeft) * 2);
    if (width <= 0 || (width === this.#width && !isNew)) return;
    this.#width = width;
    this.#drawing.setAttribute("width", String(width));
    this.#drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const x = this.#x;
    const y = this.#y;
    this.#drawGrid(y);
    const at = this.#points.map((point) => x(Date.parse(point.at)));
    const totals = this.#points.map((point) => y(point.total_tokens));
    const mains = this.#points.map((point) => y(point.main_thread_tokens));
    this.#total.setAttribute("d", steps(at, totals));
    this.#main.setAttribute("d", steps(at, mains));
    this.#area.setAttribute("d", at.length > 1 ? `${steps(at, totals)}V${y(0)}H${at[0]}Z` : "");
    fill(this.#dots, ...(at.length ? [dot(at, mains, "main"), dot(at, totals, "total")] : []));
  }

  /** @param {(tokens: number) => number} y */
  #drawGrid(y) {
    const right = this.#width - EDGE.right;
    const limitY = y(this.#limit);
    const marks = ticks(this.#top).filter((tokens) => Math.abs(y(tokens) - limitY) > 14);
    const { from, to } = this.#span;
    const under = HEIGHT - 6;
    fill(
      this.#grid,
      ...marks.map((tokens) => svg("line", { x1: EDGE.left, x2: right, y1: y(tokens), y2: y(tokens) })),
      ...marks.map((tokens) =>
        svg("text", { x: EDGE.left - 8, y: y(tokens) + 4, "text-anchor": "end" }, grouped(tokens)),
      ),
      to > from ? svg("text", { x: EDGE.left, y: under }, clockText(from, to - from)) : null,
      this.#points.length ? svg("text", { x: right, y: under, "text-anchor": "end" }, clockText(to, to - from)) : null,
    );
    for (const [name, value] of Object.entries({ x1: EDGE.left, x2: right, y1: limitY, y2: limitY }))
      this.#limitLine.setAttribute(name, String(value));
    this.#limitText.setAttribute("x", String(EDGE.left - 8));
    this.#limitText.setAttribute("y", String(limitY + 4));
    this.#limitText.setAttribute("text-anchor", "end");
    setText(this.#limitText, grouped(this.#limit));
  }

  // ---- looking closer

  /** @param {PointerEvent} event */
  #point(event) {
    if (!this.#points.length) return;
    const x = event.clientX - this.#drawing.getBoundingClientRect().left;
    const { from, to } = this.#span;
    const share = (x - EDGE.left) / Math.max(1, this.#width - EDGE.left - EDGE.right);
    const ms = from + share * (to - from);
    const point = this.#points.findLast((candidate) => Date.parse(candidate.at) <= ms) ?? this.#points[0];
    const at = String(this.#x(Date.parse(point.at)));
    for (const [name, value] of Object.entries({ x1: at, x2: at, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }))
      this.#cross.setAttribute(name, String(value));
    this.#cross.classList.add("on");
    setText(
      this.#readout,
      `${exactTime(point.at)}: ${grouped(point.total_tokens)} in context, ` +
        `${grouped(point.main_thread_tokens)} main thread`,
    );
  }

  #leave() {
    this.#cross.classList.remove("on");
    setText(this.#readout, "");
  }

  #showTable() {
    if (!this.#details.open) return fill(this.#table);
    const head = ["When", "In context", "Main thread", "Of the limit"];
    const cells = (/** @type {Point} */ point) => [
      exactTime(point.at),
      grouped(point.total_tokens),
      grouped(point.main_thread_tokens),
      percent(point.total_tokens / this.#limit),
    ];
    fill(
      this.#table,
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
        el(
          "tbody",
          {},
          ...this.#points.toReversed().map((point) => el("tr", {}, ...cells(point).map((text) => el("td", {}, text)))),
        ),
      ),
    );
  }
}

/** A figure stays what it is until the next one: steps, not slopes. @param {number[]} x @param {number[]} y */
function steps(x, y) {
  return x
    .map((at, index) =>
      index ? `H${at.toFixed(1)}V${y[index].toFixed(1)}` : `M${at.toFixed(1)} ${y[index].toFixed(1)}`,
    )
    .join("");
}

/** @param {number[]} x @param {number[]} y @param {string} kind */
function dot(x, y, kind) {
  return svg("circle", { class: kind, cx: x.at(-1), cy: y.at(-1), r: 3.5 });
}

/** Round numbers up to `top`. @param {number} top */
function ticks(top) {
  const power = 10 ** Math.floor(Math.log10(top / TICKS));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => top / size <= TICKS) ?? power;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, index) => Math.round(index * step));
}
