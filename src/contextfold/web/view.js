// @ts-check
/** What all views have in common: the page, a title and a heading, and what becomes of responses and errors. */

import { el, fill } from "./dom.js";
import { failure, messageOf } from "./pieces.js";

export class View {
  // A response that arrives after the view was left is ignored.
  isStopped = false;
  element = el("section", { class: "page" });

  /** @param {import("./app.js").Page} page @param {string} title @param {string} [heading] */
  constructor(page, title, heading = title) {
    this.page = page;
    this.title = title;
    this.heading = el("h1", { tabindex: "-1" }, heading);
  }

  /** Fill the view, below the links that lead back. @param {Node[]} head beside the heading @param {...Node} content */
  layOut(head, ...content) {
    const crumbs = el(
      "nav",
      { class: "crumbs", "aria-label": "Path to this view" },
      el("a", { href: "#/" }, "Sessions"),
      el("span", { "aria-hidden": "true" }, "/"),
    );
    fill(this.element, crumbs, el("div", { class: "page-head" }, this.heading, ...head), ...content);
  }

  async start() {}

  stop() {
    this.isStopped = true;
  }

  /** @param {Record<string, any>} _event */
  event(_event) {}

  reopened() {}

  /** Whether an error needs nothing of the view: it was left, or the page handles the error. @param {unknown} error */
  isHandled(error) {
    return this.isStopped || this.page.failed(error);
  }

  /** Show an error instead of the content. @param {Element} box @param {unknown} error @param {() => void} again */
  showFailure(box, error, again) {
    fill(box, failure(messageOf(error), again));
  }
}
