// @ts-check
/** Numbers, times and words as people read them. Knows no elements but `<time>`. */

import { el, setText } from "./dom.js";

const THIN = "\u202f"; // narrow, and no line breaks at it
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

/** What something costs, in tokens: small amounts with what is behind the point. @param {number} n */
export function worth(n) {
  const whole = Math.round(n);
  if (Math.abs(n) >= 100 || n === whole) return grouped(whole);
  return n.toFixed(2).replace(/0$/, "").replace("-", "−");
}

/** @param {number} n @param {string} one @param {string} [many] */
export function counted(n, one, many = `${one}s`) {
  return `${grouped(n)} ${n === 1 ? one : many}`;
}

/** A share of 1, as a whole number of percent. @param {number} share */
export function percent(share) {
  const whole = Math.floor(share * 100 + 1e-9); // 0.29 * 100 is a little less than 29
  return whole === 0 && share > 0 ? `<1${THIN}%` : `${whole}${THIN}%`;
}

/** What folding saved, honest where it cost more. @param {number} saved */
export function savedText(saved) {
  return saved < 0 ? `cost ${grouped(-saved)} more` : `saved ${grouped(saved)}`;
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

/** A moment on a clock, as fine as the span it is part of needs. @param {number} ms @param {number} spanMs */
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

/** Let every relative time on the page catch up. */
export function refreshTimes() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[datetime]"))
    setText(time, ago(time.getAttribute("datetime") ?? "", now));
}

/** The last part of a path, which people know a project by. @param {string} path */
export function baseName(path) {
  return path.split("/").filter(Boolean).pop() ?? path;
}
