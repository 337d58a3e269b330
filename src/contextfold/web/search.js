// @ts-check
/** The view of search results: sessions by project, branches, and summaries, also those of ended sessions; below them
 * earlier work that has some of the words, with the reason for each. */

import * as api from "./api.js";
import { byId, el, fill, setText } from "./dom.js";
import { baseName, counted, timeElement } from "./format.js";
import { crumbs, failure, longText, marked, messageOf, statusChip } from "./pieces.js";
import { sessionLink } from "./routes.js";

const MOST_RESULTS = 20;
const RECALL_BUDGET = 4000;

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
      // A recall without a word to look for is refused: then there is nothing to add.
      const recalling = api.recall(words, RECALL_BUDGET).catch(() => ({ folds: [] }));
      const [result, { folds }] = await Promise.all([api.search(words, MOST_RESULTS), recalling]);
      if (turn === this.#turn) this.#show(result, folds);
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

  /** @param {api.SearchResult} result @param {api.RecalledFold[]} folds */
  #show({ sessions, branches, summaries }, folds) {
    const why = new Map(folds.map((fold) => [fold.id, fold.why]));
    const known = new Set(summaries.map((found) => found.branch_id));
    const others = folds.filter((fold) => !known.has(fold.id));
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
        summaries.map((found) => summaryResult(found, words, why.get(found.branch_id))),
      ),
      ...group(
        "Earlier work with some of these words",
        others.map((fold) => recalledResult(fold, words)),
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

/** @param {api.RecalledFold} fold @param {string[]} words */
function recalledResult(fold, words) {
  return el(
    "li",
    { class: "card result" },
    el("h3", {}, ...marked(fold.description, words)),
    el(
      "p",
      { class: "muted" },
      ...(fold.project_path ? [el("span", { title: fold.project_path }, baseName(fold.project_path)), " · "] : []),
      fold.kind === "fold" ? "folded " : "left out ",
      timeElement(fold.at),
      ` · ${counted(fold.tokens, "token")} · `,
      el("code", {}, `context fold expand ${fold.id}`),
    ),
    whyText(fold.why),
    ...(fold.summary ? [longText(fold.summary, "", words)] : []),
  );
}

/** Why something was found. @param {api.Why} why */
function whyText(why) {
  const reasons = why.map(({ term, in: fields }) => `${term} (${fields.join(", ")})`);
  return el("p", { class: "muted why" }, `Found by ${reasons.join(", ")}`);
}

/** @param {api.Summary} found @param {string[]} words @param {api.Why} [why] */
function summaryResult(found, words, why) {
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
    ...(why ? [whyText(why)] : []),
    longText(found.summary || "Folded without a summary.", "", words),
  );
}
