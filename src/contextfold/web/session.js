// @ts-check
/** The view of one session: its figures now and over time, its tree, and the selected branch. */

import * as api from "./api.js";
import { BranchView } from "./branch.js";
import { el, fill, setText } from "./dom.js";
import { baseName, costs, counted, grouped, percent, setTime } from "./format.js";
import { Ledger } from "./ledger.js";
import { MissList } from "./misses.js";
import { Pace } from "./pace.js";
import { bar, healthLevel, healthTexts, icon, setBar, showFigures, STATUS_WORDS } from "./pieces.js";
import { sessionLink } from "./routes.js";
import { Timeline } from "./timeline.js";
import { Tree } from "./tree.js";
import { View } from "./view.js";

const STEP_ROWS = 60;
// At most this many rows are in the page; the window moves beyond that.
const MOST_ROWS = 480;
const TREE_INTERVAL_MS = 250;
const CHART_INTERVAL_MS = 1000;
const LEDGER_INTERVAL_MS = 1000;
const ONE_COLUMN = "(max-width: 899px)";
const REQUEST = "request.sent";
const UNDOING = ["session.rolled_back", "branch.discarded"];

export class SessionView extends View {
  #limit = STEP_ROWS;
  /** @type {number | null} null: up to the last row */
  #before = null;
  /** @type {api.SessionTree | null} */
  #tree = null;
  /** @type {BranchView | null} */
  #branch = null;
  // Whether events of the session are received. The branch is read after that, so that no event is missed.
  #isFollowed = false;
  // Only the result of the last read of the tree is shown.
  #turn = 0;
  #body;
  #activity = el("p", { class: "muted" });
  #host = el("p", { class: "muted" });
  #path = el("p", { class: "path muted" });
  #tag = el("span", { class: "tag", hidden: true });
  #notice = el("div", { class: "notice", role: "status", hidden: true });
  #failures = el("p", { class: "muted", hidden: true });
  #usage = el("p", { class: "usage-text number" });
  #bar = bar("large");
  #last = el("time");
  #figures = el("dl", { class: "figures" });
  #rows = new Tree((id) => this.page.go(sessionLink(this.sessionId, id)));
  #chart = new Timeline();
  #ledger;
  #misses = new MissList();
  #count = el("p", { class: "muted" });
  #earlier = el("button", { type: "button", class: "more", hidden: true, onclick: () => this.#showEarlier() });
  #later = el(
    "button",
    { type: "button", class: "more", hidden: true, onclick: () => this.#showNewest() },
    "Show the newest",
  );
  #aside = el("div", { class: "aside" });
  #treePace = new Pace(this.page, "tree", TREE_INTERVAL_MS, () => this.#refreshTree());
  #chartPace = new Pace(this.page, "chart", CHART_INTERVAL_MS, () => this.#refreshChart());
  #ledgerPace = new Pace(this.page, "ledger", LEDGER_INTERVAL_MS, () => this.#refreshLedger());
  #paces = [this.#treePace, this.#chartPace, this.#ledgerPace];

  /** @param {import("./app.js").Page} page @param {string} sessionId */
  constructor(page, sessionId) {
    super(page, "Session");
    this.sessionId = sessionId;
    this.#ledger = new Ledger(sessionId);
    this.#body = el(
      "div",
      { class: "session-body", onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event) },
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
        el("div", { class: "card-head" }, el("h2", {}, "Branches"), this.#count, legend()),
        this.#earlier,
        this.#rows.element,
        this.#later,
      ),
      this.#aside,
      this.#ledger.element,
      this.#misses.element,
    );
    this.layOut([this.#tag, this.#activity, this.#host, this.#path], this.#body);
  }

  async start() {
    try {
      const tree = await this.#readTree();
      if (this.isStopped) return;
      this.page.follow(this.sessionId, tree.events_cursor);
      this.#isFollowed = true;
      this.#branch?.start();
      this.#chartPace.mark();
      this.#ledgerPace.mark();
    } catch (error) {
      if (!this.isHandled(error)) this.#showError(error);
    }
  }

  stop() {
    super.stop();
    for (const pace of this.#paces) pace.stop();
    this.#chart.stop();
    this.#ledger.stop();
    this.#branch?.stop();
  }

  /** @param {Record<string, any>} event */
  event(event) {
    if (event.session_id !== this.sessionId) return;
    this.#changed(UNDOING.includes(event.event));
    // Only requests change the ledger.
    if (event.event === REQUEST) this.#ledgerPace.mark();
  }

  reopened() {
    for (const pace of this.#paces) pace.resume();
    if (this.#isFollowed) this.#branch?.reopened();
    // The tree could not be read at first, so the branch was not read either.
    else this.#branch?.start();
    this.#isFollowed = true;
  }

  /** @param {boolean} isDeep whether earlier entries may have changed too */
  #changed(isDeep) {
    this.#treePace.mark();
    this.#chartPace.mark();
    this.#branch?.changed(isDeep);
  }

  /** Show a branch, the main thread, or neither. @param {string | null} branchId @param {boolean} byUser */
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
      onClose: () => this.#close(),
      canRollBack: () => !this.#tree?.session.ended_at,
      onRollback: (/** @type {api.Branch} */ branch) =>
        this.page.rollback.open(this.sessionId, branch, this.#tree?.session.total_tokens ?? 0),
    };
    const branch = new BranchView(this.page, this.sessionId, branchId, actions);
    this.#branch = branch;
    this.#aside.append(branch.element);
    // In one column the branch hides the tree, so it takes the focus.
    if (byUser && matchMedia(ONE_COLUMN).matches) branch.focus();
    // Otherwise it starts once the tree is read, so that no event is missed.
    if (this.#isFollowed) branch.start();
  }

  #close() {
    this.page.go(sessionLink(this.sessionId));
  }

  /** Escape closes the branch, from its details and from the row that has opened it. @param {KeyboardEvent} event */
  #key(event) {
    if (event.key !== "Escape" || !this.#branch) return;
    event.preventDefault();
    this.#close();
  }

  // ---- reading

  async #refreshTree() {
    try {
      const tree = await this.#readTree();
      if (!this.isStopped) this.page.rollback.refresh(tree.session.total_tokens);
    } catch (error) {
      if (this.isHandled(error)) return;
      if (!api.isGone(error)) throw error;
      this.#showError(error);
    }
  }

  async #readTree() {
    const turn = (this.#turn += 1);
    const tree = await api.session(this.sessionId, this.#limit, this.#before);
    if (!this.isStopped && turn === this.#turn) this.#show(tree);
    return tree;
  }

  async #refreshChart() {
    const timeline = await this.#result(api.timeline(this.sessionId));
    if (timeline) this.#chart.show(timeline.points, timeline.context_limit, this.#tree?.session.savings !== null);
  }

  async #refreshLedger() {
    const savings = await this.#result(api.savings(this.sessionId));
    if (!savings) return;
    this.#ledger.show(savings);
    if (!savings.requests) return;
    const misses = await this.#result(api.misses(this.sessionId));
    if (misses) this.#misses.show(misses);
  }

  /** The response, or null if it is no longer needed. @template T @param {Promise<T>} response
   * @returns {Promise<T | null>} */
  async #result(response) {
    try {
      const result = await response;
      return this.isStopped ? null : result;
    } catch (error) {
      if (!this.isHandled(error) && !api.isGone(error)) throw error;
      // The read of the tree reports that the session is gone.
      return null;
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
    this.page.setTitle(this.title);
    setText(this.heading, this.title);
    setText(this.#path, session.project_path);
    this.#tag.hidden = session.name === null;
    setText(this.#tag, session.name ?? "");
    if (!this.#activity.childNodes.length)
      fill(this.#activity, session.ended_at ? "ended, last activity " : "last activity ", this.#last);
    // The chart follows a session while it is live.
    this.#chart.element.hidden = Boolean(session.ended_at);
    setTime(this.#last, session.last_at);
    setText(this.#host, [session.host, session.model].filter(Boolean).join(" · "));
    this.#showFigures(session);
    this.#showHealth(session);
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
    // Without the proxy the agent sends everything, and this is what folding would leave.
    const what = session.savings === null ? "tokens if folded" : "tokens in context";
    setText(
      this.#usage,
      `${grouped(session.total_tokens)} of ${grouped(session.context_limit)} ${what} · ${percent(share)}`,
    );
    setBar(this.#bar, share);
    this.#bar.dataset.level = session.context_health.warning;
    const failed = session.failed_operations;
    const redactions = session.secrets_scrubbed;
    showFigures(this.#figures, [
      { label: "Main thread", value: grouped(session.main_thread_tokens), note: percent(mainShare) },
      session.host_tokens
        ? { label: "Host's prompt and tools", value: grouped(session.host_tokens), note: "in no fold" }
        : null,
      session.host_tokens === null
        ? null
        : { label: "Last request", value: grouped(session.context_tokens), note: "as the provider counted it" },
      {
        label: "Folded",
        value: grouped(session.folded_tokens),
        note: session.folded_before_tokens
          ? `${grouped(session.folded_before_tokens)} before this session began`
          : counted(session.folded_branches, "branch", "branches"),
      },
      session.left_out_results
        ? {
            label: "Left out",
            value: grouped(session.left_out_tokens),
            note: counted(session.left_out_results, "old text"),
          }
        : null,
      savedFigure(session),
      {
        label: "Operations",
        value: grouped(session.operations),
        note: failed ? `${grouped(failed)} failed` : "none failed",
      },
      { label: "Redactions", value: grouped(redactions), note: redactions ? "not stored" : "no secrets seen" },
      session.ended_at ? null : { label: "Health", value: session.health },
    ]);
  }

  /** @param {api.Session} session */
  #showHealth(session) {
    const level = healthLevel(session);
    const isWarning = level !== "none" && !session.ended_at;
    const texts = healthTexts(session);
    this.#notice.hidden = !isWarning;
    if (this.#notice.dataset.text !== texts.join("\n")) {
      this.#notice.dataset.text = texts.join("\n");
      fill(this.#notice, icon("warning"), el("div", {}, ...texts.map((text) => el("p", {}, text))));
    }
    this.#notice.className = `notice notice-${level}`;
    this.#failures.hidden = isWarning || !texts.length || Boolean(session.ended_at);
    setText(this.#failures, isWarning ? "" : texts.join(" "));
  }

  /** @param {unknown} error */
  #showError(error) {
    this.stop();
    this.page.unfollow();
    if (api.isGone(error)) {
      setText(this.heading, "No such session");
      fill(
        this.#body,
        el(
          "div",
          { class: "card" },
          el("p", {}, "It has been deleted after its retention, or it belongs to another owner."),
          el("p", {}, el("a", { href: "#/" }, "All sessions")),
        ),
      );
    } else this.showFailure(this.#body, error, () => this.page.restart());
  }
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

/** What folding has done: measured where requests went through the proxy. @param {api.Session} session */
function savedFigure(session) {
  if (session.savings === null) {
    const unfolded = session.total_tokens + session.tokens_saved;
    return { label: "If folded", value: grouped(session.total_tokens), note: `instead of ${grouped(unfolded)}` };
  }
  const { amount, difference, unit } = costs(session.savings);
  return { label: difference < 0 ? "Folding cost" : "Saved", value: amount, note: unit };
}

/** The meaning of the icons in the tree. */
function legend() {
  const names = /** @type {const} */ (["main", "active", "folded", "discarded"]);
  return el(
    "ul",
    { class: "icons muted", "aria-label": "Icons" },
    ...names.map((name) => el("li", {}, icon(name), STATUS_WORDS[name])),
  );
}
