// @ts-check
/**
 * The daemon's JSON API, and the token that opens it. The token lives as long as the browser tab and is sent nowhere
 * but to the daemon this page came from.
 *
 * @typedef {{ warning: "none" | "medium" | "high", main_thread_usage: number, suggestion?: string,
 *   failure_rate?: number }} Health
 * @typedef {{ session_id: string, project_path: string, name: string | null, started_at: string, last_at: string,
 *   revision: number, active_branch_id: string | null, branch_depth: number, branch_path: string[],
 *   total_tokens: number, main_thread_tokens: number, folded_tokens: number, tokens_saved: number,
 *   context_limit: number, usage_percent: number, context_health: Health, operations: number,
 *   failed_operations: number, secrets_scrubbed: number,
 *   total_branches: number, active_branches: number, folded_branches: number, discarded_branches: number }} Session
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
 *   cache_write_5m: string, cache_write_1h: string }} ModelPrices
 * @typedef {{ session_id: string, prices: ModelPrices[],
 *   requests: number, estimated_requests: number, extra_requests: number, tokens_sent: number, tokens_without: number,
 *   tokens_saved: number, output_tokens: number, output_tokens_without: number, cost_sent: number,
 *   cost_without: number, cost_saved: number, money: Money | null, results_dropped: number,
 *   failed_open: Record<string, number>,
 *   folds: { branch_id: string, description: string, tokens_dropped: number, requests: number, cost_saved: number }[],
 *   costly_folds: string[], points: { n: number, at: string, sent: number, without: number }[],
 *   verdict: string }} Savings  costs are in input tokens' worth
 * @typedef {{ project_path: string, session_id: string, branch_id: string, description: string, summary: string,
 *   tokens_folded: number, folded_at: string, live?: boolean }} Summary
 * @typedef {{ owner: string, sessions: Session[], total: number, next_cursor: string | null,
 *   events_cursor: string }} SessionList
 * @typedef {{ session: Session, open_branches: Branch[], branches: Branch[], first_row: number, total_rows: number,
 *   counter: string, events_cursor: string }} SessionTree
 * @typedef {{ branch: Branch | null, entries: Entry[], tokens: number, next_cursor: string | null }} Trajectory
 * @typedef {{ rolled_back_to: string, branches_discarded: Branch[], total_discarded: number,
 *   reopened: Branch[], tokens_recovered: number, total_tokens_after: number }} Preview  the first of those discarded
 */

const TOKEN_KEY = "contextfold.token";
const TIMEOUT_MS = 30_000;
const UNAUTHORIZED = 401;

/** A refusal by the daemon: `message` for people, `kind` for programs. */
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

/** @returns {string | null} */
export function token() {
  return sessionStorage.getItem(TOKEN_KEY);
}

/** @param {string | null} value */
export function keepToken(value) {
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
 * @returns {Promise<Response>} an answer that is no refusal
 */
export async function ask(path, options = {}) {
  const headers = { ...authorization(), ...options.headers };
  const answer = await fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options, headers });
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

/** @param {Response} answer */
async function refusal(answer) {
  let error;
  try {
    error = (await answer.json()).error;
  } catch {
    error = null; // something between the daemon and us
  }
  return new ApiError(
    answer.status,
    error?.data?.kind ?? "unknown",
    error?.message ?? `The daemon answered ${answer.status}.`,
  );
}

/**
 * @param {string} path
 * @param {Record<string, string | number | boolean | null>} [query]
 * @param {RequestInit} [options]
 */
async function json(path, query = {}, options = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null);
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  const answer = await ask(given.length ? `${path}?${search}` : path, {
    signal: AbortSignal.timeout(TIMEOUT_MS),
    ...options,
  });
  return answer.json();
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
  return json(
    sessionPath(id, "/rollback"),
    {},
    {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ branch_id: branchId, restore_state: restoreState }),
    },
  );
}

/** @param {string} query @param {number} limit @returns {Promise<{ summaries: Summary[] }>} */
export function summaries(query, limit) {
  return json("/v1/summaries", { query, limit });
}
