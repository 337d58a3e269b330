// @ts-check
/**
 * The daemon's JSON API, and the token for it. The token is stored as long as the browser tab is open, and is sent
 * only to the daemon that served this page.
 *
 * @typedef {{ warning: "none" | "medium" | "high", main_thread_usage: number, failure_rate?: number }} Health
 * @typedef {{ session_id: string, project_path: string, name: string | null, conversation: string | null,
 *   agent: string | null, started_at: string, last_at: string,
 *   revision: number, host: string | null, model: string | null, savings: Sums | null, open_branch_operations: number,
 *   active_branch_id: string | null, branch_depth: number, branch_path: string[],
 *   total_tokens: number, main_thread_tokens: number, folded_tokens: number, folded_before_tokens: number,
 *   tokens_saved: number,
 *   host_tokens: number | null, context_tokens: number, left_out_results: number, left_out_tokens: number,
 *   context_limit: number, usage_percent: number, context_health: Health, health: string, operations: number,
 *   failed_operations: number, secrets_scrubbed: number,
 *   total_branches: number, active_branches: number, folded_branches: number, discarded_branches: number,
 *   ended_at?: string }} Session
 * @typedef {{ session_id: string, project_path: string | null, name: string | null, conversation: string | null,
 *   agent: string | null, last_at: string, ended_at: string,
 *   total_tokens: number | null, total_branches: number | null, folded_branches: number | null, host: string | null,
 *   model: string | null, savings: Sums | null }} EndedSession  null where an older version did not record it
 * @typedef {{ id: string, parent_id: string | null, depth: number, description: string,
 *   status: "active" | "folded" | "discarded", tokens: number, summary_tokens: number, tokens_saved: number,
 *   operations: number, failed_operations: number, secrets_scrubbed: number, created_at: string,
 *   closed_at: string | null }} Branch
 * @typedef {{ n: number, at: string, kind: "prompt" | "operation" | "child" | "summary" | "rollback", type?: string,
 *   source?: string, failed?: boolean, branch_id?: string, tokens: number, text: string, part?: boolean,
 *   undone?: boolean }} Entry
 * @typedef {{ n: number, at: string, total_tokens: number, main_thread_tokens: number }} Point
 * @typedef {{ currency: string, sent_micros: number, without_micros: number, saved_micros: number }} Money
 * @typedef {{ model: string, currency: string | null, input: string, output: string, cache_read: string,
 *   cache_write_5m: string, cache_write_1h: string, read_on: string | null, source: string | null }} ModelPrices
 * @typedef {{ requests: number, estimated_requests: number, extra_requests: number, warm_requests: number,
 *   tokens_sent: number, tokens_without: number, tokens_saved: number, output_tokens: number,
 *   output_tokens_without: number, cost_sent: number, cost_without: number, cost_saved: number,
 *   money: Money | null, outcome: "saved" | "cost_more" | "no_saving" }} Sums  of requests through the
 *   proxy; costs are in input tokens' worth
 * @typedef {Sums & { session_id: string, prices: ModelPrices[], results_dropped: number,
 *   failed_open: Record<string, number>,
 *   folds: { branch_id: string, description: string, tokens_dropped: number, requests: number, cost_saved: number }[],
 *   costly_folds: string[], points: { n: number, at: string, sent: number, without: number }[],
 *   verdict: string }} Savings
 * @typedef {{ misses: number, tokens_lost: number, cost: number, micros: number | null }} MissSums
 * @typedef {{ session_id: string, requests: number, total: MissSums, causes: (MissSums & { cause: string })[],
 *   misses: { n: number, at: string, model: string, cause: string, whose: string, is_bug: boolean, why: string,
 *   message: number | null, tokens_sent: number, tokens_read: number, tokens_lost: number, cost: number,
 *   micros: number | null }[] }} Misses
 * @typedef {{ by: string, groups: (Sums & { day?: string, project?: string, model?: string })[],
 *   total: Sums & { verdict: string } }} Totals
 * @typedef {{ session_id: string, project_path: string, name: string | null }} SessionName
 * @typedef {{ sessions: (SessionName & { last_at: string, host: string | null })[],
 *   branches: (SessionName & { branch_id: string, description: string, status: Branch["status"] })[],
 *   summaries: Summary[] }} SearchResult
 * @typedef {{ term: string, in: string[], score: number }[]} Why
 * @typedef {{ id: string, kind: "fold" | "result", at: string, project_path: string | null, session_id: string | null,
 *   description: string, summary: string | null, tokens: number, score: number, why: Why }} RecalledFold
 * @typedef {{ heading: string[], lines: [number, number], tokens: number, score: number, content: string,
 *   why: Why }} Section
 * @typedef {{ id: string, title: string, score: number, sections: Section[],
 *   left_out: { heading: string[], tokens: number, reason: string }[] }} AnsweredDocument
 * @typedef {{ documents: AnsweredDocument[], selection: { query: string, unmatched: string[], budget: number,
 *   tokens_used: number, counter: string, documents_considered: number, sections_matched: number,
 *   sections_selected: number, sections_left_out: number, query_cut: boolean,
 *   caches_left_out?: { cache: string, reason: string }[] } }} Answer
 * @typedef {{ project_path: string, session_id: string, branch_id: string, description: string, summary: string,
 *   tokens_folded: number, folded_at: string, live?: boolean }} Summary
 * @typedef {{ owner: string, sessions: Session[], unreadable: string[], total: number, next_cursor: string | null,
 *   events_cursor: string }} SessionList
 * @typedef {{ session: Session, open_branches: Branch[], branches: Branch[], first_row: number, total_rows: number,
 *   counter: string, events_cursor: string }} SessionTree
 * @typedef {{ branch: Branch | null, summary: string | null, entries: Entry[], tokens: number,
 *   next_cursor: string | null }} Trajectory
 * @typedef {{ rolled_back_to: string, branches_discarded: Branch[], total_discarded: number,
 *   reopened: Branch[], tokens_recovered: number, total_tokens_after: number }} Preview  with the first
 *   of the branches that are discarded
 */

const TOKEN_KEY = "contextfold.token";
const TIMEOUT_MS = 30_000;
const UNAUTHORIZED = 401;
const NOT_FOUND = 404;

/** An error response of the daemon: `message` for people, `kind` for programs. */
export class ApiError extends Error {
  /** @param {number} status @param {string} kind @param {string} message */
  constructor(status, kind, message) {
    super(message);
    this.status = status;
    this.kind = kind;
  }

  get isUnauthorized() {
    return this.status === UNAUTHORIZED;
  }
}

/** Whether what was asked for is not there. @param {unknown} error */
export function isGone(error) {
  return error instanceof ApiError && error.status === NOT_FOUND;
}

/** @returns {string | null} */
export function token() {
  return sessionStorage.getItem(TOKEN_KEY);
}

/** @param {string | null} value */
export function storeToken(value) {
  if (value === null) sessionStorage.removeItem(TOKEN_KEY);
  else sessionStorage.setItem(TOKEN_KEY, value);
}

/** @returns {Record<string, string>} */
function authorization() {
  const value = token();
  return value === null ? {} : { Authorization: `Bearer ${value}` };
}

/**
 * @param {string} path
 * @param {RequestInit} [options]
 * @returns {Promise<Response>} a response that is not an error
 */
export async function request(path, options = {}) {
  const headers = { ...authorization(), ...options.headers };
  const common = { cache: /** @type {"no-store"} */ ("no-store"), credentials: /** @type {"omit"} */ ("omit") };
  const response = await fetch(path, { ...common, redirect: "error", ...options, headers });
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** @param {Response} response */
async function errorOf(response) {
  let error;
  try {
    error = (await response.json()).error;
  } catch {
    // The response comes from something between the daemon and the page.
    error = null;
  }
  const kind = error?.data?.kind ?? error?.code ?? "unknown";
  return new ApiError(response.status, String(kind), error?.message ?? `The daemon answered ${response.status}.`);
}

/**
 * @param {string} path
 * @param {Record<string, string | number | boolean | null>} [query]
 * @param {RequestInit} [options]
 */
async function json(path, query = {}, options = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null);
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  const response = await request(given.length ? `${path}?${search}` : path, {
    signal: AbortSignal.timeout(TIMEOUT_MS),
    ...options,
  });
  return response.json();
}

/** @param {string} path @param {object} body */
function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return json(path, {}, { method: "POST", headers, body: JSON.stringify(body) });
}

/** @param {string} id @param {string} [rest] */
function sessionPath(id, rest = "") {
  return `/v1/sessions/${encodeURIComponent(id)}${rest}`;
}

/** @param {number} limit @param {string | null} [cursor] @returns {Promise<SessionList>} */
export function sessions(limit, cursor = null) {
  return json("/v1/sessions", { limit, cursor });
}

/** @param {string} id @param {number} limit @param {number | null} before @returns {Promise<SessionTree>} */
export function session(id, limit, before) {
  return json(sessionPath(id), { limit, before });
}

/** @param {string} id @returns {Promise<{ context_limit: number, points: Point[] }>} */
export function timeline(id) {
  return json(sessionPath(id, "/timeline"));
}

/** @param {string} id @returns {Promise<Savings>} */
export function savings(id) {
  return json(sessionPath(id, "/savings"));
}

/** @param {string} id @returns {Promise<Misses>} */
export function misses(id) {
  return json(sessionPath(id, "/misses"));
}

/**
 * @param {string} id @param {string | null} branchId null: the main thread
 * @param {number} budget @param {string | null} cursor
 * @returns {Promise<Trajectory>}
 */
export function trajectory(id, branchId, budget, cursor) {
  return json(sessionPath(id, "/trajectory"), { branch_id: branchId, budget, cursor });
}

/** @param {string} id @param {string} branchId @param {boolean} restoreState @returns {Promise<Preview>} */
export function rollbackPreview(id, branchId, restoreState) {
  return json(sessionPath(id, "/rollback"), { branch_id: branchId, restore_state: restoreState });
}

/** @param {string} id @param {string} branchId @param {boolean} restoreState
 * @returns {Promise<{ branches_discarded: string[], tokens_recovered: number }>} */
export function rollback(id, branchId, restoreState) {
  return post(sessionPath(id, "/rollback"), { branch_id: branchId, restore_state: restoreState });
}

/** @param {number} limit @param {string | null} [cursor]
 * @returns {Promise<{ sessions: EndedSession[], unreadable: string[], next_cursor: string | null }>} */
export function endedSessions(limit, cursor = null) {
  return json("/v1/sessions", { ended: true, limit, cursor });
}

/** @param {"day" | "project"} by @returns {Promise<Totals>} */
export function totals(by) {
  return json("/v1/savings", { by });
}

/** @param {string} query @param {number} limit of each kind @returns {Promise<SearchResult>} */
export function search(query, limit) {
  return json("/v1/search", { query, limit });
}

/** Folds and left-out results that have any word of a query, best first. @param {string} query @param {number} budget
 * @returns {Promise<{ folds: RecalledFold[] }>} */
export function recall(query, budget) {
  return post("/v1/recall", { query, budget });
}

/** Create a scripted session to look around in. @returns {Promise<{ session_id: string }>} */
export function demo() {
  return post("/v1/demo", {});
}

/** @returns {Promise<{ caches: { path: string, has_manifest: boolean }[] }>} */
export function caches() {
  return json("/v1/caches");
}

/** @param {string} query @param {number} budget @param {string | null} cache null: all of them
 * @returns {Promise<Answer>} */
export function askCaches(query, budget, cache) {
  return post("/v1/ask", { query, budget, ...(cache === null ? {} : { cache }) });
}
