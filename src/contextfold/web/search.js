// @ts-check
/** The view of search results: sessions by project, branches, and summaries, also those of ended sessions; below them
 * earlier work that has some of the words, with the reason for each. */

import * as api from "./api.js";
import { byId, el, fill, setText } from "./dom.js";
import { baseName, counted, timeElement } from "./format.js";
import { longText, marked, statusChip } from "./pieces.js";
import { sessionLink } from "./routes.js";
import { View } from "./view.js";

const MOST_RESULTS = 20;
const RECALL_BUDGET = 4000;

export class SearchView extends View {
  #count = el("p", { class: "muted", role: "status" });
  #results = el("div", {
    class: "results",
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event),
  });
  // Only the response to the last search is shown.
  #turn = 0;

  /** @param {import("./app.js").Page} page @param {string} words */
  constructor(page, words) {
    super(page, "Search");
    this.words = words;
    this.layOut([this.#count], this.#results);
  }

  start() {
    return this.look(this.words);
  }

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
      // The daemon refuses a recall without any term. Then there are no further results.
      const recalling = api.recall(words, RECALL_BUDGET).catch(() => ({ folds: [] }));
      const [result, { folds }] = await Promise.all([api.search(words, MOST_RESULTS), recalling]);
      if (turn === this.#turn && !this.isStopped) this.#show(result, folds);
    } catch (error) {
      if (turn === this.#turn && !this.isHandled(error)) this.showFailure(this.#results, error, () => this.start());
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
    const known = new Set(summaries.map((summary) => summary.branch_id));
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
      ...group("Sessions", sessions, (session) => sessionResult(session, words)),
      ...group("Branches", branches, (branch) => branchResult(branch, words)),
      ...group("Summaries", summaries, (summary) => summaryResult(summary, words, why.get(summary.branch_id))),
      ...group("Earlier work with some of these words", others, (fold) => recalledResult(fold, words)),
    );
  }
}

/** @template T @param {string} name @param {T[]} items @param {(item: T) => Node[]} parts of the card of an item */
function group(name, items, parts) {
  if (!items.length) return [];
  const cards = items.map((item) => el("li", { class: "card result" }, ...parts(item)));
  return [el("h2", {}, name), el("ol", { class: "results-list", "aria-label": name }, ...cards)];
}

/** @param {api.SearchResult["sessions"][number]} session @param {string[]} words */
function sessionResult(session, words) {
  const where = [session.project_path, session.name, session.host].filter(Boolean).join(" · ");
  return [
    el("h3", {}, el("a", { href: sessionLink(session.session_id) }, ...marked(baseName(session.project_path), words))),
    el("p", { class: "muted" }, ...marked(where, words), " · last activity ", timeElement(session.last_at)),
  ];
}

/** @param {api.SearchResult["branches"][number]} branch @param {string[]} words */
function branchResult(branch, words) {
  const href = sessionLink(branch.session_id, branch.branch_id);
  return [
    el("h3", {}, el("a", { href }, ...marked(branch.description, words))),
    el("p", { class: "muted" }, statusChip(branch.status), ` ${baseName(branch.project_path)}`),
  ];
}

/** @param {api.RecalledFold} fold @param {string[]} words */
function recalledResult(fold, words) {
  return [
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
    ...(fold.summary && fold.summary !== fold.description ? [longText(fold.summary, "", words)] : []),
  ];
}

/** The terms that a result matches. @param {api.Why} why */
function whyText(why) {
  const reasons = why.map(({ term, in: fields }) => `${term} (${fields.join(", ")})`);
  return el("p", { class: "muted why" }, `Found by ${reasons.join(", ")}`);
}

/** @param {api.Summary} summary @param {string[]} words @param {api.Why} [why] */
function summaryResult(summary, words, why) {
  // Work that was folded afterwards is named by the first line of its summary.
  const isNamed = summary.description && !summary.summary.startsWith(summary.description);
  const text = isNamed ? summary.summary : summary.summary.slice(summary.description.length).trim();
  const name = marked(summary.description || "A branch", words);
  const isEnded = summary.live === false;
  const href = sessionLink(summary.session_id, summary.branch_id);
  return [
    el("h3", {}, ...(isEnded ? name : [el("a", { href }, ...name)])),
    el(
      "p",
      { class: "muted" },
      el("span", { title: summary.project_path }, baseName(summary.project_path)),
      " · folded ",
      timeElement(summary.folded_at),
      ` · ${counted(summary.tokens_folded, "token")}`,
      isEnded ? " · its session has ended" : "",
    ),
    ...(why ? [whyText(why)] : []),
    ...(text || !summary.summary ? [longText(text || "Folded without a summary.", "", words)] : []),
  ];
}
