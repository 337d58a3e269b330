// @ts-check
/**
 * The page: which view is shown, who is signed in, whether the daemon is reachable, and the keys that work everywhere.
 *
 * Views read the data they show; events only say that something has changed. While the tab is in the background nothing
 * is read and no connection is open.
 *
 * @typedef {import("./view.js").View} View
 */

import * as api from "./api.js";
import { AskView } from "./ask.js";
import { byId, fill, setText, visible } from "./dom.js";
import { refreshTimes } from "./format.js";
import { RollbackDialog } from "./rollback.js";
import { parseRoute, searchLink } from "./routes.js";
import { SearchView } from "./search.js";
import { SessionView } from "./session.js";
import { SessionsView } from "./sessions.js";
import { SignInView } from "./signin.js";
import { EventStream } from "./stream.js";
import { TotalsView } from "./totals.js";

// How often relative times are updated.
const TIMES_MS = 10_000;
// A search begins after a pause in typing this long.
const TYPING_MS = 250;
const ANNOUNCED_MS = 8000;

const CONNECTION_WORDS = {
  idle: "",
  connecting: "",
  live: "live",
  lost: "connection lost, trying again",
  behind: "not up to date, trying again",
};

/** What is around the views, and what a view may use of it. */
export class Page {
  /** @type {View | null} */
  #view = null;
  #isFirst = true;
  #announceTimer = 0;
  // Runs from a key press until the search for it begins.
  #typingTimer = 0;
  /** @type {import("./stream.js").Connection} */
  #connection = "idle";
  /** @type {Set<string>} parts of the view that could not be read again */
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

  /** Say whether a part of the view shows old data. @param {string} part @param {boolean} isBehind */
  behind(part, isBehind) {
    if (isBehind) this.#behind.add(part);
    else this.#behind.delete(part);
    this.#showConnection();
  }

  /** @param {string} link */
  go(link) {
    location.hash = link;
  }

  /** Show a message for a few seconds; screen readers read it out. @param {string} message */
  announce(message) {
    const toast = byId("toast");
    setText(toast, message);
    toast.classList.add("on");
    clearTimeout(this.#announceTimer);
    this.#announceTimer = setTimeout(() => toast.classList.remove("on"), ANNOUNCED_MS);
  }

  /** @param {string} title */
  setTitle(title) {
    document.title = visible(`${title} · contextfold`);
  }

  /** @param {string} owner */
  signedIn(owner) {
    const shown = byId("owner");
    setText(shown, owner);
    shown.title = visible(`Signed in as ${owner}`);
    shown.hidden = false;
    byId("sign-out").hidden = api.token() === null;
    for (const id of ["search", "views"]) byId(id).hidden = false;
  }

  /** Handle an error that concerns the whole page; return whether it was one. @param {unknown} error */
  failed(error) {
    if (!(error instanceof api.ApiError) || !error.isUnauthorized) return false;
    // Several requests may fail for the same reason.
    const isSignIn = this.#view instanceof SignInView;
    if (!isSignIn) this.signOut(api.token() === null ? "" : "Your token is not valid any more.");
    return true;
  }

  /** Create the current view again. */
  restart() {
    this.#show(true);
  }

  /** @param {string} [problem] */
  signOut(problem = "") {
    api.storeToken(null);
    for (const id of ["owner", "sign-out", "search", "views"]) byId(id).hidden = true;
    this.#replace(new SignInView(this, problem));
  }

  // ---- the page itself

  begin() {
    addEventListener("hashchange", () => this.#show(false));
    document.addEventListener("visibilitychange", () => this.#visibility());
    byId("sign-out").addEventListener("click", () => this.signOut());
    byId("show-keys").addEventListener("click", () => byId("keys").showModal());
    byId("skip").addEventListener("click", (/** @type {Event} */ event) => {
      // The router would treat the link's address as that of a view.
      event.preventDefault();
      byId("content").focus();
    });
    this.#beginSearch();
    addEventListener("keydown", (event) => this.#key(event));
    setInterval(() => document.hidden || refreshTimes(), TIMES_MS);
    this.#show(true);
  }

  #beginSearch() {
    const words = byId("words");
    words.addEventListener("input", () => {
      clearTimeout(this.#typingTimer);
      this.#typingTimer = setTimeout(() => this.#search(), TYPING_MS);
    });
    words.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#searchKey(event));
    byId("search").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      const view = this.#view;
      const isShown = view instanceof SearchView && !this.#typingTimer && view.words.trim() === words.value.trim();
      if (!isShown || !view.openFirst()) this.#search();
    });
  }

  #search() {
    const words = byId("words");
    clearTimeout(this.#typingTimer);
    this.#typingTimer = 0;
    if (parseRoute(location.hash).view === "search") location.replace(words.value ? searchLink(words.value) : "#/");
    else if (words.value) this.go(searchLink(words.value));
  }

  /** @param {KeyboardEvent} event */
  #searchKey(event) {
    const words = byId("words");
    if (event.key === "ArrowDown" && this.#view instanceof SearchView) {
      event.preventDefault();
      this.#view.focusFirst();
    } else if (event.key === "Escape") {
      event.preventDefault();
      if (words.value) {
        words.value = "";
        this.#search();
      } else byId("content").focus();
    }
  }

  /** Keys that work in every view. @param {KeyboardEvent} event */
  #key(event) {
    if (byId("search").hidden || document.querySelector("dialog[open]")) return;
    const isCommand = (event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k";
    const isTyping = event.target instanceof HTMLElement && event.target.closest("input, textarea, select");
    const isPlain = !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (isCommand || (isPlain && event.key === "/")) {
      event.preventDefault();
      byId("words").focus();
      byId("words").select();
    } else if (isPlain && event.key === "?") {
      event.preventDefault();
      byId("keys").showModal();
    }
  }

  /** @param {boolean} isNew whether the view is created even if it is shown already */
  #show(isNew) {
    const route = parseRoute(location.hash);
    const view = this.#view;
    if (route.view !== "search") byId("words").value = "";
    // The requested view is shown after the sign-in.
    if (!isNew && view instanceof SignInView) return;
    if (route.view === "session") {
      if (isNew || !(view instanceof SessionView) || view.sessionId !== route.sessionId)
        this.#replace(new SessionView(this, route.sessionId));
      const session = /** @type {SessionView} */ (this.#view);
      session.select(route.branchId, !isNew && session === view);
    } else if (route.view === "search") {
      const words = byId("words");
      // Letters that were typed since the search began must not be lost.
      if (!this.#typingTimer && words.value.trim() !== route.words.trim()) words.value = route.words;
      if (!isNew && view instanceof SearchView) view.look(route.words);
      else this.#replace(new SearchView(this, route.words));
    } else if (route.view === "totals") this.#replace(new TotalsView(this));
    else if (route.view === "ask") {
      if (!isNew && view instanceof AskView) view.look(route);
      else this.#replace(new AskView(this, route));
    } else this.#replace(new SessionsView(this));
    for (const link of byId("views").querySelectorAll("a")) {
      const isCurrent = link.getAttribute("href") === { sessions: "#/", totals: "#/totals", ask: "#/ask" }[route.view];
      if (isCurrent) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  /** @param {View} view */
  #replace(view) {
    this.#stream.close();
    this.rollback.close();
    this.#view?.stop();
    this.#view = view;
    this.setTitle(view.title);
    fill(byId("content"), view.element);
    scrollTo(0, 0);
    const isTyping = document.activeElement === byId("words");
    if (!this.#isFirst && !isTyping) view.heading.focus();
    this.#isFirst = false;
    view.start();
    if (!(view instanceof SessionsView || view instanceof SignInView)) this.#readOwner();
  }

  /** Only the list of sessions comes with the owner's name. */
  async #readOwner() {
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

  /** Events were missed while the tab was hidden, so the view reads everything once the stream is open. */
  #resume() {
    const route = parseRoute(location.hash);
    if (route.view === "session") this.#stream.follow(route.sessionId, null);
    else if (route.view === "sessions") this.#stream.follow(null, null);
  }

  #showConnection() {
    const state = this.#connection === "live" && this.#behind.size ? "behind" : this.#connection;
    const shown = byId("live");
    shown.dataset.state = state;
    setText(shown, CONNECTION_WORDS[state]);
  }
}

new Page().begin();
