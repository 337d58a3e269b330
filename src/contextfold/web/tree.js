// @ts-check
/**
 * A session's branches as a tree for pointer and keyboard.
 *
 * The rows are a flat list in depth-first order, each with its level, as the daemon returns them. So a part of them can
 * be shown. Knows rows, focus and keys; its user reads the data and handles a selection.
 */

import { el, reconcile, setAttribute, setText } from "./dom.js";
import { duration, grouped } from "./format.js";
import { bar, icon, setBar, STATUS_WORDS } from "./pieces.js";
import { MAIN } from "./routes.js";

// A scroll position this near to the end stays at the end when rows are added.
const AT_END_PX = 32;
const DEEPEST_INDENT = 10;

/**
 * @typedef {import("./api.js").Branch} Branch
 * @typedef {{ id: string, description: string, status: string, tokens: number, failed_operations: number,
 *   secrets_scrubbed: number, parentId: string | null, level: number, result: string, time: string, isHere: boolean,
 *   isAfterGap: boolean, share: number, expanded: boolean | null }} Row  a branch or the main thread
 */

export class Tree {
  /** @type {Row[]} the visible rows */
  #rows = [];
  /** @type {import("./api.js").SessionTree | null} */
  #shown = null;
  /** @type {Set<string>} */
  #collapsed = new Set();
  /** @type {string | null} */
  #selected = null;
  // The row that Tab reaches.
  #current = MAIN;
  #isFirst = true;
  #list = el("div", {
    class: "tree",
    role: "tree",
    "aria-label": "Branches",
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event),
    onclick: (/** @type {MouseEvent} */ event) => this.#click(event),
  });

  /** @param {(id: string) => void} onSelect */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.element = el("div", { class: "tree-scroll" }, this.#list);
  }

  /** @param {import("./api.js").SessionTree} tree */
  show(tree) {
    const box = this.element;
    const isAtEnd = this.#isFirst || box.scrollHeight - box.scrollTop - box.clientHeight < AT_END_PX;
    this.#shown = tree;
    const all = rowsOf(tree, this.#collapsed);
    const known = new Set(all.map((row) => row.id));
    for (const id of this.#collapsed) if (!known.has(id)) this.#collapsed.delete(id);
    this.#rows = visible(all, this.#collapsed);
    reconcile(this.#list, this.#rows, { key: (row) => row.id, create: createRow, update: updateRow });
    if (!this.#rows.some((row) => row.id === this.#current))
      this.#current = this.#selected !== null && known.has(this.#selected) ? this.#selected : MAIN;
    this.#mark();
    if (isAtEnd) box.scrollTop = box.scrollHeight;
    this.#isFirst = false;
  }

  /** @param {string | null} id */
  select(id) {
    this.#selected = id;
    if (id !== null && this.#rows.some((row) => row.id === id)) this.#current = id;
    this.#mark();
  }

  /** Focus the current row. */
  focus() {
    this.#element(this.#current)?.focus();
  }

  /** @param {string} id @returns {HTMLElement | null} */
  #element(id) {
    return this.#list.querySelector(`[data-key="${CSS.escape(id)}"]`);
  }

  #mark() {
    for (const row of this.#list.children) {
      const id = /** @type {HTMLElement} */ (row).dataset.key;
      setAttribute(row, "aria-selected", String(id === this.#selected));
      setAttribute(row, "tabindex", id === this.#current ? "0" : "-1");
    }
  }

  /** @param {string | undefined} id */
  #go(id) {
    if (id === undefined) return;
    this.#current = id;
    this.#mark();
    this.focus();
  }

  /** @param {string} id @param {boolean} isOpen */
  #expand(id, isOpen) {
    if (isOpen) this.#collapsed.delete(id);
    else this.#collapsed.add(id);
    this.#current = id;
    if (this.#shown) this.show(this.#shown);
  }

  /** @param {MouseEvent} event */
  #click(event) {
    const target = /** @type {Element} */ (event.target);
    const row = /** @type {HTMLElement | null} */ (target.closest("[role=treeitem]"));
    const id = row?.dataset.key;
    if (!row || id === undefined) return;
    this.#go(id);
    if (target.closest(".twist") && row.hasAttribute("aria-expanded"))
      this.#expand(id, row.getAttribute("aria-expanded") === "false");
    else this.onSelect(id);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const at = this.#rows.findIndex((row) => row.id === this.#current);
    const row = this.#rows[at];
    if (!row) return;
    const next = this.#rows[at + 1];
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => this.#go(next?.id),
      ArrowUp: () => this.#go(this.#rows[at - 1]?.id),
      Home: () => this.#go(this.#rows[0].id),
      End: () => this.#go(this.#rows.at(-1)?.id),
      ArrowRight: () => {
        if (row.expanded === false) this.#expand(row.id, true);
        else if (row.expanded && next) this.#go(next.id);
      },
      ArrowLeft: () => {
        if (row.expanded) this.#expand(row.id, false);
        else if (row.id !== MAIN) this.#go(this.#rows.slice(0, at).findLast((above) => above.level < row.level)?.id);
      },
      Enter: () => this.onSelect(row.id),
      " ": () => this.onSelect(row.id),
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }
}

/** @param {import("./api.js").SessionTree} tree @param {Set<string>} collapsed @returns {Row[]} */
function rowsOf({ session, open_branches, branches, first_row }, collapsed) {
  const inWindow = new Set(branches.map((branch) => branch.id));
  // The open branches are shown wherever the window is.
  const apart = open_branches.filter((branch) => !inWindow.has(branch.id));
  const begin = branches[0]?.created_at ?? "";
  const above = apart.filter((branch) => branch.created_at <= begin);
  const below = apart.filter((branch) => branch.created_at > begin);
  const shown = [...above, ...branches, ...below];
  const parents = new Set(shown.map((branch) => branch.parent_id ?? MAIN));
  const most = Math.max(1, session.main_thread_tokens, ...shown.map((branch) => branch.tokens));
  const main = {
    id: MAIN,
    parent_id: null,
    depth: -1,
    description: "Main thread",
    status: "main",
    tokens: session.main_thread_tokens,
    summary_tokens: 0,
    failed_operations: 0,
    secrets_scrubbed: 0,
    created_at: session.started_at,
    closed_at: session.last_at,
  };
  const hereId = session.active_branch_id ?? (session.ended_at ? null : MAIN);
  return [main, ...shown].map((branch, index) => ({
    ...branch,
    parentId: branch === main ? null : (branch.parent_id ?? MAIN),
    level: branch.depth + 2,
    result: resultOf(branch),
    time: duration(branch.created_at, branch.closed_at ?? session.last_at),
    isHere: branch.id === hereId,
    isAfterGap: index === above.length + 1 ? first_row > 0 : index === above.length + branches.length + 1,
    share: branch.tokens / most,
    expanded: parents.has(branch.id) ? !collapsed.has(branch.id) : null,
  }));
}

/** @param {{ status: string, summary_tokens: number }} branch */
function resultOf({ status, summary_tokens }) {
  if (status === "main") return "";
  return status === "folded" ? `summary ${grouped(summary_tokens)}` : STATUS_WORDS[status];
}

/** The rows that are not below a collapsed one. @param {Row[]} rows @param {Set<string>} collapsed */
function visible(rows, collapsed) {
  const hidden = new Set();
  return rows.filter((row) => {
    const isHidden = row.parentId !== null && (hidden.has(row.parentId) || collapsed.has(row.parentId));
    if (isHidden) hidden.add(row.id);
    return !isHidden;
  });
}

function createRow() {
  return el(
    "div",
    { class: "row", role: "treeitem" },
    el(
      "span",
      { class: "row-name" },
      el("span", { class: "indent" }),
      el("span", { class: "twist" }),
      el("span", { class: "state" }),
      el("span", { class: "description" }),
      el("span", { class: "marks" }),
    ),
    el(
      "span",
      { class: "row-size" },
      bar(),
      el("span", { class: "number tokens" }),
      el("span", { class: "unseen" }, " tokens "),
    ),
    el("span", { class: "row-result number" }),
    el("span", { class: "row-time number", title: "From its first event to its last" }),
  );
}

/** @param {HTMLElement} item @param {Row} row */
function updateRow(item, row) {
  const part = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (item.querySelector(selector));
  setAttribute(item, "aria-level", String(row.level));
  setAttribute(item, "aria-expanded", row.expanded === null ? null : String(row.expanded));
  item.dataset.status = row.status;
  item.classList.toggle("here", row.isHere);
  item.classList.toggle("after-gap", row.isAfterGap);
  item.style.setProperty("--level", String(Math.min(row.level - 1, DEEPEST_INDENT)));
  part(".twist").replaceChildren(...(row.expanded === null ? [] : [icon("chevron")]));
  part(".state").replaceChildren(
    icon(/** @type {"main"} */ (row.status)),
    el("span", { class: "unseen" }, `${STATUS_WORDS[row.status]}: `),
  );
  setText(part(".description"), row.description);
  setAttribute(part(".description"), "title", row.description);
  part(".marks").replaceChildren(...marks(row));
  setBar(part(".bar"), row.share);
  setText(part(".tokens"), grouped(row.tokens));
  setText(part(".row-result"), row.result);
  setText(part(".row-time"), row.time);
}

/** @param {Row} row */
function marks({ isHere, failed_operations: failed, secrets_scrubbed: redactions }) {
  return [
    isHere ? el("span", { class: "chip here-chip" }, "agent is here") : null,
    failed ? el("span", { class: "chip failed-chip" }, `${grouped(failed)} failed`) : null,
    redactions ? el("span", { class: "chip" }, `${grouped(redactions)} redacted`) : null,
  ].filter((mark) => mark !== null);
}
