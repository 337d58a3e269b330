// @ts-check
/** The form for a token, where the daemon requires one. The token is tried before it is stored. */

import * as api from "./api.js";
import { el, fill, setText } from "./dom.js";
import { View } from "./view.js";

export class SignInView extends View {
  #problem = el("p", { class: "bad", role: "alert", id: "token-problem" });
  #input = /** @type {HTMLInputElement} */ (
    el("input", {
      id: "token",
      type: "password",
      autocomplete: "current-password",
      spellcheck: "false",
      required: true,
      "aria-describedby": "token-problem token-help",
    })
  );
  #button = /** @type {HTMLButtonElement} */ (el("button", { type: "submit", class: "primary" }, "Sign in"));

  /** @param {import("./app.js").Page} page @param {string} problem */
  constructor(page, problem) {
    super(page, "Sign in");
    setText(this.#problem, problem);
    this.element.classList.add("narrow");
    fill(
      this.element,
      el(
        "form",
        { class: "card sign-in", onsubmit: (/** @type {Event} */ event) => this.#submit(event) },
        this.heading,
        el("label", { for: "token" }, "Token"),
        this.#input,
        this.#problem,
        el(
          "p",
          { class: "muted", id: "token-help" },
          "This daemon requires a token. Its operator creates one with ",
          el("code", {}, "context token NAME"),
          ". It is stored in this tab only and deleted when the tab is closed.",
        ),
        this.#button,
      ),
    );
  }

  async start() {
    this.#input.focus();
  }

  /** @param {Event} event */
  async #submit(event) {
    event.preventDefault();
    const value = this.#input.value.trim();
    if (!value) return this.#reject("Enter a token.");
    // A header can have these characters only.
    const canBeSent = /^[\x21-\x7e]+$/.test(value);
    if (!canBeSent) return this.#reject("This token is not valid here.");
    this.#button.disabled = true;
    setText(this.#problem, "");
    api.storeToken(value);
    try {
      const answer = await api.sessions(1);
      this.page.signedIn(answer.owner);
      this.page.restart();
    } catch (error) {
      api.storeToken(null);
      const isWrong = error instanceof api.ApiError && error.isUnauthorized;
      this.#reject(isWrong ? "This token is not valid here." : "The daemon does not answer. Try again.");
    }
  }

  /** @param {string} problem */
  #reject(problem) {
    setText(this.#problem, "");
    setText(this.#problem, problem);
    this.#button.disabled = false;
    this.#input.setAttribute("aria-invalid", "true");
    this.#input.select();
  }
}
