// @ts-check
/** Small parts that several views use: icons, bars, health, long texts, highlighted words. */

import { ApiError } from "./api.js";
import { el, fill, reconcile, setText, svg } from "./dom.js";
import { counted, percent, setTime } from "./format.js";

const SHORT_CHARACTERS = 700;
const SHORT_LINES = 12;

/** Each status has a shape, because colour alone is not enough. */
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

/** A bar; its value always stands beside it as text. @param {string} [kind] */
export function bar(kind = "") {
  return el("span", { class: `bar ${kind}`, "aria-hidden": "true" }, el("span"));
}

/** @param {Element} element a bar @param {number} share of 1 */
export function setBar(element, share) {
  const filled = /** @type {HTMLElement} */ (element.firstElementChild);
  filled.style.inlineSize = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
}

/** @typedef {{ health: string, context_health: import("./api.js").Health, open_branch_operations: number,
 *   active_branch_id: string | null }} Checked  what of a session its health is shown from */

/** How serious a warning is; many failures are a warning too. @param {Checked} session */
export function healthLevel({ health, context_health: { warning } }) {
  return health === "failing" ? "medium" : warning;
}

/** @param {Checked} session */
export function healthChip(session) {
  const level = healthLevel(session);
  const usage = `Main thread at ${percent(session.context_health.main_thread_usage)} of the limit.`;
  return el(
    "span",
    { class: `chip health-${level}`, title: `${usage} ${failureText(session)}`.trim() },
    level === "none" ? null : icon("warning"),
    session.health,
  );
}

/** The sentences of a warning, each of which can stand alone. @param {Checked} session */
export function healthTexts(session) {
  const { context_health: health, active_branch_id: open } = session;
  const full = [
    `The main thread is at ${percent(health.main_thread_usage)} of the limit.`,
    open === null
      ? "Ask the agent to fold work that is done: it calls context_fold with a summary."
      : "Ask the agent to end the open branch when its work is done: it calls context_return with a summary.",
  ];
  return [...(health.warning === "none" ? [] : full), failureText(session)].filter(Boolean);
}

/** @param {Checked} session */
function failureText({ context_health: health, open_branch_operations: operations }) {
  if (!health.failure_rate) return "";
  return `${percent(health.failure_rate)} of the open branch's ${counted(operations, "operation")} failed.`;
}

/** A text in which words of a search are highlighted. @param {string} text @param {string[]} words */
export function marked(text, words) {
  const patterns = words.filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!patterns.length) return [text];
  const parts = text.split(new RegExp(`(${patterns.join("|")})`, "gi"));
  return parts.map((part, index) => (index % 2 ? el("mark", {}, part) : part));
}

/** A table with a row of names at its top. @param {string[]} head @param {Node[]} rows @param {Node | null} [foot] */
export function table(head, rows, foot = null) {
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...rows),
    foot && el("tfoot", {}, foot),
  );
}

/** @param {string[]} texts */
export function tableRow(texts) {
  return el("tr", {}, ...texts.map((text) => el("td", {}, text)));
}

/** A select element. @param {string} label @param {[string, string][]} options value and text
 * @param {(value: string) => void} onChange */
export function choice(label, options, onChange) {
  const select = /** @type {HTMLSelectElement} */ (
    el(
      "select",
      { onchange: () => onChange(select.value) },
      ...options.map(([value, text]) => el("option", { value }, text)),
    )
  );
  return el("label", { class: "field" }, el("span", {}, label), select);
}

/** A command with a button that copies it. @param {string} text */
export function command(text) {
  const copied = el("span", { class: "muted", role: "status" });
  async function copy() {
    await navigator.clipboard.writeText(text);
    setText(copied, "copied");
  }
  const canCopy = Boolean(navigator.clipboard);
  return el(
    "span",
    { class: "command" },
    el("code", {}, text),
    canCopy
      ? el("button", { type: "button", class: "quiet", "aria-label": `Copy: ${text}`, onclick: copy }, "Copy")
      : null,
    copied,
  );
}

/** @param {string} text */
function shortened(text) {
  const cut = text.slice(0, SHORT_CHARACTERS);
  const lines = cut.split("\n");
  return lines.length > SHORT_LINES ? lines.slice(0, SHORT_LINES).join("\n") : cut;
}

/**
 * A text of any length; of a long one the beginning is shown first.
 *
 * @param {string} text @param {string} [kind] @param {string[]} [words] to highlight
 */
export function longText(text, kind = "", words = []) {
  const box = el("div", { class: `text ${kind}` });
  const short = shortened(text);
  if (short === text) {
    fill(box, ...marked(text, words));
    return box;
  }
  let isWhole = false;
  const body = el("span");
  const button = el("button", { type: "button", class: "link", "aria-expanded": "false", onclick: turn });
  function show() {
    fill(body, ...marked(isWhole ? text : `${short}…`, words));
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

/** An error message that is shown instead of the content. @param {string} message @param {() => void} [again] */
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
