// @ts-check
/** The view of what a search over summaries found, in all projects of the owner, ended sessions too. */

import * as api from "./api.js";
import { el, fill, setText } from "./dom.js";
import { baseName, counted, timeElement } from "./format.js";
import { failure, longText, messageOf } from "./pieces.js";
import { sessionLink } from "./routes.js";

const MOST_RESULTS = 20;

export class SearchView {
  title = "Search";
  #count = el("p", { class: "muted", role: "status" });
  #results = el("ol", { class: "results" });
  #turn = 0; // of answers that come late only the last counts

  /** @param {import("./app.js").Surroundings} around @param {string} words */
  constructor(around, words) {
    this.around = around;
    this.words = words;
    this.heading = el("h1", { tabindex: "-1" }, "Search");
    this.element = el(
      "section",
      { class: "page" },
      el(
        "nav",
        { class: "crumbs", "aria-label": "Where you are" },
        el("a", { href: "#/" }, "Sessions"),
        el("span", { "aria-hidden": "true" }, "/"),
      ),
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
      setText(this.#count, "Type words of a summary or a branch's description.");
      return;
    }
    try {
      const { summaries } = await api.summaries(words, MOST_RESULTS);
      if (turn === this.#turn) this.#show(summaries);
    } catch (error) {
      if (turn !== this.#turn || this.around.failed(error)) return;
      fill(
        this.#results,
        el(
          "li",
          {},
          failure(messageOf(error), () => this.start()),
        ),
      );
    }
  }

  /** @param {api.Summary[]} found */
  #show(found) {
    const most = found.length === MOST_RESULTS ? "the best " : "";
    setText(
      this.#count,
      found.length
        ? `${most}${counted(found.length, "summary", "summaries")} for “${this.words}”`
        : `No summary has “${this.words}”.`,
    );
    fill(this.#results, ...found.map(result));
  }
}

/** @param {api.Summary} found */
function result(found) {
  const name = found.description || "A branch";
  return el(
    "li",
    { class: "card result" },
    el("h2", {}, found.live === false ? name : el("a", { href: sessionLink(found.session_id, found.branch_id) }, name)),
    el(
      "p",
      { class: "muted" },
      el("span", { title: found.project_path }, baseName(found.project_path)),
      " · folded ",
      timeElement(found.folded_at),
      ` · ${counted(found.tokens_folded, "token")}`,
      found.live === false ? " · its session has ended" : "",
    ),
    longText(found.summary || "Folded without a summary."),
  );
}
