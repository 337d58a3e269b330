// @ts-check
/** The view of search results: sessions by project, branches, and summaries, also those of ended sessions. */

import * as api from "./api.js";
import { byId, el, fill, setText } from "./dom.js";
import { baseName, counted, timeElement } from "./format.js";
import { crumbs, failure, longText, marked, messageOf, statusChip } from "./pieces.js";
import { sessionLink } from "./routes.js";

const MOST_RESULTS = 20;

export class SearchView {
  title = "Search";
  #count = el("p", { class: "muted", role: "status" });
  #results = el("div", {
    class: "results",
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event),
  });
  // Of several responses the one to the last search counts.
  #turn = 0;

  /** @param {import("./app.js").Page} page @param {string} words */
  constructor(page, words) {
    this.page = page;
    this.words = words;
    this.heading = el("h1", { tabindex: "-1" }, "Search");
    this.element = el(
      "section",
      { class: "page" },
      crumbs(),
      el("div", { class: "page-head" }, this.heading, this.#count),
      this.#results,
    );
  }

  start() {
    return this.look(this.words);
  }

  stop() {
    this.#turn += 1;
  }

  event() {}

  reopened() {}

  /** @param {string} words */
  async look(words) {
    this.words = words;
    const turn = (this.#turn += 1);
    if (!words.trim()) {
      fill(this.#results);
      setText(this.#count, "Type words of a project, a branch or a summary.");
      return;
    }
    try {
      const result = await api.search(words, MOST_RESULTS);
      if (turn === this.#turn) this.#show(result);
    } catch (error) {
      if (turn !== this.#turn || this.page.failed(error)) return;
      fill(
        this.#results,
        failure(messageOf(error), () => this.start()),
      );
    }
  }

  /** @returns {HTMLElement[]} */
  get #links() {
    return Array.from(this.#results.querySelectorAll("h3 a"));
  }

  focusFirst() {
    this.#links[0]?.focus();
  }

  /** Open the first result; return whether there is one. */
  openFirst() {
    const [link] = this.#links;
    link?.click();
    return link !== undefined;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const links = this.#links;
    const at = links.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (event.key === "Escape" || (event.key === "ArrowUp" && at === 0)) {
      event.preventDefault();
      byId("words").focus();
    } else if (at >= 0 && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      links[at + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
    }
  }

  /** @param {api.SearchResult} result */
  #show({ sessions, branches, summaries }) {
    const words = this.words.trim().split(/\s+/);
    const parts = [
      sessions.length ? counted(sessions.length, "session") : "",
      branches.length ? counted(branches.length, "branch", "branches") : "",
      summaries.length ? counted(summaries.length, "summary", "summaries") : "",
    ].filter(Boolean);
    setText(
      this.#count,
      parts.length ? `${parts.join(", ")} for “${this.words}”` : `Nothing has “${this.words}”.`,
    );
    fill(
      this.#results,
      ...group(
        "Sessions",
        sessions.map((found) => sessionResult(found, words)),
      ),
      ...group(
        "Branches",
        branches.map((found) => branchResult(found, words)),
      ),
      ...group(
        "Summaries",
        summaries.map((found) => summaryResult(found, words)),
      ),
    );
  }
}

/** @param {string} name @param {HTMLElement[]} items */
function group(name, items) {
  if (!items.length) return [];
  return [el("h2", {}, name), el("ol", { class: "results-list", "aria-label": name }, ...items)];
}

/** @param {api.SearchResult["sessions"][number]} found @param {string[]} words */
function sessionResult(found, words) {
  return el(
    "li",
    { class: "card result" },
    el("h3", {}, el("a", { href: sessionLink(found.session_id) }, ...marked(baseName(found.project_path), words))),
    el(
      "p",
      { class: "muted" },
      ...marked([found.project_path, found.name, found.host].filter(Boolean).join(" · "), words),
      " · last activity ",
      timeElement(found.last_at),
    ),
  );
}

/** @param {api.SearchResult["branches"][number]} found @param {string[]} words */
function branchResult(found, words) {
  const href = sessionLink(found.session_id, found.branch_id);
  return el(
    "li",
    { class: "card result" },
    el("h3", {}, el("a", { href }, ...marked(found.description, words))),
    el("p", { class: "muted" }, statusChip(found.status), ` ${baseName(found.project_path)}`),
  );
}

/** @param {api.Summary} found @param {string[]} words */
function summaryResult(found, words) {
  const name = marked(found.description || "A branch", words);
  const isEnded = found.live === false;
  return el(
    "li",
    { class: "card result" },
    el("h3", {}, ...(isEnded ? name : [el("a", { href: sessionLink(found.session_id, found.branch_id) }, ...name)])),
    el(
      "p",
      { class: "muted" },
      el("span", { title: found.project_path }, baseName(found.project_path)),
      " · folded ",
      timeElement(found.folded_at),
      ` · ${counted(found.tokens_folded, "token")}`,
      isEnded ? " · its session has ended" : "",
    ),
    longText(found.summary || "Folded without a summary.", "", words),
  );
}
