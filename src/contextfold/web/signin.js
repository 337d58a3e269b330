// @ts-check
/** The form that asks for a token, where the daemon wants one. Tries it before it is kept. */

import * as api from "./api.js";
import { el, setText } from "./dom.js";

export class SignInView {
  title = "Sign in";
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

  /** @param {import("./app.js").Surroundings} around @param {string} problem */
  constructor(around, problem) {
    this.around = around;
    this.heading = el("h1", { tabindex: "-1" }, "Sign in");
    setText(this.#problem, problem);
    this.element = el(
      "section",
      { class: "page narrow" },
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
          "This daemon asks who you are. Who runs it makes a token with ",
          el("code", {}, "context token NAME"),
          ". It is kept in this tab alone and forgotten when the tab is closed.",
        ),
        this.#button,
      ),
    );
  }

  async start() {
    this.#input.focus();
  }

  stop() {}

  event() {}

  reopened() {}

  /** @param {Event} event */
  async #submit(event) {
    event.preventDefault();
    const value = this.#input.value.trim();
    if (!value) return this.#refuse("Enter a token.");
    const canBeSent = /^[\x21-\x7e]+$/.test(value); // in a header
    if (!canBeSent) return this.#refuse("That is no token of this daemon.");
    this.#button.disabled = true;
    setText(this.#problem, ""); // what was said of the token before is not said of this one
    api.keepToken(value);
    try {
      const answer = await api.sessions(1);
      this.around.signedIn(answer.owner);
      this.around.restart();
    } catch (error) {
      api.keepToken(null);
      const isWrong = error instanceof api.ApiError && error.isUnauthorized;
      this.#refuse(isWrong ? "That is no token of this daemon." : "The daemon does not answer. Try again.");
    }
  }

  /** @param {string} problem */
  #refuse(problem) {
    setText(this.#problem, "");
    setText(this.#problem, problem);
    this.#button.disabled = false;
    this.#input.setAttribute("aria-invalid", "true");
    this.#input.select();
  }
}
