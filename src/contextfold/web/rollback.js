// @ts-check
/** The dialog before a rollback: it shows what would be discarded, and cancelling is the default. */

import * as api from "./api.js";
import { byId, el, fill, setText } from "./dom.js";
import { counted, grouped } from "./format.js";
import { messageOf, statusChip } from "./pieces.js";

// At most this many branches are named, the others are counted.
const NAMED_BRANCHES = 8;

export class RollbackDialog {
  /** @type {HTMLDialogElement} */
  #dialog = byId("rollback");
  #effect = byId("rollback-effect");
  #confirm = byId("rollback-confirm");
  /** @type {{ sessionId: string, branch: api.Branch, total: number } | null} */
  #target = null;
  // Responses to earlier previews are ignored.
  #turn = 0;
  // The preview that is shown, so that an equal one is not read out again.
  #shown = "";

  /** @param {{ onDone: (message: string) => void, onFailed: (error: unknown) => boolean }} listeners */
  constructor(listeners) {
    this.listeners = listeners;
    for (const choice of this.#choices) choice.addEventListener("change", () => this.#choose());
    this.#confirm.addEventListener("click", () => this.#roll());
    this.#dialog.addEventListener("close", () => {
      this.#target = null;
    });
  }

  /** @returns {HTMLInputElement[]} */
  get #choices() {
    return Array.from(this.#dialog.querySelectorAll("input[name=restore]"));
  }

  get #restoresState() {
    return this.#choices.some((choice) => choice.checked && choice.value === "true");
  }

  /** @param {string} sessionId @param {api.Branch} branch @param {number} total tokens in context now */
  open(sessionId, branch, total) {
    this.#target = { sessionId, branch, total };
    setText(byId("rollback-title"), `Roll back to “${branch.description}”?`);
    this.#choices[0].checked = true;
    this.#shown = "";
    fill(this.#effect);
    this.#dialog.showModal();
    byId("rollback-cancel").focus();
    this.#choose();
  }

  close() {
    if (this.#dialog.open) this.#dialog.close();
  }

  /** The session has changed, so the preview is read again. @param {number} total */
  refresh(total) {
    if (!this.#target) return;
    this.#target.total = total;
    this.#readPreview();
  }

  /** Another choice: nothing can be confirmed before its preview is shown. */
  #choose() {
    this.#confirm.disabled = true;
    this.#effect.setAttribute("aria-busy", "true");
    this.#readPreview();
  }

  async #readPreview() {
    const target = this.#target;
    if (!target) return;
    const turn = (this.#turn += 1);
    try {
      const preview = await api.rollbackPreview(target.sessionId, target.branch.id, this.#restoresState);
      if (turn !== this.#turn || target !== this.#target) return;
      this.#showPreview(preview, target.total);
      this.#confirm.disabled = false;
    } catch (error) {
      if (turn === this.#turn) this.#showError(error);
    }
    this.#effect.setAttribute("aria-busy", "false");
  }

  /** @param {api.Preview} preview @param {number} total */
  #showPreview(preview, total) {
    const written = JSON.stringify([preview, total]);
    if (written !== this.#shown) fill(this.#effect, ...previewParts(preview, total));
    this.#shown = written;
  }

  async #roll() {
    if (!this.#target) return;
    const { sessionId, branch } = this.#target;
    this.#confirm.disabled = true;
    try {
      const done = await api.rollback(sessionId, branch.id, this.#restoresState);
      this.close();
      const discarded = counted(done.branches_discarded.length, "branch", "branches");
      this.listeners.onDone(
        `Rolled back to “${branch.description}”: ${discarded} discarded, ` +
          `${grouped(done.tokens_recovered)} tokens recovered.`,
      );
    } catch (error) {
      this.#showError(error);
    }
  }

  /** @param {unknown} error */
  #showError(error) {
    if (this.listeners.onFailed(error)) return this.close();
    this.#shown = "";
    this.#confirm.disabled = true;
    fill(this.#effect, el("p", { class: "bad" }, messageOf(error)));
  }
}

/** @param {api.Preview} preview @param {number} total */
function previewParts(preview, total) {
  const { branches_discarded: discarded, total_discarded: count, reopened } = preview;
  return [
    el(
      "p",
      { class: "number" },
      "Counted: ",
      el("b", {}, `${grouped(total)} → ${grouped(preview.total_tokens_after)}`),
      preview.total_tokens_after > total
        ? " tokens: what was folded comes back."
        : ` tokens, ${grouped(preview.tokens_recovered)} recovered.`,
    ),
    ...(reopened.length
      ? [
          el(
            "p",
            {},
            `${counted(reopened.length, "folded branch", "folded branches")} will be open again, `,
            reopened.length === 1 ? "its summary leaves the context:" : "their summaries leave the context:",
          ),
          named(reopened, reopened.length),
        ]
      : []),
    el(
      "p",
      {},
      count ? `${counted(count, "branch", "branches")} will be discarded:` : "No branch will be discarded.",
    ),
    count ? named(discarded, count) : null,
    el("p", { class: "muted" }, "Nothing is deleted: discarded branches stay in the tree and can be read."),
  ];
}

/** @param {api.Branch[]} branches as they are now, the first of them @param {number} count of all */
function named(branches, count) {
  const more = count - Math.min(branches.length, NAMED_BRANCHES);
  return el(
    "ul",
    {},
    ...branches
      .slice(0, NAMED_BRANCHES)
      .map((branch) =>
        el(
          "li",
          {},
          statusChip(branch.status),
          " ",
          branch.description,
          el("span", { class: "muted number" }, ` ${grouped(branch.tokens)} tokens`),
        ),
      ),
    more > 0 ? el("li", { class: "muted" }, `and ${grouped(more)} more`) : null,
  );
}
