// @ts-check
/**
 * The tokens sent to the model and the tokens without folding: two curves, the figures of the ledger, and each fold.
 * Hidden for a session without requests through the proxy.
 */

import { Chart } from "./chart.js";
import { el, fill, reconcile, setText } from "./dom.js";
import { clockText, costs, counted, exactTime, grouped, worth } from "./format.js";
import { icon, showFigures, table, tableRow } from "./pieces.js";
import { sessionLink } from "./routes.js";

const WORTH = "input tokens' worth";
const FOLDS_NAME = `Folds: tokens dropped, requests since, ${WORTH} saved`;
// The text names at most this many folds that cost more than they saved; the table has all of them.
const MOST_NAMED = 5;

/** @typedef {import("./api.js").Savings} Savings */
/** @typedef {Savings["points"][number]} Point */
/** @typedef {Savings["folds"][number]} Fold */

/** @type {import("./chart.js").Subject<Point>} */
const SUBJECT = {
  id: "ledger",
  curves: [
    { of: "sent", kind: "sent", word: "sent" },
    { of: "without", kind: "without", word: "without folding" },
  ],
  area: ["without", "sent"],
  limit: null,
  // Every request is equally wide, however much time has passed between them.
  position: (_, index) => index,
  ends,
  sentence,
  details: (point) => `${exactTime(point.at)}: ${grouped(point.sent)} sent, ${grouped(point.without)} without folding`,
  tableName: "Tokens of the requests",
  tableOpener: "Show the requests as a table",
  head: ["When", "Sent", "Without folding"],
  cells: (point) => [exactTime(point.at), grouped(point.sent), grouped(point.without)],
};

/** @type {Record<string, string>} why something was sent although a fold covers it */
const REASONS = {
  apart: "a result did not follow its call at once",
  unbalanced: "a call without its result",
  unknown_content: "something unknown in the branch",
  mixed_signatures: "a message of the user in the branch divides the calls of two models",
  bound_thinking: "waits for the user's next words, because of the model's thinking",
  no_branch_point: "the branch's beginning is not in the history",
  unreadable_result: "a result of context_branch, context_return or context_fold could not be read",
  call_failed: "context_return or context_fold failed",
  unconfirmed_tool: "a tool with a name like ours that may be another's",
  too_many_open: "too many branches open at once",
  hosted_call: "the provider ran context_branch, context_return or context_fold itself",
  not_json: "not readable as JSON",
  repeated_members: "a member was there twice",
  too_deep: "nested too deeply",
  too_many_values: "too many values",
  no_messages: "no list of messages",
  kept_elsewhere: "the provider keeps the history",
};

export class Ledger {
  #chart = new Chart(SUBJECT);
  #verdict = el("p", { class: "verdict" });
  #figures = el("dl", { class: "figures" });
  #costlyHead = el("p");
  #costly = el("ul");
  #costlyMore = el("p");
  #notice = el(
    "div",
    { class: "notice notice-medium", hidden: true },
    icon("warning"),
    el("div", {}, this.#costlyHead, this.#costly, this.#costlyMore),
  );
  #unfolded = el("p", { class: "muted", hidden: true });
  #prices = el("p", { class: "muted" });
  #foldsTable = table(["Branch", "Dropped", "Requests", `Saved, in ${WORTH}`], []);
  #foldsBox = el(
    "details",
    {},
    el("summary", {}, "Show the folds as a table"),
    el(
      "div",
      { class: "table folds", tabindex: "0", role: "region", "aria-label": FOLDS_NAME },
      this.#foldsTable,
    ),
  );

  /** @param {string} sessionId */
  constructor(sessionId) {
    this.sessionId = sessionId;
    this.element = el(
      "section",
      { class: "card ledger-card", "aria-label": "What was sent to the model", hidden: true },
      el("div", { class: "card-head" }, el("h2", {}, "What was sent to the model"), this.#chart.legend),
      this.#verdict,
      el(
        "div",
        { class: "ledger-parts" },
        el("div", { class: "stack" }, this.#figures, this.#notice, this.#unfolded, this.#prices, this.#foldsBox),
        this.#chart.element,
      ),
    );
  }

  stop() {
    this.#chart.stop();
  }

  /** @param {Savings} savings */
  show(savings) {
    this.element.hidden = savings.requests === 0;
    if (savings.requests === 0) return;
    setText(this.#verdict, regrouped(savings.verdict));
    this.#showFigures(savings);
    this.#showCostly(savings);
    this.#showFolds(savings.folds);
    const unfolded = Object.entries(savings.failed_open).map(([reason, count]) => reasonText(reason, count));
    this.#unfolded.hidden = !unfolded.length;
    setText(this.#unfolded, `Why something was left unfolded: ${unfolded.join("; ")}.`);
    setText(
      this.#prices,
      `Compared with a run that never folded and has no tools for it. Prices: ` +
        `${savings.prices.map(pricesText).join("; ")}.`,
    );
    this.#chart.show(savings.points);
  }

  /** @param {Savings} savings */
  #showFigures(savings) {
    const { requests, estimated_requests: estimated } = savings;
    const cost = costs(savings);
    const unfolded = Object.values(savings.failed_open).reduce((sum, count) => sum + count, 0);
    showFigures(this.#figures, [
      { label: "Tokens sent", value: grouped(savings.tokens_sent), note: `without ${grouped(savings.tokens_without)}` },
      { label: "Cost with folding", value: cost.sent },
      { label: "Cost without folding", value: cost.without },
      { label: cost.difference < 0 ? "Folding cost" : "Saved", value: cost.amount, note: cost.unit },
      { label: "Requests", value: grouped(requests), note: estimated ? `${grouped(estimated)} estimated` : "" },
      { label: "Left unfolded", value: grouped(unfolded), note: unfolded === 1 ? "request" : "requests" },
    ]);
  }

  /** @param {Savings} savings */
  #showCostly({ costly_folds: ids, folds }) {
    const known = new Map(folds.map((fold) => [fold.branch_id, fold]));
    const named = ids.toReversed().flatMap((id) => known.get(id) ?? []);
    this.#notice.hidden = !ids.length;
    const words = ids.length === 1 ? "This fold has cost more than it" : "These folds have cost more than they";
    setText(this.#costlyHead, `${words} saved so far:`);
    reconcile(this.#costly, named.slice(0, MOST_NAMED), {
      key: (fold) => fold.branch_id,
      create: () => el("li"),
      update: (item, fold) => fill(item, this.#name(fold), ` ${foldCost(fold)}`),
    });
    const more = ids.length - Math.min(named.length, MOST_NAMED);
    this.#costlyMore.hidden = !more;
    setText(this.#costlyMore, `and ${grouped(more)} more.`);
  }

  /** @param {Fold[]} folds */
  #showFolds(folds) {
    this.#foldsBox.hidden = !folds.length;
    reconcile(/** @type {Element} */ (this.#foldsTable.querySelector("tbody")), folds.toReversed(), {
      key: (fold) => fold.branch_id,
      create: () => tableRow(["", "", "", ""]),
      update: (row, fold) => {
        const [name, tokens, requests, saved] = row.children;
        fill(name, this.#name(fold));
        setText(tokens, grouped(fold.tokens_dropped));
        setText(requests, grouped(fold.requests));
        setText(saved, worth(fold.cost_saved));
      },
    });
  }

  /** A link to the branch; its id if the session does not know it. @param {Fold} fold */
  #name(fold) {
    if (!fold.description) return el("code", {}, fold.branch_id);
    return el("a", { href: sessionLink(this.sessionId, fold.branch_id) }, fold.description);
  }
}

/** @param {Savings["prices"][number]} prices */
function pricesText(prices) {
  const unit =
    (prices.currency ? "dollars for a million tokens" : "input tokens") +
    (prices.read_on ? `, read on ${prices.read_on}` : "");
  return (
    `${prices.model}: input ${prices.input}, output ${prices.output}, read from the cache ${prices.cache_read}, ` +
    `written for 5 minutes ${prices.cache_write_5m}, for 1 hour ${prices.cache_write_1h} (${unit})`
  );
}

/** @param {Point[]} points @returns {[string, string]} */
function ends(points) {
  const [from, to] = [points[0], points[points.length - 1]].map((point) => Date.parse(point.at));
  return [`first request, ${clockText(from, to - from)}`, `latest, ${clockText(to, to - from)}`];
}

/** @param {Point[]} points */
function sentence(points) {
  const last = points[points.length - 1];
  const [sent, without] = [points.map((point) => point.sent), points.map((point) => point.without)];
  return (
    `The latest request sent ${counted(last.sent, "token")}; without folding it would have been ` +
    `${grouped(last.without)}. The largest sent ${grouped(Math.max(...sent))}; ` +
    `without folding the largest would have been ${grouped(Math.max(...without))}.`
  );
}

/** @param {Fold} fold */
function foldCost(fold) {
  return `cost ${worth(-fold.cost_saved)} ${WORTH} more, with ${counted(fold.requests, "request")} since`;
}

/** @param {string} reason @param {number} count */
function reasonText(reason, count) {
  return `${REASONS[reason] ?? reason.replaceAll("_", " ")} (${counted(count, "request")})`;
}

/** The daemon's sentence, with figures written as on the rest of the page. @param {string} text */
function regrouped(text) {
  return text
    .replace(/\d{1,3}(?:,\d{3})+/g, (digits) => grouped(Number(digits.replaceAll(",", ""))))
    .replaceAll(" %", "\u202f%");
}
