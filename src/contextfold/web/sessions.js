// @ts-check
/** The view of all live sessions, latest activity first. Reads what is on screen again when something happened. */

import * as api from "./api.js";
import { el, fill, reconcile, setText } from "./dom.js";
import { baseName, counted, grouped, percent, savedText, setTime } from "./format.js";
import { Pace } from "./pace.js";
import { bar, failure, healthChip, messageOf, setBar } from "./pieces.js";
import { sessionLink } from "./routes.js";

const STEP_ROWS = 20;
const MOST_ROWS = 500;
const PAGE_ROWS = 100; // as many as the daemon gives at once
const INTERVAL_MS = 1000;

export class SessionsView {
  title = "Sessions";
  #rows = STEP_ROWS; // how many are wanted
  #list = el("ol", { class: "sessions", "aria-label": "Sessions" });
  #count = el("p", { class: "muted" });
  #more = el("button", { type: "button", class: "more", hidden: true, onclick: () => this.#showMore() }, "Show more");
  #note = el("p", { class: "muted more", hidden: true });
  #body = el("div", { class: "stack" }, this.#list, this.#more, this.#note);
  #isStopped = false; // what is answered later is of no use
  #pace = new Pace(
    () => this.#refresh(),
    INTERVAL_MS,
    (isBehind) => this.around.behind("sessions", isBehind),
  );

  /** @param {import("./app.js").Surroundings} around */
  constructor(around) {
    this.around = around;
    this.heading = el("h1", { tabindex: "-1" }, "Sessions");
    this.element = el(
      "section",
      { class: "page" },
      el("div", { class: "page-head" }, this.heading, this.#count),
      this.#body,
    );
  }

  async start() {
    try {
      const answer = await this.#read();
      if (this.#isStopped) return;
      this.around.follow(null, answer.events_cursor);
    } catch (error) {
      if (this.#isStopped || this.around.failed(error)) return;
      fill(
        this.#body,
        failure(messageOf(error), () => this.around.restart()),
      );
    }
  }

  stop() {
    this.#isStopped = true;
    this.#pace.stop();
  }

  event() {
    this.#pace.mark();
  }

  reopened() {
    this.#pace.resume();
  }

  async #showMore() {
    const before = this.#list.childElementCount;
    this.#rows = Math.min(this.#rows + STEP_ROWS, MOST_ROWS);
    await this.#refresh().catch(() => this.#pace.mark());
    const link = this.#list.children[before]?.querySelector("a");
    link?.focus();
  }

  async #refresh() {
    try {
      await this.#read();
    } catch (error) {
      if (!this.#isStopped && !this.around.failed(error)) throw error;
    }
  }

  async #read() {
    let answer = await api.sessions(Math.min(this.#rows, PAGE_ROWS));
    const rows = answer.sessions;
    const first = answer;
    while (answer.next_cursor !== null && rows.length < this.#rows) {
      answer = await api.sessions(Math.min(this.#rows - rows.length, PAGE_ROWS), answer.next_cursor);
      rows.push(...answer.sessions);
    }
    // More rows cost more to read again, so they are read again less often.
    this.#pace.intervalMs = INTERVAL_MS * Math.ceil(this.#rows / PAGE_ROWS);
    if (!this.#isStopped) this.#show(first, distinct(rows), answer.next_cursor !== null);
    return first;
  }

  /** @param {api.SessionList} answer @param {api.Session[]} rows @param {boolean} hasMore */
  #show(answer, rows, hasMore) {
    this.around.signedIn(answer.owner);
    setText(this.#count, answer.total ? `${grouped(answer.total)} live` : "");
    if (!rows.length) return this.#showEmpty();
    if (this.#list.parentElement !== this.#body) fill(this.#body, this.#list, this.#more, this.#note);
    reconcile(this.#list, rows, { key: (row) => row.session_id, create: createRow, update: updateRow });
    const isFull = hasMore && this.#rows >= MOST_ROWS;
    this.#more.hidden = !hasMore || isFull;
    this.#note.hidden = !isFull;
    setText(this.#more, `Show more (${counted(Math.max(0, answer.total - rows.length), "earlier session")})`);
    setText(
      this.#note,
      `These are the ${grouped(rows.length)} with the latest activity. Search finds what the others folded.`,
    );
  }

  #showEmpty() {
    if (this.#body.querySelector(".welcome")) return;
    fill(this.#body, welcome());
  }
}

/** A session that moved up while pages were read would come twice. @param {api.Session[]} rows */
function distinct(rows) {
  return [...new Map(rows.map((row) => [row.session_id, row])).values()];
}

/** @param {api.Session} row */
function createRow(row) {
  return el(
    "li",
    { class: "session" },
    el(
      "div",
      { class: "session-name" },
      el("a", { class: "cover", href: sessionLink(row.session_id) }),
      el("span", { class: "tag", hidden: true }),
      el("div", { class: "path muted" }),
    ),
    el("div", { class: "session-usage" }, bar(), el("span", { class: "number" })),
    el("div", { class: "session-health" }),
    el("div", { class: "session-branch muted" }),
    el("div", { class: "session-saved number" }),
    el("div", { class: "session-time muted" }, el("time")),
  );
}

/** @param {HTMLElement} item @param {api.Session} row */
function updateRow(item, row) {
  const part = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (item.querySelector(selector));
  setText(part("a"), baseName(row.project_path));
  const name = part(".tag");
  name.hidden = row.name === null;
  setText(name, row.name ?? "");
  setText(part(".path"), row.project_path);
  part(".path").title = row.project_path;
  const share = row.total_tokens / row.context_limit;
  setBar(part(".bar"), share);
  part(".bar").dataset.level = row.context_health.warning;
  setText(
    part(".session-usage .number"),
    `${grouped(row.total_tokens)} of ${grouped(row.context_limit)} · ${percent(share)}`,
  );
  fill(part(".session-health"), healthChip(row.context_health));
  setText(part(".session-branch"), branchText(row));
  setText(part(".session-saved"), row.folded_branches ? savedText(row.tokens_saved) : "nothing folded");
  part(".session-saved").classList.toggle("good", row.tokens_saved > 0);
  setTime(part("time"), row.last_at);
}

/** @param {api.Session} row */
function branchText(row) {
  const all = counted(row.total_branches, "branch", "branches");
  if (row.active_branch_id === null) return row.total_branches ? `${all}, none open` : "no branches yet";
  return `${all}, ${row.branch_depth > 1 ? `${row.branch_depth} deep` : "one open"}`;
}

const HOSTS = [
  ["Claude Code", "claude-code"],
  ["Cursor", "cursor"],
  ["VS Code", "vscode"],
];

function welcome() {
  return el(
    "div",
    { class: "welcome card" },
    el("h2", {}, "No session yet"),
    el(
      "p",
      {},
      "A session begins when an agent first uses folding in a project. Connect one from the project's folder:",
    ),
    el(
      "dl",
      {},
      ...HOSTS.map(([host, name]) =>
        el("div", {}, el("dt", {}, host), el("dd", {}, command(`context install ${name}`))),
      ),
    ),
    el(
      "p",
      {},
      "Then work as usual. When the agent opens a branch for a piece of work, it shows up here by itself; when it ",
      "returns, the branch is folded into a short summary and you see what that saved.",
    ),
  );
}

/** A command one can copy. @param {string} text */
function command(text) {
  const copied = el("span", { class: "muted", role: "status" });
  async function copy() {
    await navigator.clipboard.writeText(text);
    setText(copied, "copied");
  }
  const canCopy = Boolean(navigator.clipboard);
  return el(
    "span",
    { class: "command" },
    el("code", {}, text),
    canCopy
      ? el("button", { type: "button", class: "quiet", "aria-label": `Copy: ${text}`, onclick: copy }, "Copy")
      : null,
    copied,
  );
}
