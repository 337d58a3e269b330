// @ts-check
/** The view of totals: what was sent and saved through the proxy, by day, project or model, with ended sessions. */

import * as api from "./api.js";
import { el, fill, setText } from "./dom.js";
import { costs, counted, grouped } from "./format.js";
import { choice, table } from "./pieces.js";
import { View } from "./view.js";

/** @type {Record<string, string>} */
const GROUP_NAMES = { day: "Day", project: "Project", model: "Model" };

export class TotalsView extends View {
  /** @type {"day" | "project" | "model"} */
  #by = "day";
  #verdict = el("p", { class: "verdict", role: "status" });
  #box = el("div", { class: "table totals", tabindex: "0", role: "region", "aria-label": "Totals" });
  #body = el("div", { class: "stack" });

  /** @param {import("./app.js").Page} page */
  constructor(page) {
    super(page, "Totals");
    const group = choice("Group by", Object.entries(GROUP_NAMES), (value) => {
      this.#by = /** @type {"day" | "project" | "model"} */ (value);
      this.start();
    });
    this.layOut(
      [],
      el(
        "div",
        { class: "stack" },
        el(
          "p",
          { class: "muted" },
          "Measured from requests that went through the proxy, against never having folded. ",
          "Ended sessions count until they are deleted.",
        ),
        el("div", { class: "controls" }, group),
        this.#body,
      ),
    );
  }

  async start() {
    const by = this.#by;
    try {
      const totals = await api.totals(by);
      if (!this.isStopped && by === this.#by) this.#show(totals);
    } catch (error) {
      if (!this.isHandled(error)) this.showFailure(this.#body, error, () => this.start());
    }
  }

  /** @param {api.Totals} totals */
  #show({ groups, total }) {
    const measured = groups.filter((group) => group.requests);
    fill(this.#body, this.#verdict, measured.length ? el("div", { class: "card" }, this.#box) : null);
    setText(
      this.#verdict,
      measured.length
        ? `${counted(total.requests, "request")}: ${summary(total)}`
        : "No request has gone through the proxy yet, so nothing was measured.",
    );
    // The days are ordered from the oldest; the newest is the most interesting.
    const rows = this.#by === "day" ? measured.toReversed() : measured;
    const tokens = ["Tokens sent", "Tokens without folding"];
    const head = [GROUP_NAMES[this.#by], "Requests", ...tokens, "Cost", "Cost without folding", "Saved"];
    const lines = rows.map((row) => line((row.day ?? row.project ?? row.model) || "unknown", row));
    fill(this.#box, table(head, lines, line("All", total)));
  }
}

/** @param {api.Sums} sums */
function summary(sums) {
  const { amount, difference, unit } = costs(sums);
  return `folding has ${difference < 0 ? "cost" : "saved"} ${amount}${unit ? ` ${unit}` : ""}.`;
}

/** @param {string} name @param {api.Sums} sums */
function line(name, sums) {
  const { sent, without, saved } = costs(sums);
  const counts = [sums.requests, sums.tokens_sent, sums.tokens_without].map(grouped);
  const figures = [...counts, sent, without, saved];
  return el("tr", {}, el("th", { scope: "row" }, name), ...figures.map((text) => el("td", {}, text)));
}
