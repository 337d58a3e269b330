// @ts-check
/** The view of one session: its figures, how they went, its tree, and the branch that is looked at. */

import * as api from "./api.js";
import { BranchView } from "./branch.js";
import { el, fill, setText } from "./dom.js";
import { baseName, counted, grouped, percent, setTime } from "./format.js";
import { Ledger } from "./ledger.js";
import { Pace } from "./pace.js";
import { bar, failure, healthLevel, healthText, healthWords, icon, messageOf, setBar, showFigures } from "./pieces.js";
import { sessionLink } from "./routes.js";
import { Timeline } from "./timeline.js";
import { Tree } from "./tree.js";

const STEP_ROWS = 60;
const MOST_ROWS = 480; // held at a time; beyond, the window moves
const TREE_INTERVAL_MS = 250;
const CHART_INTERVAL_MS = 1000;
const LEDGER_INTERVAL_MS = 1000;
const NOT_FOUND = 404;
const ONE_COLUMN = "(max-width: 899px)";
const REQUEST = "request.sent";
const UNDOING = ["session.rolled_back", "branch.discarded"];

export class SessionView {
  title = "Session";
  #limit = STEP_ROWS;
  /** @type {number | null} null: to the end, wherever that moves */
  #before = null;
  /** @type {api.SessionTree | null} */
  #tree = null;
  /** @type {BranchView | null} */
  #branch = null;
  #isStopped = false; // what is answered later is of no use
  #isFollowed = false; // as events tell of it, and so may be its branch
  #turn = 0; // of several readings of the tree at once the last counts
  #body;
  #health = "none";
  #path = el("p", { class: "path muted" });
  #tag = el("span", { class: "tag", hidden: true });
  #notice = el("div", { class: "notice", hidden: true });
  #failures = el("p", { class: "muted", hidden: true });
  #usage = el("p", { class: "usage-text number" });
  #bar = bar("large");
  #last = el("time");
  #figures = el("dl", { class: "figures" });
  #rows = new Tree((id) => this.around.go(sessionLink(this.sessionId, id)));
  #chart = new Timeline();
  #ledger;
  #count = el("p", { class: "muted" });
  #earlier = el("button", { type: "button", class: "more", hidden: true, onclick: () => this.#showEarlier() });
  #later = el(
    "button",
    { type: "button", class: "more", hidden: true, onclick: () => this.#showNewest() },
    "Show the newest",
  );
  #aside = el("div", { class: "aside" });
  #treePace = new Pace(
    () => this.#refreshTree(),
    TREE_INTERVAL_MS,
    (isBehind) => this.around.behind("tree", isBehind),
  );
  #chartPace = new Pace(
    () => this.#refreshChart(),
    CHART_INTERVAL_MS,
    (isBehind) => this.around.behind("chart", isBehind),
  );
  #ledgerPace = new Pace(
    () => this.#refreshLedger(),
    LEDGER_INTERVAL_MS,
    (isBehind) => this.around.behind("ledger", isBehind),
  );

  /** @param {import("./app.js").Surroundings} around @param {string} sessionId */
  constructor(around, sessionId) {
    this.around = around;
    this.sessionId = sessionId;
    this.#ledger = new Ledger(sessionId);
    this.heading = el("h1", { tabindex: "-1" }, "Session");
    this.#body = el(
      "div",
      { class: "session-body" },
      el(
        "div",
        { class: "overview" },
        this.#notice,
        el(
          "div",
          { class: "card summary-card" },
          el("div", { class: "usage" }, this.#usage, this.#bar, this.#failures),
          this.#figures,
        ),
        this.#chart.element,
      ),
      el(
        "section",
        { class: "card tree-card", "aria-label": "Branches" },
        el("div", { class: "card-head" }, el("h2", {}, "Branches"), this.#count),
        this.#earlier,
        this.#rows.element,
        this.#later,
      ),
      this.#aside,
      this.#ledger.element,
    );
    this.element = el(
      "section",
      { class: "page" },
      el(
        "nav",
        { class: "crumbs", "aria-label": "Where you are" },
        el("a", { href: "#/" }, "Sessions"),
        el("span", { "aria-hidden": "true" }, "/"),
      ),
      el(
        "div",
        { class: "page-head" },
        this.heading,
        this.#tag,
        el("p", { class: "muted" }, "last activity ", this.#last),
        this.#path,
      ),
      this.#body,
    );
  }

  async start() {
    try {
      const tree = await this.#readTree();
      if (this.#isStopped) return;
      this.around.follow(this.sessionId, tree.events_cursor);
      this.#isFollowed = true;
      this.#branch?.start();
      this.#chartPace.mark();
      this.#ledgerPace.mark();
    } catch (error) {
      if (this.#isStopped || this.around.failed(error)) return;
      this.#showFailure(error);
    }
  }

  stop() {
    this.#isStopped = true;
    this.#treePace.stop();
    this.#chartPace.stop();
    this.#ledgerPace.stop();
    this.#chart.stop();
    this.#ledger.stop();
    this.#branch?.stop();
  }

  /** @param {Record<string, any>} event */
  event(event) {
    if (event.session_id !== this.sessionId) return;
    this.#changed(UNDOING.includes(event.event));
    if (event.event === REQUEST) this.#ledgerPace.mark(); // nothing else adds to it
  }

  reopened() {
    this.#treePace.resume();
    this.#chartPace.resume();
    this.#ledgerPace.resume();
    if (this.#isFollowed) this.#branch?.reopened();
    else this.#branch?.start(); // the tree could not be read at first
    this.#isFollowed = true;
  }

  /** @param {boolean} isDeep whether something before the latest may have changed */
  #changed(isDeep) {
    this.#treePace.mark();
    this.#chartPace.mark();
    this.#branch?.changed(isDeep);
  }

  /** Look at a branch, the main thread, or none. @param {string | null} branchId @param {boolean} byUser */
  select(branchId, byUser) {
    const before = this.#branch?.branchId ?? null;
    if (branchId === before) return;
    this.#branch?.stop();
    this.#branch = null;
    this.#rows.select(branchId);
    this.element.classList.toggle("with-branch", branchId !== null);
    fill(this.#aside);
    if (branchId === null) {
      if (byUser) this.#rows.focus();
      return;
    }
    const actions = {
      nameOf: (/** @type {string} */ id) => this.#tree?.branches.find((branch) => branch.id === id)?.description ?? "",
      onClose: () => this.around.go(sessionLink(this.sessionId)),
      onRollback: (/** @type {api.Branch} */ branch) =>
        this.around.rollback.open(this.sessionId, branch, this.#tree?.session.total_tokens ?? 0),
    };
    const branch = new BranchView(this.around, this.sessionId, branchId, actions);
    this.#branch = branch;
    this.#aside.append(branch.element);
    if (byUser && matchMedia(ONE_COLUMN).matches) branch.focus(); // the tree is out of sight there
    if (this.#isFollowed) branch.start(); // else once the tree is read: none of the events that follow may be missed
  }

  // ---- reading

  async #refreshTree() {
    try {
      const tree = await this.#readTree();
      if (!this.#isStopped) this.around.rollback.refresh(tree.session.total_tokens);
    } catch (error) {
      if (this.#isStopped || this.around.failed(error)) return;
      if (!isGone(error)) throw error;
      this.#showFailure(error);
    }
  }

  async #readTree() {
    const turn = (this.#turn += 1);
    const tree = await api.session(this.sessionId, this.#limit, this.#before);
    if (!this.#isStopped && turn === this.#turn) this.#show(tree);
    return tree;
  }

  async #refreshChart() {
    const told = await this.#asked(api.timeline(this.sessionId));
    if (told) this.#chart.show(told.points, told.context_limit);
  }

  async #refreshLedger() {
    const savings = await this.#asked(api.savings(this.sessionId));
    if (savings) this.#ledger.show(savings);
  }

  /** What was answered, unless it is of no use. @template T @param {Promise<T>} answer @returns {Promise<T | null>} */
  async #asked(answer) {
    try {
      const told = await answer;
      return this.#isStopped ? null : told;
    } catch (error) {
      if (this.#isStopped || this.around.failed(error)) return null;
      if (!isGone(error)) throw error;
      return null; // the tree says so of the whole session
    }
  }

  async #showEarlier() {
    const tree = this.#tree;
    if (!tree) return;
    if (this.#limit + STEP_ROWS <= MOST_ROWS) this.#limit += STEP_ROWS;
    else this.#before = Math.max(this.#limit, tree.first_row + this.#limit - STEP_ROWS);
    await this.#refreshNow();
  }

  async #showNewest() {
    this.#before = null;
    this.#limit = STEP_ROWS;
    await this.#refreshNow();
  }

  async #refreshNow() {
    await this.#refreshTree().catch(() => this.#treePace.mark());
  }

  // ---- showing

  /** @param {api.SessionTree} tree */
  #show(tree) {
    this.#tree = tree;
    const session = tree.session;
    this.title = baseName(session.project_path);
    this.around.titled(this.title);
    setText(this.heading, this.title);
    setText(this.#path, session.project_path);
    this.#tag.hidden = session.name === null;
    setText(this.#tag, session.name ?? "");
    setTime(this.#last, session.last_at);
    this.#showFigures(session);
    this.#showHealth(session.context_health);
    this.#rows.show(tree);
    this.#branch?.named();
    const unseen = tree.first_row;
    this.#earlier.hidden = unseen === 0;
    setText(this.#earlier, `Show earlier (${counted(unseen, "more branch", "more branches")})`);
    this.#later.hidden = this.#before === null;
    setText(this.#count, branchCount(session));
  }

  /** @param {api.Session} session */
  #showFigures(session) {
    const [share, mainShare] = [session.total_tokens, session.main_thread_tokens].map((n) => n / session.context_limit);
    setText(
      this.#usage,
      `${grouped(session.total_tokens)} of ${grouped(session.context_limit)} tokens in context · ${percent(share)}`,
    );
    setBar(this.#bar, share);
    this.#bar.dataset.level = session.context_health.warning;
    const failed = session.failed_operations;
    const health = session.context_health;
    const redactions = session.secrets_scrubbed;
    const saved = session.tokens_saved;
    showFigures(this.#figures, [
      { label: "Main thread", value: grouped(session.main_thread_tokens), note: percent(mainShare) },
      {
        label: "Folded away",
        value: grouped(session.folded_tokens),
        note: counted(session.folded_branches, "branch", "branches"),
      },
      { label: saved < 0 ? "Folding cost" : "Saved", value: grouped(Math.abs(saved)), note: "tokens" },
      {
        label: "Operations",
        value: grouped(session.operations),
        note: failed ? `${grouped(failed)} failed` : "none failed",
      },
      { label: "Redactions", value: grouped(redactions), note: redactions ? "kept out" : "no secrets seen" },
      { label: "Health", value: healthWords(health) },
    ]);
  }

  /** @param {api.Health} health */
  #showHealth(health) {
    const level = healthLevel(health);
    const isWarning = level !== "none";
    const text = healthText(health);
    this.#notice.hidden = !isWarning;
    if (this.#notice.textContent !== text) fill(this.#notice, icon("warning"), el("p", {}, text));
    this.#notice.className = `notice notice-${level}`;
    this.#failures.hidden = isWarning || !text;
    setText(this.#failures, isWarning ? "" : text);
    if (level !== this.#health && isWarning && this.#health !== "high") this.around.announce(text);
    this.#health = level;
  }

  /** @param {unknown} error */
  #showFailure(error) {
    this.stop();
    this.around.unfollow();
    if (isGone(error)) {
      setText(this.heading, "No such session");
      fill(
        this.#body,
        el(
          "div",
          { class: "card" },
          el("p", {}, "It has ended, or it is not yours. Search still finds what ended sessions of yours have folded."),
          el("p", {}, el("a", { href: "#/" }, "All live sessions")),
        ),
      );
    } else
      fill(
        this.#body,
        failure(messageOf(error), () => this.around.restart()),
      );
  }
}

/** @param {unknown} error */
function isGone(error) {
  return error instanceof api.ApiError && error.status === NOT_FOUND;
}

/** @param {api.Session} session */
function branchCount(session) {
  const parts = [
    [session.active_branches, "open"],
    [session.folded_branches, "folded"],
    [session.discarded_branches, "discarded"],
  ];
  return (
    parts
      .filter(([count]) => count)
      .map(([count, word]) => `${grouped(Number(count))} ${word}`)
      .join(", ") || "none yet"
  );
}
