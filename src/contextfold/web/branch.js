// @ts-check
/**
 * One branch or the main thread. A folded branch begins with its summary; then come the prompt and what was done.
 *
 * Reads the trajectory page by page; while the branch grows, only the last page is read again. The number of entries is
 * bounded: of a very long branch the first pages are dropped.
 */

import * as api from "./api.js";
import { el, fill, reconcile, setText } from "./dom.js";
import { counted, duration, grouped, timeElement } from "./format.js";
import { Pace } from "./pace.js";
import { failure, longText, messageOf, showFigures, statusChip } from "./pieces.js";
import { MAIN, sessionLink } from "./routes.js";

// The size of a page.
const BUDGET_TOKENS = 4000;
const MOST_ENTRIES = 400;
const INTERVAL_MS = 500;

/**
 * @typedef {{ cursor: string | null, entries: api.Entry[], next: string | null, isInside: boolean }} EntriesPage
 *   `isInside`: it begins with the rest of an entry
 */

export class BranchView {
  /** @type {EntriesPage[]} */
  #pages = [];
  // Whether the first pages were dropped.
  #isCut = false;
  #summary = "";
  /** @type {api.Branch | null} null for the main thread */
  branch = null;
  #mustReadAll = false;
  // A response that arrives after the view was left is ignored.
  #isStopped = false;
  /** @type {Promise<unknown>} pages are read one after the other, because each read begins where the last one ended */
  #reading = Promise.resolve();
  #heading = el("h2", { tabindex: "-1" });
  #chip = el("span");
  #figures = el("dl", { class: "figures small" });
  #actions = el("div", { class: "actions" });
  #cut = el(
    "p",
    { class: "muted", hidden: true },
    "The first entries are no longer shown. ",
    el("button", { type: "button", class: "link", onclick: () => this.start() }, "Start again from the first"),
  );
  #entries = el("ol", { class: "entries", "aria-label": "What happened" });
  #more = el("button", { type: "button", class: "more", hidden: true, onclick: () => this.#showMore() }, "Show more");
  #body = el("div", { class: "stack" }, this.#figures, this.#actions, this.#cut, this.#entries, this.#more);
  #pace;

  /**
   * @param {import("./app.js").Page} page
   * @param {string} sessionId
   * @param {string} branchId  or "main"
   * @param {{ onClose: () => void, onRollback: (branch: api.Branch) => void, canRollBack: () => boolean,
   *   nameOf: (id: string) => string }} actions
   */
  constructor(page, sessionId, branchId, actions) {
    this.page = page;
    this.sessionId = sessionId;
    this.branchId = branchId;
    this.actions = actions;
    this.#pace = new Pace(page, "branch", INTERVAL_MS, () => this.#refresh());
    setText(this.#heading, branchId === MAIN ? "Main thread" : "Branch");
    this.element = el(
      "section",
      { class: "card details", "aria-label": "Details" },
      el(
        "div",
        { class: "card-head" },
        this.#heading,
        this.#chip,
        el("button", { type: "button", class: "quiet", onclick: actions.onClose }, "Close"),
      ),
      this.#body,
    );
  }

  async start() {
    try {
      await this.#inTurn(() => {
        this.#pages = [];
        this.#isCut = false;
        return this.#read(0, 1);
      });
    } catch (error) {
      if (this.#isStopped || this.page.failed(error)) return;
      const message = api.isGone(error) ? "There is no such branch in this session." : messageOf(error);
      fill(this.#body, failure(message, api.isGone(error) ? undefined : () => this.start()));
    }
  }

  stop() {
    this.#isStopped = true;
    this.#pace.stop();
  }

  focus() {
    this.#heading.focus();
  }

  /** @param {boolean} isDeep whether earlier entries may have changed too */
  changed(isDeep) {
    this.#mustReadAll ||= isDeep;
    this.#pace.mark();
  }

  reopened() {
    this.#mustReadAll = true;
    this.#pace.resume();
  }

  /** The names of other branches may be known by now. */
  named() {
    if (this.#pages.length) this.#showEntries();
  }

  async #refresh() {
    const readAll = this.#mustReadAll;
    this.#mustReadAll = false;
    try {
      await this.#inTurn(() => this.#read(readAll ? 0 : Math.max(0, this.#pages.length - 1), this.#pages.length));
    } catch (error) {
      this.#mustReadAll ||= readAll;
      if (this.#isStopped || this.page.failed(error)) return;
      // The read of the tree reports that the session is gone.
      if (!api.isGone(error)) throw error;
    }
  }

  async #showMore() {
    const last = this.#entries.lastElementChild;
    try {
      await this.#inTurn(() => this.#read(this.#pages.length, this.#pages.length + 1));
    } catch (error) {
      if (!this.#isStopped && !this.page.failed(error)) this.page.announce(messageOf(error));
    }
    const entry = /** @type {HTMLElement | null | undefined} */ (last?.nextElementSibling);
    entry?.setAttribute("tabindex", "-1");
    entry?.focus();
  }

  /** @param {() => Promise<void>} read */
  #inTurn(read) {
    const done = this.#reading.then(read);
    // The caller gets the error; the next read must not.
    this.#reading = done.catch(() => {});
    return done;
  }

  /** Read pages: known ones again, and new ones after them. @param {number} from @param {number} to not included */
  async #read(from, to) {
    const pages = this.#pages.slice(0, from);
    let cursor = this.#pages[from]?.cursor ?? pages.at(-1)?.next ?? null;
    if (from > 0 && cursor === null) return;
    let isInside = this.#pages[from]?.isInside ?? Boolean(pages.at(-1)?.entries.at(-1)?.part);
    let branch = null;
    do {
      const branchId = this.branchId === MAIN ? null : this.branchId;
      const answer = await api.trajectory(this.sessionId, branchId, BUDGET_TOKENS, cursor);
      pages.push({ cursor, entries: answer.entries, next: answer.next_cursor, isInside });
      isInside = Boolean(answer.entries.at(-1)?.part);
      branch = answer.branch;
      this.#summary = answer.summary ?? (branch?.status === "folded" ? this.#summary : "");
      cursor = answer.next_cursor;
    } while (cursor !== null && pages.length < to);
    if (this.#isStopped) return;
    this.#bound(pages);
    this.#show(branch);
  }

  /** Drop the first pages of too many entries, after all are read. @param {EntriesPage[]} pages */
  #bound(pages) {
    const excess = total(pages) - MOST_ENTRIES;
    let first = 0;
    for (let gone = 0; gone < excess && first < pages.length - 1; first += 1) gone += pages[first].entries.length;
    this.#pages = pages.slice(first);
    this.#isCut ||= first > 0;
  }

  /** @param {api.Branch | null} branch */
  #show(branch) {
    if (this.#entries.parentElement !== this.#body)
      fill(this.#body, this.#figures, this.#actions, this.#cut, this.#entries, this.#more);
    if (branch) this.#showBranch(branch);
    this.#showEntries();
    const isNothing = !branch && !this.#entries.childElementCount;
    if (isNothing) fill(this.#actions, el("p", { class: "muted" }, "Nothing has happened on the main thread yet."));
    else if (!branch) fill(this.#actions);
  }

  #showEntries() {
    const entries = this.#ordered(wholeEntries(this.#pages)).map((entry) => ({
      ...entry,
      name: entry.branch_id ? this.actions.nameOf(entry.branch_id) : "",
    }));
    reconcile(this.#entries, entries, {
      key: (entry) => `${entry.kind}-${entry.n}`,
      create: () => el("li", { class: "entry" }),
      update: (item, entry) => this.#showEntry(item, entry),
    });
    this.#entries.hidden = !entries.length;
    this.#cut.hidden = !this.#isCut;
    this.#more.hidden = (this.#pages.at(-1)?.next ?? null) === null;
  }

  /** A folded branch's summary first, then the other entries. @param {api.Entry[]} entries @returns {api.Entry[]} */
  #ordered(entries) {
    const branch = this.branch;
    if (branch?.status !== "folded" || !this.#summary) return entries;
    const { closed_at: at, created_at: opened, summary_tokens: tokens } = branch;
    /** @type {api.Entry} */
    const summary = { n: 0, at: at ?? opened, kind: "summary", tokens, text: this.#summary };
    return [summary, ...entries.filter((entry) => entry.kind !== "summary" || entry.undone)];
  }

  /** @param {api.Branch} branch */
  #showBranch(branch) {
    setText(this.#heading, branch.description);
    if (branch.status !== this.branch?.status) fill(this.#chip, statusChip(branch.status));
    const isFolded = branch.status === "folded";
    const failed = branch.failed_operations;
    const redactions = branch.secrets_scrubbed;
    const took = duration(branch.created_at, branch.closed_at ?? new Date().toISOString());
    showFigures(this.#figures, [
      {
        label: "Tokens",
        value: grouped(branch.tokens),
        note: isFolded ? `summary ${grouped(branch.summary_tokens)}` : "",
      },
      took ? { label: "Took", value: took } : null,
      { label: "Operations", value: grouped(branch.operations), note: failed ? `${grouped(failed)} failed` : "" },
      redactions ? { label: "Redactions", value: grouped(redactions) } : null,
      { label: ENDED[branch.status] ?? "Opened", value: "", at: branch.closed_at ?? branch.created_at },
    ]);
    const hasButton = this.#actions.querySelector("button");
    if (branch.status === "discarded")
      fill(this.#actions, el("p", { class: "muted" }, "Discarded by a rollback. It can still be read."));
    else if (!hasButton && this.actions.canRollBack())
      fill(
        this.#actions,
        el("button", { type: "button", onclick: () => this.#rollback() }, "Roll back to this branch…"),
      );
    this.branch = branch;
  }

  #rollback() {
    if (this.branch) this.actions.onRollback(this.branch);
  }

  /** @param {HTMLElement} item @param {api.Entry & { name: string }} entry */
  #showEntry(item, entry) {
    item.dataset.kind = entry.kind;
    item.classList.toggle("undone", Boolean(entry.undone));
    const link = entry.branch_id
      ? el("a", { href: sessionLink(this.sessionId, entry.branch_id) }, entry.name || "Open the branch")
      : null;
    fill(
      item,
      el(
        "div",
        { class: "entry-head" },
        el("b", {}, entryName(entry)),
        entry.source ? el("span", { class: "muted" }, SOURCES[entry.source] ?? entry.source) : null,
        entry.failed ? el("span", { class: "chip failed-chip" }, "failed") : null,
        entry.undone ? el("span", { class: "chip" }, "undone") : null,
        el("span", { class: "muted number" }, entry.tokens ? counted(entry.tokens, "token") : ""),
        timeElement(entry.at),
      ),
      link,
      entry.text ? longText(entry.text, entry.kind === "operation" ? "code" : "") : null,
    );
  }
}

/** @type {Record<string, string>} */
const ENDED = { folded: "Folded", discarded: "Discarded" };
/** @type {Record<string, string>} */
const SOURCES = { hook: "by a hook", reported: "reported by the agent", proxy: "counted by the proxy" };

/** @param {api.Entry} entry */
function entryName(entry) {
  const names = {
    prompt: "Prompt",
    operation: entry.source === "proxy" ? "Messages to and from the model" : (entry.type ?? "Operation"),
    child: "Branch folded",
    summary: "Summary",
    rollback: "Rolled back",
  };
  return names[entry.kind] ?? entry.kind;
}

/** @param {EntriesPage[]} pages */
function total(pages) {
  return pages.reduce((sum, page) => sum + page.entries.length, 0);
}

/** Joins the parts of an entry that a page's end has cut. @param {EntriesPage[]} pages */
function wholeEntries(pages) {
  /** @type {api.Entry[]} */
  const whole = [];
  // The rest of an entry whose beginning was dropped is left out.
  const rest = pages[0]?.isInside ? pages[0].entries[0] : null;
  for (const entry of pages.flatMap((page) => page.entries)) {
    const last = whole.at(-1);
    if (rest?.n === entry.n && rest.kind === entry.kind) continue;
    if (last?.part && last.n === entry.n && last.kind === entry.kind) {
      whole[whole.length - 1] = { ...entry, text: last.text + entry.text, tokens: last.tokens + entry.tokens };
    } else whole.push(entry);
  }
  return whole;
}
