// @ts-check
/** The addresses of the page's views: the part of the URL after `#`. */

/** @typedef {{ view: "ask", question: string, budget: number | null, cache: string }} AskRoute  no cache: all caches */
/** @typedef {{ view: "sessions" } | { view: "totals" } | AskRoute
 *   | { view: "session", sessionId: string, branchId: string | null }
 *   | { view: "search", words: string }} Route  a branchId of "main" is the main thread */

export const MAIN = "main";

/** @param {string} hash @returns {Route} */
export function parseRoute(hash) {
  let parts;
  try {
    parts = hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    // The address belongs to no view.
    return { view: "sessions" };
  }
  if (parts[0] === "search") return { view: "search", words: parts[1] ?? "" };
  if (parts[0] === "totals") return { view: "totals" };
  if (parts[0] === "ask") {
    const budget = /^\d{1,7}$/.test(parts[2] ?? "") ? Number(parts[2]) : null;
    return { view: "ask", question: parts[1] ?? "", budget, cache: parts[3] ?? "" };
  }
  if (parts[0] !== "sessions" || !parts[1]) return { view: "sessions" };
  return { view: "session", sessionId: parts[1], branchId: parts[2] === "branches" ? (parts[3] ?? null) : null };
}

/** @param {string} sessionId @param {string | null} [branchId] */
export function sessionLink(sessionId, branchId = null) {
  const link = `#/sessions/${encodeURIComponent(sessionId)}`;
  return branchId === null ? link : `${link}/branches/${encodeURIComponent(branchId)}`;
}

/** @param {string} words */
export function searchLink(words) {
  return `#/search/${encodeURIComponent(words)}`;
}

/** @param {string} question @param {number} budget @param {string} cache  empty for all caches */
export function askLink(question, budget, cache) {
  const link = `#/ask/${encodeURIComponent(question)}/${budget}`;
  return cache ? `${link}/${encodeURIComponent(cache)}` : link;
}
