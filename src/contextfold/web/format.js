// @ts-check
/** Formats numbers, money, times and words. Creates no elements but `<time>`. */

import { el, setText } from "./dom.js";

// A narrow space at which no line is broken.
const THIN = "\u202f";
// An amount below half a cent is said to be small, and one that no bill would show is none.
const HALF_CENT_MICROS = 5000;
const LEAST_MICROS = 50;
const MINUTE_S = 60,
  HOUR_S = 3600,
  DAY_S = 86400;
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const clockWithSeconds = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hour12: false,
});
const dayAndClock = new Intl.DateTimeFormat(undefined, {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  hour12: false,
});

/** 15 234 @param {number} n */
export function grouped(n) {
  const digits = String(Math.abs(n)).replace(/\B(?=(\d{3})+$)/g, THIN);
  return n < 0 ? `−${digits}` : digits;
}

/** A cost in tokens; small amounts with two decimals. @param {number} n */
export function worth(n) {
  const whole = Math.round(n);
  if (Math.abs(n) >= 100 || n === whole) return grouped(whole);
  return n.toFixed(2).replace(/0$/, "").replace("-", "−");
}

/** @param {number} n @param {string} one @param {string} [many] */
export function counted(n, one, many = `${one}s`) {
  return `${grouped(n)} ${n === 1 ? one : many}`;
}

/** A share of 1, as a whole number of percent, rounded half up as in every other place. @param {number} share */
export function percent(share) {
  // 0.145 * 100 is a little less than 14.5.
  const whole = Math.floor(share * 100 + 0.5 + 1e-9);
  return whole === 0 && share > 0 ? `<1${THIN}%` : `${whole}${THIN}%`;
}

/** @param {number} micros millionths of a dollar */
export function dollars(micros) {
  if (Math.abs(micros) < LEAST_MICROS) return "$0";
  const text = Math.abs(micros) < HALF_CENT_MICROS ? "<$0.01" : `$${(Math.abs(micros) / 1e6).toFixed(2)}`;
  return micros < 0 ? `−${text}` : text;
}

/**
 * The cost with folding, the cost without, and the difference: in money if all prices are known, otherwise in input
 * tokens' worth. "Saved" has this meaning everywhere on the page.
 *
 * @param {import("./api.js").Sums} sums
 */
export function costs({ money, cost_sent, cost_without, cost_saved }) {
  const [sent, without, saved] = money
    ? [money.sent_micros, money.without_micros, money.saved_micros]
    : [cost_sent, cost_without, cost_saved];
  const text = money ? dollars : worth;
  return {
    sent: text(sent),
    without: text(without),
    saved: text(saved),
    amount: text(Math.abs(saved)),
    difference: saved,
    unit: money ? "" : "input tokens' worth",
  };
}

/**
 * How long something took: 42 s, 7 min, 2 h 5 min. Work that was folded afterwards has no length.
 *
 * @param {string} from @param {string} to times in ISO format
 */
export function duration(from, to) {
  if (from === to) return "";
  const seconds = Math.max(0, Math.round((Date.parse(to) - Date.parse(from)) / 1000));
  if (Number.isNaN(seconds)) return "";
  if (seconds < MINUTE_S) return `${seconds}${THIN}s`;
  if (seconds < HOUR_S) return `${Math.floor(seconds / MINUTE_S)}${THIN}min`;
  const hours = Math.floor(seconds / HOUR_S);
  if (hours >= 48) return `${Math.floor(seconds / DAY_S)}${THIN}d`;
  const minutes = Math.floor((seconds % HOUR_S) / MINUTE_S);
  return minutes ? `${hours}${THIN}h ${minutes}${THIN}min` : `${hours}${THIN}h`;
}

/** @param {string} iso @param {number} [now] */
export function ago(iso, now = Date.now()) {
  const seconds = Math.round((now - Date.parse(iso)) / 1000);
  if (Number.isNaN(seconds)) return "";
  if (seconds < 10) return "just now";
  if (seconds < MINUTE_S) return `${seconds}${THIN}s ago`;
  if (seconds < HOUR_S) return `${Math.floor(seconds / MINUTE_S)}${THIN}min ago`;
  if (seconds < DAY_S) return `${Math.floor(seconds / HOUR_S)}${THIN}h ago`;
  return `${Math.floor(seconds / DAY_S)}${THIN}d ago`;
}

/** A time of day, with seconds where the span is short. @param {number} ms @param {number} spanMs */
export function clockText(ms, spanMs) {
  const seconds = spanMs / 1000;
  if (seconds > DAY_S) return dayAndClock.format(ms);
  return (seconds > 10 * MINUTE_S ? clock : clockWithSeconds).format(ms);
}

/** @param {string} iso */
export function exactTime(iso) {
  const ms = Date.parse(iso);
  return Number.isNaN(ms) ? iso : exact.format(ms);
}

/** @param {string} iso */
export function timeElement(iso) {
  return el("time", { datetime: iso, title: exactTime(iso) }, ago(iso));
}

/** @param {Element} time a `<time>` @param {string} iso */
export function setTime(time, iso) {
  time.setAttribute("datetime", iso);
  time.setAttribute("title", exactTime(iso));
  setText(time, ago(iso));
}

/** Update every relative time on the page. */
export function refreshTimes() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[datetime]"))
    setText(time, ago(time.getAttribute("datetime") ?? "", now));
}

/** The last part of a path, by which people know a project. @param {string} path */
export function baseName(path) {
  return path.split("/").filter(Boolean).pop() ?? path;
}
