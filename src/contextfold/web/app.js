// @ts-check
/**
 * The page: which view is shown, who is signed in, whether the daemon can be heard.
 *
 * Views read what they show; events only tell them that something changed. While the tab is in the background nothing
 * is read and no connection is held.
 *
 * @typedef {{ title: string, element: HTMLElement, heading: HTMLElement, start: () => Promise<void>, stop: () => void,
 *   event: (event: Record<string, any>) => void, reopened: () => void }} View
 */

import * as api from "./api.js";
import { byId, fill, setText } from "./dom.js";
import { refreshTimes } from "./format.js";
import { RollbackDialog } from "./rollback.js";
import { parseRoute, searchLink } from "./routes.js";
import { SearchView } from "./search.js";
import { SessionView } from "./session.js";
import { SessionsView } from "./sessions.js";
import { SignInView } from "./signin.js";
import { EventStream } from "./stream.js";

const TIMES_MS = 10_000; // how often relative times catch up
const TYPING_MS = 250; // a pause after which a search begins
const SAID_MS = 8000;

const CONNECTION_WORDS = {
  idle: "",
  connecting: "",
  live: "live",
  lost: "connection lost, trying again",
  behind: "not up to date, trying again",
};

/** What a view may use of the page around it. */
export class Surroundings {
  /** @type {View | null} */
  #view = null;
  #isFirst = true;
  #saidTimer = 0;
  #typing = 0; // the timer of what was typed and is not looked for yet
  /** @type {import("./stream.js").Connection} */
  #connection = "idle";
  /** @type {Set<string>} what of the view could not be read again */
  #behind = new Set();
  #stream = new EventStream({
    onEvent: (event) => this.#view?.event(event),
    onReopened: () => this.#view?.reopened(),
    onState: (state) => {
      this.#connection = state;
      this.#showConnection();
    },
    onUnauthorized: (error) => this.failed(error),
  });
  rollback = new RollbackDialog({
    onDone: (message) => this.announce(message),
    onFailed: (error) => this.failed(error),
  });

  // ---- for views

  /** @param {string | null} sessionId @param {string} after */
  follow(sessionId, after) {
    if (!document.hidden) this.#stream.follow(sessionId, after);
  }

  unfollow() {
    this.#stream.close();
  }

  /** A part of the view could not be read and shows what is old. @param {string} part @param {boolean} isBehind */
  behind(part, isBehind) {
    if (isBehind) this.#behind.add(part);
    else this.#behind.delete(part);
    this.#showConnection();
  }

  /** @param {string} link */
  go(link) {
    location.hash = link;
  }

  /** Say something to everybody, seen or heard. @param {string} message */
  announce(message) {
    const said = byId("said");
    said.textContent = message;
    said.classList.add("on");
    clearTimeout(this.#saidTimer);
    this.#saidTimer = setTimeout(() => said.classList.remove("on"), SAID_MS);
  }

  /** @param {string} title */
  titled(title) {
    document.title = `${title} · contextfold`;
  }

  /** @param {string} owner */
  signedIn(owner) {
    const shown = byId("owner");
    setText(shown, owner);
    shown.title = `Signed in as ${owner}`;
    shown.hidden = false;
    byId("sign-out").hidden = api.token() === null;
    byId("search").hidden = false;
  }

  /** Whether a failure was for the page to deal with. @param {unknown} error */
  failed(error) {
    if (!(error instanceof api.ApiError) || !error.isUnauthorized) return false;
    const isAsked = this.#view instanceof SignInView; // several requests may be refused at once
    if (!isAsked) this.signOut(api.token() === null ? "" : "Your token is not accepted any more.");
    return true;
  }

  /** Show the present view afresh. */
  restart() {
    this.#show(true);
  }

  /** @param {string} [problem] */
  signOut(problem = "") {
    api.keepToken(null);
    for (const id of ["owner", "sign-out", "search"]) byId(id).hidden = true;
    this.#replace(new SignInView(this, problem));
  }

  // ---- the page itself

  begin() {
    addEventListener("hashchange", () => this.#show(false));
    document.addEventListener("visibilitychange", () => this.#visibility());
    byId("sign-out").addEventListener("click", () => this.signOut());
    byId("skip").addEventListener("click", (/** @type {Event} */ event) => {
      event.preventDefault(); // an address with another meaning here
      byId("content").focus();
    });
    this.#beginSearch();
    setInterval(() => document.hidden || refreshTimes(), TIMES_MS);
    this.#show(true);
  }

  #beginSearch() {
    const words = byId("words");
    const look = () => {
      clearTimeout(this.#typing);
      this.#typing = 0;
      if (parseRoute(location.hash).view === "search") location.replace(words.value ? searchLink(words.value) : "#/");
      else if (words.value) this.go(searchLink(words.value));
    };
    words.addEventListener("input", () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(look, TYPING_MS);
    });
    byId("search").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      look();
    });
    addEventListener("keydown", (event) => {
      const isTyping = event.target instanceof HTMLElement && event.target.closest("input, textarea, dialog");
      if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      words.focus();
    });
  }

  /** @param {boolean} isAnew */
  #show(isAnew) {
    const route = parseRoute(location.hash);
    const view = this.#view;
    if (route.view !== "search") byId("words").value = "";
    if (!isAnew && view instanceof SignInView) return; // what is asked for is shown once somebody has signed in
    if (route.view === "session") {
      if (isAnew || !(view instanceof SessionView) || view.sessionId !== route.sessionId)
        this.#replace(new SessionView(this, route.sessionId));
      const session = /** @type {SessionView} */ (this.#view);
      session.select(route.branchId, !isAnew && session === view);
    } else if (route.view === "search") {
      const words = byId("words");
      if (!this.#typing && words.value.trim() !== route.words.trim()) words.value = route.words; // no letter is lost
      if (!isAnew && view instanceof SearchView) view.look(route.words);
      else this.#replace(new SearchView(this, route.words));
    } else this.#replace(new SessionsView(this));
  }

  /** @param {View} view */
  #replace(view) {
    this.#stream.close();
    this.rollback.close();
    this.#view?.stop();
    this.#view = view;
    this.titled(view.title);
    fill(byId("content"), view.element);
    scrollTo(0, 0);
    const isTyping = document.activeElement === byId("words");
    if (!this.#isFirst && !isTyping) view.heading.focus();
    this.#isFirst = false;
    view.start();
    if (!(view instanceof SessionsView || view instanceof SignInView)) this.#askWho();
  }

  /** Other views do not learn whose they are. */
  async #askWho() {
    if (!byId("owner").hidden) return;
    try {
      const { owner } = await api.sessions(1);
      if (!(this.#view instanceof SignInView)) this.signedIn(owner);
    } catch (error) {
      this.failed(error);
    }
  }

  #visibility() {
    if (document.hidden) this.#stream.close();
    else if (!(this.#view instanceof SignInView)) this.#resume();
  }

  /** Nothing was heard for a while: listen again, and then look at everything. */
  #resume() {
    const route = parseRoute(location.hash);
    if (route.view !== "search") this.#stream.follow(route.view === "session" ? route.sessionId : null, null);
  }

  #showConnection() {
    const state = this.#connection === "live" && this.#behind.size ? "behind" : this.#connection;
    const shown = byId("live");
    shown.dataset.state = state;
    setText(shown, CONNECTION_WORDS[state]);
  }
}

new Surroundings().begin();
