// @ts-check
/**
 * Draws curves, with a sentence that says the same and a table on demand. Knows points and pixels; the subject defines
 * what the points are and how they are called.
 */

import { el, fill, setText, svg } from "./dom.js";
import { grouped } from "./format.js";
import { table, tableRow } from "./pieces.js";

const HEIGHT = 170;
const EDGE = { top: 14, right: 10, bottom: 22, left: 72 };
const MOST_POINTS = 240;
const TICKS = 4;

/** @typedef {{ of: string, kind: string, word: string }} Curve  a member of the points, its look, its name */

/**
 * @template P a point
 * @typedef {object} Subject
 * @property {string} id  among the charts of the page
 * @property {Curve[]} curves  as the legend names them; the first one is drawn last, above the others
 * @property {[string, string | null]} area  filled between a curve and another one or the ground
 * @property {string | null} limit  the name of the line that the curves are compared with
 * @property {(point: P, index: number) => number} position  of a point, from left to right
 * @property {(points: P[]) => [string, string]} ends  the labels under the first and the last point
 * @property {(points: P[], limit: number) => string} sentence  about at least one point
 * @property {(point: P) => string} details  of one point, as text
 * @property {string} tableName
 * @property {string} tableOpener
 * @property {string[]} head  of the table
 * @property {(point: P, limit: number) => string[]} cells
 */

/** @template {Record<string, any>} P */
export class Chart {
  /** @type {P[]} */
  #points = [];
  /** @type {number[]} */
  #positions = [];
  #limit = 1;
  #width = 0;
  #subject;
  #summary;
  // Replaces the summary while the pointer is on the chart.
  #readout = el("p", { class: "readout number" });
  #grid = svg("g", { class: "grid" });
  #area;
  /** @type {Map<string, SVGElement>} */
  #lines;
  #limitLine = svg("line", { class: "limit" });
  #limitText = svg("text", { class: "limit-text", "text-anchor": "end" });
  #dots = svg("g", { class: "dots" });
  #cross = svg("line", { class: "cross" });
  #drawing;
  #table;
  #details;
  #observer = new ResizeObserver(() => this.#draw());

  /** @param {Subject<P>} subject */
  constructor(subject) {
    const { id, curves, limit } = subject;
    this.#subject = subject;
    this.#summary = el("p", { id: `${id}-summary`, class: "chart-summary" });
    this.#area = svg("path", { class: `area ${curves[0].kind}` });
    this.#lines = new Map(curves.toReversed().map(({ of, kind }) => [of, svg("path", { class: `line ${kind}` })]));
    this.#drawing = svg(
      "svg",
      { class: "chart", height: HEIGHT, role: "img", "aria-labelledby": `${id}-summary` },
      this.#grid,
      this.#area,
      limit && this.#limitLine,
      limit && this.#limitText,
      ...this.#lines.values(),
      this.#dots,
      this.#cross,
    );
    this.#table = el("div", { class: "table", tabindex: "0", role: "region", "aria-label": subject.tableName });
    this.#details = /** @type {HTMLDetailsElement} */ (
      el("details", { ontoggle: () => this.#showTable() }, el("summary", {}, subject.tableOpener), this.#table)
    );
    this.legend = el(
      "ul",
      { class: "legend" },
      ...curves.map(({ kind, word }) => el("li", { class: `key-${kind}` }, word)),
      limit && el("li", { class: "key-limit" }, limit),
    );
    this.element = el(
      "div",
      { class: "chart-box" },
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

  /** @param {P[]} points oldest first @param {number} [limit] */
  show(points, limit = 1) {
    this.#points = points.slice(-MOST_POINTS);
    this.#positions = this.#points.map(this.#subject.position);
    this.#limit = Math.max(1, limit);
    const hasPoints = this.#points.length > 0;
    setText(
      this.#summary,
      hasPoints ? this.#subject.sentence(this.#points, this.#limit) : "Nothing has been counted yet.",
    );
    this.#draw(true);
    this.#showTable();
  }

  // ---- scales

  get #span() {
    return { from: this.#positions[0] ?? 0, to: this.#positions.at(-1) ?? 0 };
  }

  get #top() {
    const values = this.#subject.curves.flatMap(({ of }) => this.#points.map((point) => point[of]));
    return 1.06 * Math.max(this.#limit, ...values);
  }

  /** @returns {(position: number) => number} */
  get #x() {
    const { from, to } = this.#span;
    const right = this.#width - EDGE.right;
    return (position) => (to > from ? EDGE.left + ((position - from) / (to - from)) * (right - EDGE.left) : right);
  }

  /** @returns {(tokens: number) => number} */
  get #y() {
    const top = this.#top;
    const height = HEIGHT - EDGE.top - EDGE.bottom;
    return (tokens) => EDGE.top + height * (1 - tokens / top);
  }

  // ---- drawing

  #draw(isNew = false) {
    const width = Math.floor(this.element.clientWidth);
    if (width <= 0 || (width === this.#width && !isNew)) return;
    this.#width = width;
    this.#drawing.setAttribute("width", String(width));
    this.#drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const y = this.#y;
    this.#drawGrid(y);
    const at = this.#positions.map(this.#x);
    const heights = (/** @type {string} */ of) => this.#points.map((point) => y(point[of]));
    for (const [of, line] of this.#lines) line.setAttribute("d", steps(at, heights(of)));
    const [over, under] = this.#subject.area;
    const floor = under === null ? at.map(() => y(0)) : heights(under);
    this.#area.setAttribute("d", at.length > 1 ? `${steps(at, heights(over))}${stepsBack(at, floor)}Z` : "");
    const dots = this.#subject.curves.toReversed().map(({ of, kind }) => dot(at, heights(of), kind));
    fill(this.#dots, ...(at.length ? dots : []));
  }

  /** @param {(tokens: number) => number} y */
  #drawGrid(y) {
    const right = this.#width - EDGE.right;
    const limitY = y(this.#limit);
    const isFree = (/** @type {number} */ tokens) => !this.#subject.limit || Math.abs(y(tokens) - limitY) > 14;
    const marks = ticks(this.#top).filter(isFree);
    const { from, to } = this.#span;
    const under = HEIGHT - 6;
    const [first, last] = this.#points.length ? this.#subject.ends(this.#points) : ["", ""];
    fill(
      this.#grid,
      ...marks.map((tokens) => svg("line", { x1: EDGE.left, x2: right, y1: y(tokens), y2: y(tokens) })),
      ...marks.map((tokens) =>
        svg("text", { x: EDGE.left - 8, y: y(tokens) + 4, "text-anchor": "end" }, grouped(tokens)),
      ),
      to > from ? svg("text", { x: EDGE.left, y: under }, first) : null,
      svg("text", { x: right, y: under, "text-anchor": "end" }, last),
    );
    place(this.#limitLine, { x1: EDGE.left, x2: right, y1: limitY, y2: limitY });
    place(this.#limitText, { x: EDGE.left - 8, y: limitY + 4 });
    setText(this.#limitText, grouped(this.#limit));
  }

  // ---- details of a point

  /** @param {PointerEvent} event */
  #point(event) {
    if (!this.#points.length) return;
    const x = event.clientX - this.#drawing.getBoundingClientRect().left;
    const { from, to } = this.#span;
    const share = (x - EDGE.left) / Math.max(1, this.#width - EDGE.left - EDGE.right);
    const looked = from + share * (to - from);
    const index = Math.max(
      0,
      this.#positions.findLastIndex((position) => position <= looked),
    );
    const at = this.#x(this.#positions[index]);
    place(this.#cross, { x1: at, x2: at, y1: EDGE.top, y2: HEIGHT - EDGE.bottom });
    this.#cross.classList.add("on");
    setText(this.#readout, this.#subject.details(this.#points[index]));
  }

  #leave() {
    this.#cross.classList.remove("on");
    setText(this.#readout, "");
  }

  #showTable() {
    if (!this.#details.open) return fill(this.#table);
    const { head, cells } = this.#subject;
    const rows = this.#points.toReversed().map((point) => tableRow(cells(point, this.#limit)));
    fill(this.#table, table(head, rows));
  }
}

/** @param {SVGElement} shape @param {Record<string, number>} coordinates */
function place(shape, coordinates) {
  for (const [name, value] of Object.entries(coordinates)) shape.setAttribute(name, String(value));
}

/** A value holds until the next one, so the line has steps, not slopes. @param {number[]} x @param {number[]} y */
function steps(x, y) {
  return x
    .map((at, index) =>
      index ? `H${at.toFixed(1)}V${y[index].toFixed(1)}` : `M${at.toFixed(1)} ${y[index].toFixed(1)}`,
    )
    .join("");
}

/** The same from the last to the first, below where another line has ended. @param {number[]} x @param {number[]} y */
function stepsBack(x, y) {
  return x
    .map((at, index) => `H${at.toFixed(1)}V${y[Math.max(0, index - 1)].toFixed(1)}`)
    .reverse()
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
