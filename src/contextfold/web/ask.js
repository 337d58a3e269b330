// @ts-check
/** The view for questions to caches of documents: the chosen sections, why each was chosen, and what was left out. */

import * as api from "./api.js";
import { el, fill } from "./dom.js";
import { counted, grouped } from "./format.js";
import { codeBlock, markdown } from "./markdown.js";
import { command, failure, longText, messageOf, table, tableRow } from "./pieces.js";
import { askLink } from "./routes.js";
import { View } from "./view.js";

const BUDGET = 4000;
const BUDGET_MAX = 1_000_000;
// The resolve tools report an error, for example that the cache root does not exist.
const TOOL_ERROR = 422;

// How the text of a document is shown, by the end of its name. Other documents are text.
const MARKDOWN = /\.(md|mdx|markdown|ipynb)$/i;
const CODE = /\.(py|pyi|js|mjs|cjs|jsx|ts|tsx|go|rs|java|kt|c|h|cc|cpp|hpp|cs|rb|php|swift|scala|sh|sql|lua|toml|ya?ml|json)$/i;

/** @type {Record<string, string>} */
const LEFT_OUT = { budget: "left out for the budget", duplicate: "left out, the same text is above" };

export class AskView extends View {
  #turn = 0;
  #question = /** @type {HTMLInputElement} */ (
    el("input", {
      id: "question",
      type: "search",
      required: true,
      autocomplete: "off",
      maxlength: 2000,
      placeholder: "How do I roll back a deployment?",
    })
  );
  #budget = /** @type {HTMLInputElement} */ (
    el("input", { id: "budget", type: "number", min: 0, max: BUDGET_MAX, step: 1, value: BUDGET, required: true })
  );
  #cache = /** @type {HTMLSelectElement} */ (el("select", { id: "cache" }, el("option", { value: "" }, "All caches")));
  #button = /** @type {HTMLButtonElement} */ (el("button", { type: "submit", class: "primary" }, "Ask"));
  #status = el("p", { class: "muted", role: "status" });
  #answer = el("div", { class: "stack" });
  #form = el(
    "form",
    { class: "card ask", onsubmit: (/** @type {Event} */ event) => this.#submit(event) },
    el("label", { class: "field wide", for: "question" }, el("span", {}, "Question"), this.#question),
    el("label", { class: "field", for: "cache" }, el("span", {}, "Cache"), this.#cache),
    el("label", { class: "field", for: "budget" }, el("span", {}, "Budget in tokens"), this.#budget),
    this.#button,
  );

  /** @type {import("./routes.js").AskRoute} */
  #route;

  /** @param {import("./app.js").Page} page @param {import("./routes.js").AskRoute} route */
  constructor(page, route) {
    super(page, "Ask", "Ask a cache");
    this.#route = route;
    this.layOut([], el("div", { class: "stack" }, this.#form, this.#status, this.#answer));
  }

  async start() {
    try {
      const { caches } = await api.caches();
      if (this.isStopped) return;
      const names = caches.filter((cache) => cache.has_manifest).map((cache) => cache.path);
      this.#cache.append(...names.map((name) => el("option", { value: name }, name)));
      if (names.length) this.look(this.#route);
      else this.#showNoCache();
    } catch (error) {
      if (this.isHandled(error)) return;
      if (error instanceof api.ApiError && error.status === TOOL_ERROR) return this.#showNoCache();
      this.#form.hidden = true;
      fill(
        this.#answer,
        failure(api.isGone(error) ? "This daemon does not serve the resolve tools." : messageOf(error)),
      );
    }
  }

  /** Show the question of an address, and its answer. @param {import("./routes.js").AskRoute} route */
  look(route) {
    this.#route = route;
    this.#question.value = route.question;
    this.#budget.value = String(route.budget ?? BUDGET);
    this.#cache.value = route.cache;
    if (route.question) return this.#ask();
    this.#turn += 1;
    fill(this.#status);
    fill(this.#answer);
  }

  #showNoCache() {
    this.#form.hidden = true;
    fill(
      this.#answer,
      el(
        "div",
        { class: "card" },
        el("p", {}, "There is nothing to ask yet. Make a cache of a folder of documents with this command; then reload:"),
        el("p", {}, command('context build docs --cache "${XDG_DATA_HOME:-$HOME/.local/share}/contextfold/caches/docs"')),
        el(
          "p",
          { class: "muted" },
          "That is where this daemon looks, unless it was started with ",
          el("code", {}, "--cache-root"),
          ".",
        ),
      ),
    );
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    const link = askLink(this.#question.value, Number(this.#budget.value), this.#cache.value);
    // The address has the question, so a reload asks it again. Without a change of it there is no event.
    if (link === location.hash) this.#ask();
    else this.page.go(link);
  }

  async #ask() {
    const turn = (this.#turn += 1);
    const { question, budget, cache } = this.#route;
    this.#button.disabled = true;
    try {
      const answer = await api.askCaches(question, budget ?? BUDGET, cache || null);
      if (!this.isStopped && turn === this.#turn) this.#show(answer);
    } catch (error) {
      if (turn !== this.#turn || this.isHandled(error)) return;
      fill(this.#status);
      fill(this.#answer, failure(messageOf(error)));
    } finally {
      this.#button.disabled = false;
    }
  }

  /** @param {api.Answer} answer */
  #show({ documents, selection }) {
    const leftOutSections = selection.sections_left_out;
    const parts = [
      `${counted(selection.sections_selected, "section")} of ${grouped(selection.sections_matched)} that match`,
      ...(leftOutSections ? [`${counted(leftOutSections, "section")} left out for the budget`] : []),
      `${grouped(selection.tokens_used)} of ${counted(selection.budget, "token")}`,
      `${counted(selection.documents_considered, "document")} searched`,
      ...(selection.unmatched.length ? [`in no document: ${selection.unmatched.join(", ")}`] : []),
      ...(selection.query_cut ? ["only the first words of the question were used"] : []),
    ];
    fill(this.#status, `${parts.join(" · ")}.`);
    const leftOut = (selection.caches_left_out ?? []).map(({ cache, reason }) =>
      el("p", { class: "muted" }, `The cache ${cache} was not asked: ${reason}.`),
    );
    const found = documents.length ? documents.map(documentCard) : [el("p", {}, nothingText(selection))];
    fill(this.#answer, ...leftOut, ...found);
  }
}

/** @param {api.Answer["selection"]} selection */
function nothingText(selection) {
  return selection.sections_matched
    ? "Sections match, but none fits the budget. Ask again with a larger budget."
    : "No section matches. Ask in other words.";
}

/** @param {api.AnsweredDocument} document */
function documentCard(document) {
  return el(
    "article",
    { class: "card answer" },
    el("div", { class: "card-head" }, el("h2", {}, document.title || document.id), scoreText(document.score)),
    el("p", { class: "muted path" }, document.id),
    ...document.sections.map((section) => sectionPart(document, section)),
    document.left_out.length
      ? el(
          "ul",
          { class: "left-out muted", "aria-label": "Left out" },
          ...document.left_out.map((section) =>
            el("li", {}, leftOutText(section)),
          ),
        )
      : null,
  );
}

/** @param {api.AnsweredDocument} document @param {api.Section} section */
function sectionPart(document, section) {
  const [first, last] = section.lines;
  const tableName = `Terms of ${document.id}, lines ${first}–${last}`;
  const terms = section.why.map((term) => tableRow([term.term, term.in.join(", "), grouped(term.score)]));
  const text = content(document.id, section.content);
  return el(
    "section",
    { class: "answer-section", "aria-label": crumbText(section.heading) },
    el(
      "div",
      { class: "entry-head" },
      el("b", {}, placeText(section.heading, text)),
      el("span", { class: "muted number" }, `lines ${first}–${last} · ${counted(section.tokens, "token")}`),
      scoreText(section.score),
    ),
    text,
    el(
      "details",
      {},
      el("summary", {}, `Why: ${section.why.map((term) => term.term).join(", ") || "its heading"}`),
      el(
        "div",
        { class: "table why", tabindex: "0", role: "region", "aria-label": tableName },
        table(["Term", "Occurs in", "Score"], terms, tableRow(["All", "", grouped(section.score)])),
      ),
    ),
  );
}

/** The headings above a section, whose text may begin with its own. @param {string[]} heading @param {Element} text */
function placeText(heading, text) {
  const first = text.querySelector(".heading:first-child");
  return first?.textContent === heading.at(-1) ? heading.slice(0, -1).join(" › ") : crumbText(heading);
}

/** @param {string} id of a document @param {string} text */
function content(id, text) {
  if (CODE.test(id)) return codeBlock(text);
  return MARKDOWN.test(id) ? el("div", { class: "markdown" }, ...markdown(text)) : longText(text);
}

/** @param {api.AnsweredDocument["left_out"][number]} section */
function leftOutText({ heading, reason, tokens }) {
  return `${crumbText(heading)}: ${LEFT_OUT[reason] ?? reason}, ${counted(tokens, "token")}`;
}

/** @param {string[]} heading */
function crumbText(heading) {
  return heading.join(" › ") || "Text before the first heading";
}

/** @param {number} score */
function scoreText(score) {
  return el("span", { class: "muted number" }, `score ${grouped(score)}`);
}
