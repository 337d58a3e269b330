// @ts-check
/**
 * Why the provider's cache did not hold a part of the prompt: a sentence, and a row for each miss, the latest first.
 * Hidden for a session whose cache has lost nothing.
 */

import { el, reconcile, setText } from "./dom.js";
import { counted, dollars, exactTime, grouped, worth } from "./format.js";
import { table, tableRow } from "./pieces.js";

const TITLE = "What the provider's cache lost";
const ROWS_MOST = 50;

/** @typedef {import("./api.js").Misses} Misses */

export class MissList {
  #sentence = el("p", { class: "verdict" });
  #bug = el("p", { class: "notice notice-high", hidden: true }, "A change of contextfold's own is a bug; please report it.");
  #table = table(["When", "Why", "Whose", "Sent", "Read", "Lost", "Cost"], []);

  constructor() {
    this.element = el(
      "section",
      { class: "card misses-card", "aria-label": TITLE, hidden: true },
      el("h2", {}, TITLE),
      this.#sentence,
      this.#bug,
      el("div", { class: "table misses", tabindex: "0", role: "region", "aria-label": "Cache misses" }, this.#table),
    );
  }

  /** @param {Misses} answer */
  show({ requests, total, misses }) {
    this.element.hidden = total.misses === 0;
    if (total.misses === 0) return;
    this.#bug.hidden = !misses.some((miss) => miss.is_bug);
    setText(
      this.#sentence,
      `Before ${grouped(total.misses)} of ${counted(requests, "request")}, a part of the prompt was no longer cached. ` +
        `${grouped(total.tokens_lost)} tokens were paid for again, for ${costText(total)} more than reading them.`,
    );
    reconcile(/** @type {Element} */ (this.#table.querySelector("tbody")), misses.toReversed().slice(0, ROWS_MOST), {
      key: (miss) => String(miss.n),
      create: () => tableRow(["", "", "", "", "", "", ""]),
      update: (row, miss) => {
        const texts = [
          exactTime(miss.at),
          miss.why,
          miss.whose,
          grouped(miss.tokens_sent),
          grouped(miss.tokens_read),
          grouped(miss.tokens_lost),
          costText(miss),
        ];
        texts.forEach((text, index) => setText(row.children[index], text));
      },
    });
  }
}

/** @param {{ micros: number | null, cost: number }} sums */
function costText({ micros, cost }) {
  return micros === null ? `${worth(cost)} input tokens' worth` : dollars(micros);
}
