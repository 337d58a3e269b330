// @ts-check
/** The dialog that asks before a rollback: it says exactly what would be discarded, and cancelling is the default. */

import * as api from "./api.js";
import { byId, el, fill } from "./dom.js";
import { counted, grouped } from "./format.js";
import { messageOf, statusChip } from "./pieces.js";

const NAMED_BRANCHES = 8; // more of them are counted

export class RollbackDialog {
  /** @type {HTMLDialogElement} */
  #dialog = byId("rollback");
  #effect = byId("rollback-effect");
  #confirm = byId("rollback-confirm");
  /** @type {{ sessionId: string, branch: api.Branch, total: number } | null} */
  #asked = null;
  #turn = 0; // answers to earlier questions are dropped
  #told = ""; // said once, however often it is asked: it is read out

  /** @param {{ onDone: (message: string) => void, onFailed: (error: unknown) => boolean }} listeners */
  constructor(listeners) {
    this.listeners = listeners;
    for (const choice of this.#choices) choice.addEventListener("change", () => this.#ask());
    this.#confirm.addEventListener("click", () => this.#roll());
    this.#dialog.addEventListener("close", () => {
      this.#asked = null;
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
    this.#asked = { sessionId, branch, total };
    byId("rollback-title").textContent = `Roll back to “${branch.description}”?`;
    this.#choices[0].checked = true;
    this.#told = "";
    fill(this.#effect);
    this.#dialog.showModal();
    byId("rollback-cancel").focus();
    this.#ask();
  }

  close() {
    if (this.#dialog.open) this.#dialog.close();
  }

  /** The session went on: what would happen may be something else now. @param {number} total */
  refresh(total) {
    if (!this.#asked) return;
    this.#asked.total = total;
    this.#look();
  }

  /** Another question: nothing can be confirmed before it is answered. */
  #ask() {
    this.#confirm.disabled = true;
    this.#effect.setAttribute("aria-busy", "true");
    this.#look();
  }

  async #look() {
    const asked = this.#asked;
    if (!asked) return;
    const turn = (this.#turn += 1);
    try {
      const preview = await api.rollbackPreview(asked.sessionId, asked.branch.id, this.#restoresState);
      if (turn !== this.#turn || asked !== this.#asked) return;
      this.#tell(preview, asked.total);
      this.#confirm.disabled = false;
    } catch (error) {
      if (turn === this.#turn) this.#refused(error);
    }
    this.#effect.setAttribute("aria-busy", "false");
  }

  /** @param {api.Preview} preview @param {number} total */
  #tell(preview, total) {
    const written = JSON.stringify([preview, total]);
    if (written !== this.#told) fill(this.#effect, ...told(preview, total));
    this.#told = written;
  }

  async #roll() {
    if (!this.#asked) return;
    const { sessionId, branch } = this.#asked;
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
      this.#refused(error);
    }
  }

  /** @param {unknown} error */
  #refused(error) {
    if (this.listeners.onFailed(error)) return this.close();
    this.#told = "";
    this.#confirm.disabled = true;
    fill(this.#effect, el("p", { class: "bad" }, messageOf(error)));
  }
}

/** @param {api.Preview} preview @param {number} total */
function told(preview, total) {
  const { branches_discarded: discarded, total_discarded: count, reopened } = preview;
  return [
    el(
      "p",
      { class: "number" },
      "In context: ",
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
    el("p", { class: "muted" }, "Nothing is erased: discarded branches stay in the tree and can be read."),
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
