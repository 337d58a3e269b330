// @ts-check
/** Small parts that several views show: icons, bars, health, long texts. */

import { ApiError } from "./api.js";
import { el, fill, reconcile, setText, svg } from "./dom.js";
import { counted, percent, setTime } from "./format.js";

const SHORT_CHARACTERS = 700;
const SHORT_LINES = 12;
const FAILING_RATE = 0.5; // of a branch's operations

/** Shapes, so that a status never hangs on colour alone. */
const ICONS = {
  active: ["M8 2.6a5.4 5.4 0 1 0 0 10.8a5.4 5.4 0 1 0 0-10.8Z", "M8 6.2a1.8 1.8 0 1 0 0 3.6a1.8 1.8 0 1 0 0-3.6Z"],
  folded: ["M3 4.5h10", "M3 11.5h10", "M5.5 8h5"],
  discarded: ["M4 4l8 8", "M12 4l-8 8"],
  main: ["M8 2v12", "M5 5l3-3 3 3"],
  warning: ["M8 2.2 14.5 13.5H1.5Z", "M8 6.5v3.2", "M8 11.7v.1"],
  chevron: ["M6 4l4 4-4 4"],
};

/** @param {keyof typeof ICONS} name */
export function icon(name) {
  return svg(
    "svg",
    { class: `icon icon-${name}`, viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
    ...ICONS[name].map((d) => svg("path", { d })),
  );
}

/** @type {Record<string, string>} */
export const STATUS_WORDS = { active: "open", folded: "folded", discarded: "discarded", main: "main thread" };

/** @param {import("./api.js").Branch["status"]} status */
export function statusChip(status) {
  return el("span", { class: `chip status-${status}` }, icon(status), STATUS_WORDS[status]);
}

/** A bar without words: what it says is always beside it. @param {string} [kind] */
export function bar(kind = "") {
  return el("span", { class: `bar ${kind}`, "aria-hidden": "true" }, el("span"));
}

/** @param {Element} element a bar @param {number} share of 1 */
export function setBar(element, share) {
  const filled = /** @type {HTMLElement} */ (element.firstElementChild);
  filled.style.inlineSize = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
}

/** @type {Record<string, string>} */
const HEALTH_WORDS = { none: "healthy", medium: "getting full", high: "nearly full" };

/** How loud a warning has to be: many failures are one too. @param {import("./api.js").Health} health */
export function healthLevel(health) {
  const isFailing = (health.failure_rate ?? 0) >= FAILING_RATE;
  return health.warning === "none" && isFailing ? "medium" : health.warning;
}

/** @param {import("./api.js").Health} health */
export function healthWords(health) {
  const level = healthLevel(health);
  return level === health.warning ? HEALTH_WORDS[level] : "failing";
}

/** @param {import("./api.js").Health} health */
export function healthChip(health) {
  const level = healthLevel(health);
  const usage = `Main thread at ${percent(health.main_thread_usage)} of the limit.`;
  return el(
    "span",
    { class: `chip health-${level}`, title: `${usage} ${failureText(health)}`.trim() },
    level === "none" ? null : icon("warning"),
    healthWords(health),
  );
}

/** What a health warning has to say. @param {import("./api.js").Health} health */
export function healthText(health) {
  const parts = [failureText(health)];
  if (health.warning !== "none") {
    parts.unshift(`The main thread is at ${percent(health.main_thread_usage)} of the limit.`, health.suggestion ?? "");
  }
  return parts.filter(Boolean).join(" ");
}

/** @param {import("./api.js").Health} health */
function failureText(health) {
  return health.failure_rate ? `${percent(health.failure_rate)} of the open branch's operations failed.` : "";
}

/** @param {string} text */
function shortened(text) {
  const cut = text.slice(0, SHORT_CHARACTERS);
  const lines = cut.split("\n");
  return lines.length > SHORT_LINES ? lines.slice(0, SHORT_LINES).join("\n") : cut;
}

/** A text of any length: long ones begin short. @param {string} text @param {string} [kind] */
export function longText(text, kind = "") {
  const box = el("div", { class: `text ${kind}` });
  const short = shortened(text);
  if (short === text) {
    setText(box, text);
    return box;
  }
  let isWhole = false;
  const body = el("span");
  const button = el("button", { type: "button", class: "link", "aria-expanded": "false", onclick: turn });
  function show() {
    setText(body, isWhole ? text : `${short}…`);
    setText(button, isWhole ? "Show less" : `Show all ${counted(text.length, "character")}`);
    button.setAttribute("aria-expanded", String(isWhole));
  }
  function turn() {
    isWhole = !isWhole;
    show();
  }
  show();
  fill(box, body, " ", button);
  return box;
}

/** @param {unknown} error */
export function messageOf(error) {
  return error instanceof ApiError ? error.message : "The daemon does not answer.";
}

/** A failure in the place of what should be there. @param {string} message @param {() => void} [again] */
export function failure(message, again) {
  return el(
    "div",
    { class: "notice notice-high", role: "alert" },
    icon("warning"),
    el("p", {}, message),
    again ? el("button", { type: "button", onclick: again }, "Try again") : null,
  );
}

/** @typedef {{ label: string, value: string, note?: string, at?: string }} Figure  `at` makes the value a time */

/** Figures with their labels. @param {Element} list a `<dl>` @param {(Figure | null)[]} figures */
export function showFigures(list, figures) {
  const given = figures.filter((figure) => figure !== null);
  reconcile(list, given, { key: (figure) => figure.label, create: createFigure, update: updateFigure });
}

/** @param {Figure} figure */
function createFigure(figure) {
  const value = el("b", {}, figure.at ? el("time") : null);
  return el("div", { class: "figure" }, el("dt", {}, figure.label), el("dd", {}, value, el("small")));
}

/** @param {Element} item @param {Figure} figure */
function updateFigure(item, figure) {
  const [value, note] = /** @type {HTMLCollection} */ (item.lastElementChild?.children);
  if (figure.at) setTime(/** @type {Element} */ (value.firstElementChild), figure.at);
  else setText(value, figure.value);
  setText(note, figure.note ?? "");
}
