// @ts-check
/** The list of sessions: live ones first, then ended ones. Reads what is on screen again after an event. */

import * as api from "./api.js";
import { el, fill, reconcile, setAttribute, setText } from "./dom.js";
import { baseName, costs, counted, grouped, percent, setTime } from "./format.js";
import { Pace } from "./pace.js";
import { bar, choice, healthChip, healthLevel, setBar } from "./pieces.js";
import { sessionLink } from "./routes.js";
import { View } from "./view.js";
import { welcome } from "./welcome.js";

const SHORT_ID = "sess_".length + 6;
const STEP_ROWS = 20;
const MOST_ROWS = 500;
const MOST_NAMED = 4;
// The daemon returns at most this many sessions in one response.
const PAGE_ROWS = 100;
const INTERVAL_MS = 1000;

/** @typedef {(api.Session & { ended_at?: undefined }) | api.EndedSession} AnySession */

/** @type {[string, string][]} */
const SHOWN = [
  ["all", "Live and ended"],
  ["live", "Live"],
  ["ended", "Ended"],
];
/** @type {[string, string][]} */
const ORDERS = [
  ["latest", "Last activity"],
  ["project", "Project"],
  ["context", "Context"],
  ["saved", "Saved"],
];

export class SessionsView extends View {
  #rows = STEP_ROWS;
  #shown = "all";
  #order = "latest";
  #list = el("ol", { class: "sessions", "aria-label": "Sessions" });
  #count = el("p", { class: "muted" });
  #filter = /** @type {HTMLInputElement} */ (
    el("input", {
      type: "search",
      id: "filter",
      placeholder: "Project, host or model",
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 200,
      oninput: () => this.#again(),
    })
  );
  #controls = el(
    "div",
    { class: "controls", role: "group", "aria-label": "Filter and sort" },
    el("label", { class: "field", for: "filter" }, el("span", {}, "Filter"), this.#filter),
    choice("Show", SHOWN, (value) => this.#choose(value, this.#order)),
    choice("Sort by", ORDERS, (value) => this.#choose(this.#shown, value)),
  );
  #head = el(
    "div",
    { class: "columns", "aria-hidden": "true" },
    ...["Project", "Context", "Health", "Branches", "Saved", "Last activity"].map((text) => el("div", {}, text)),
  );
  #nothing = el("p", { class: "muted", hidden: true, role: "status" }, "No session matches.");
  #more = el("button", { type: "button", class: "more", hidden: true, onclick: () => this.#showMore() }, "Show more");
  #note = el("p", { class: "muted more", hidden: true });
  #table = el("div", { class: "sessions-table" }, this.#head, this.#list);
  #damage = el("p", { class: "muted", hidden: true });
  #parts = [this.#controls, this.#table, this.#nothing, this.#more, this.#note, this.#damage];
  #body = el("div", { class: "stack" });
  #pace = new Pace(this.page, "sessions", INTERVAL_MS, () => this.#refresh());

  /** @param {import("./app.js").Page} page */
  constructor(page) {
    super(page, "Sessions");
    fill(this.element, el("div", { class: "page-head" }, this.heading, this.#count), this.#body);
  }

  async start() {
    try {
      const answer = await this.#read();
      if (!this.isStopped) this.page.follow(null, answer.events_cursor);
    } catch (error) {
      if (!this.isHandled(error)) this.showFailure(this.#body, error, () => this.page.restart());
    }
  }

  stop() {
    super.stop();
    this.#pace.stop();
  }

  event() {
    this.#pace.mark();
  }

  reopened() {
    this.#pace.resume();
  }

  /** @param {string} shown @param {string} order */
  #choose(shown, order) {
    this.#shown = shown;
    this.#order = order;
    this.#again();
  }

  #again() {
    this.#refresh().catch(() => this.#pace.mark());
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
      if (!this.isHandled(error)) throw error;
    }
  }

  /** Sorting and filtering need every session, up to a bound; otherwise as many as are shown are read. */
  async #read() {
    const isPlain = this.#order === "latest" && !this.#filter.value.trim();
    const wanted = isPlain ? this.#rows : MOST_ROWS;
    const hasLive = this.#shown !== "ended";
    const first = await api.sessions(hasLive ? Math.min(wanted, PAGE_ROWS) : 1);
    let [rows, hasMore, unreadable] = hasLive ? await readPages(api.sessions, first, wanted) : [[], false, []];
    if (!hasMore && this.#shown !== "live") {
      const missing = wanted - rows.length;
      // One is read to know whether there are any.
      const answer = await api.endedSessions(Math.max(1, Math.min(missing, PAGE_ROWS)));
      const [ended, hasMoreEnded, unreadableEnded] = await readPages(api.endedSessions, answer, missing);
      rows = [...rows, ...ended];
      unreadable = [...unreadable, ...unreadableEnded];
      hasMore = hasMoreEnded;
    }
    // More rows take longer to read, so they are read less often.
    this.#pace.intervalMs = INTERVAL_MS * Math.ceil(Math.max(this.#rows, rows.length) / PAGE_ROWS);
    this.#damage.hidden = !unreadable.length;
    setText(this.#damage, unreadable.length ? damageText(unreadable) : "");
    if (!this.isStopped) this.#show(first, distinct(rows), hasMore, wanted);
    return first;
  }

  /** @param {api.SessionList} answer @param {AnySession[]} all @param {boolean} hasMore @param {number} wanted */
  #show(answer, all, hasMore, wanted) {
    this.page.signedIn(answer.owner);
    const words = this.#filter.value.trim().toLowerCase();
    setText(this.#count, answer.total ? `${grouped(answer.total)} live` : "");
    if (!all.length && !words && this.#shown !== "ended" && !answer.total) return this.#showEmpty();
    if (this.#list.parentElement?.parentElement !== this.#body) fill(this.#body, ...this.#parts);
    const rows = sorted(
      all.filter((row) => !words || searched(row).includes(words)),
      this.#order,
    );
    reconcile(this.#list, rows, { key: (row) => row.session_id, create: createRow, update: updateRow });
    this.#table.hidden = !rows.length;
    this.#nothing.hidden = rows.length > 0;
    const isFull = hasMore && wanted >= MOST_ROWS;
    this.#more.hidden = !hasMore || isFull;
    this.#note.hidden = !isFull;
    setText(this.#more, moreText(answer.total - all.length));
    setText(
      this.#note,
      `These are the ${grouped(all.length)} sessions with the latest activity. Search covers the others too.`,
    );
  }

  #showEmpty() {
    if (this.#body.querySelector(".welcome")) return;
    fill(this.#body, welcome(this.page));
  }
}

/**
 * The wanted number of sessions from a first page on, whether there are more, and those whose logs cannot be read.
 *
 * @typedef {{ sessions: AnySession[], unreadable: string[], next_cursor: string | null }} SessionPage
 * @param {(limit: number, cursor: string) => Promise<SessionPage>} read @param {SessionPage} page
 * @param {number} wanted @returns {Promise<[AnySession[], boolean, string[]]>}
 */
async function readPages(read, page, wanted) {
  const rows = [...page.sessions];
  const unreadable = [...page.unreadable];
  while (page.next_cursor !== null && rows.length < wanted) {
    page = await read(Math.min(wanted - rows.length, PAGE_ROWS), page.next_cursor);
    rows.push(...page.sessions);
    unreadable.push(...page.unreadable);
  }
  return [rows.slice(0, Math.max(0, wanted)), page.next_cursor !== null || rows.length > wanted, unreadable];
}

/** @param {string[]} ids of sessions */
function damageText(ids) {
  const count = counted(ids.length, "session has a log", "sessions have logs");
  const named = ids.slice(0, MOST_NAMED).join(", ") + (ids.length > MOST_NAMED ? ", …" : "");
  return `${count} that cannot be read, so figures are missing here (run context store verify): ${named}`;
}

/** @param {number} count of live sessions that are not shown */
function moreText(count) {
  return count > 0 ? `Show more (${counted(count, "earlier session")})` : "Show more (ended sessions)";
}

/** A session that moved up while pages were read would come twice. @param {AnySession[]} rows */
function distinct(rows) {
  return [...new Map(rows.map((row) => [row.session_id, row])).values()];
}

/** @param {AnySession} row */
function searched(row) {
  return [row.project_path, row.name, row.host, row.model].join(" ").toLowerCase();
}

/** @param {AnySession[]} rows @param {string} order */
function sorted(rows, order) {
  // Dollars and tokens' worth cannot be compared: dollars come first, then tokens' worth, then unmeasured sessions.
  const saved = (/** @type {AnySession} */ row) => (row.savings ? costs(row.savings).difference : 0);
  const kind = (/** @type {AnySession} */ row) => (row.savings?.money ? 2 : row.savings ? 1 : 0);
  /** @type {Record<string, (a: AnySession, b: AnySession) => number>} */
  const orders = {
    project: (a, b) => (a.project_path ?? "").localeCompare(b.project_path ?? ""),
    context: (a, b) => (b.total_tokens ?? 0) - (a.total_tokens ?? 0),
    saved: (a, b) => kind(b) - kind(a) || saved(b) - saved(a),
  };
  return order in orders ? rows.toSorted(orders[order]) : byProject(rows);
}

/** Sessions by project, subagents below their parents; otherwise the order stays. @param {AnySession[]} rows */
function byProject(rows) {
  const parents = new Set(rows.flatMap((row) => (row.conversation && !row.agent ? [row.conversation] : [])));
  /** @type {Map<string, AnySession[]>} */
  const [projects, below] = [new Map(), new Map()];
  for (const row of rows) {
    const parent = row.agent && row.conversation && parents.has(row.conversation) ? row.conversation : null;
    const [groups, name] = parent === null ? [projects, row.project_path ?? ""] : [below, parent];
    groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  return [...projects.values()].flat().flatMap((row) => [row, ...(row.agent ? [] : (below.get(row.conversation) ?? []))]);
}

/** @param {AnySession} row */
function createRow(row) {
  return el(
    "li",
    { class: row.ended_at === undefined ? "session" : "session ended" },
    el(
      "div",
      { class: "session-name" },
      el("a", { class: "cover", href: sessionLink(row.session_id) }),
      el("span", { class: "tag", hidden: true }),
      el("div", { class: "path muted" }),
      el("div", { class: "session-host muted" }),
    ),
    el("div", { class: "session-usage" }, row.ended_at === undefined ? bar() : null, el("span", { class: "number" })),
    el("div", { class: "session-health" }),
    el("div", { class: "session-branch muted" }),
    el("div", { class: "session-saved number" }),
    el("div", { class: "session-time muted" }, el("time")),
  );
}

/** @param {HTMLElement} item @param {AnySession} row */
function updateRow(item, row) {
  const part = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (item.querySelector(selector));
  const path = row.project_path ?? "";
  item.classList.toggle("subagent", Boolean(row.agent));
  setText(part(".cover"), baseName(path) || row.session_id);
  const name = part(".tag");
  name.hidden = row.name === null;
  setText(name, row.name ?? "");
  setText(part(".path"), path);
  setAttribute(part(".path"), "title", path);
  // Sessions of the same project differ only in their ids.
  setText(part(".session-host"), [row.host, row.model, row.session_id.slice(0, SHORT_ID)].filter(Boolean).join(" · "));
  setText(part(".session-saved"), savedText(row.savings));
  part(".session-saved").classList.toggle("good", Boolean(row.savings && costs(row.savings).difference > 0));
  setTime(part("time"), row.last_at);
  if (row.ended_at === undefined) updateLive(part, row);
  else updateEnded(part, row);
}

/** @param {(selector: string) => HTMLElement} part @param {api.Session} row */
function updateLive(part, row) {
  const share = row.total_tokens / row.context_limit;
  setBar(part(".bar"), share);
  part(".bar").dataset.level = row.context_health.warning;
  const usage = `${grouped(row.total_tokens)} of ${grouped(row.context_limit)} · ${percent(share)}`;
  setText(part(".session-usage .number"), isEstimate(row) ? `${usage} if folded` : usage);
  part(".session-health").dataset.level = healthLevel(row);
  fill(part(".session-health"), healthChip(row));
  setText(part(".session-branch"), branchText(row));
}

/** @param {(selector: string) => HTMLElement} part @param {api.EndedSession} row */
function updateEnded(part, row) {
  setText(part(".session-usage .number"), row.total_tokens === null ? "" : counted(row.total_tokens, "token"));
  fill(part(".session-health"), el("span", { class: "chip" }, "ended"));
  const count = row.total_branches;
  setText(part(".session-branch"), count === null ? "" : counted(count, "branch", "branches"));
}

/** Without the proxy nothing was left out of a request, so the context is what folding would leave.
 * @param {api.Session} row */
function isEstimate(row) {
  return row.savings === null && row.folded_branches > 0;
}

/** @param {api.Sums | null} sums */
function savedText(sums) {
  if (!sums) return "not measured";
  const { amount, difference, unit } = costs(sums);
  const cost = unit ? `${amount} ${unit}` : amount;
  return difference < 0 ? `cost ${cost} more` : `saved ${cost}`;
}

/** @param {api.Session} row */
function branchText(row) {
  const all = counted(row.total_branches, "branch", "branches");
  if (row.active_branch_id === null) return row.total_branches ? `${all}, none open` : "no branches yet";
  return `${all}, ${row.branch_depth > 1 ? `${row.branch_depth} deep` : "one open"}`;
}
