// @ts-check
/** The view before there is a session: it shows how to connect an agent to this daemon, and offers a demo. */

import * as api from "./api.js";
import { el } from "./dom.js";
import { command, messageOf } from "./pieces.js";
import { sessionLink } from "./routes.js";

const DEFAULT_HOSTS = ["127.0.0.1:9090", "localhost:9090"];

/** @param {import("./app.js").Page} page */
export function welcome(page) {
  // The commands use the default address of the daemon; any other address must be given.
  const url = location.protocol === "http:" && DEFAULT_HOSTS.includes(location.host) ? "" : ` --url ${location.origin}`;
  const options = `${url}${api.token() === null ? "" : " --token-variable CONTEXT_TOKEN"}`;
  /** @type {[string, string][]} */
  const ways = [
    ["Try it once", `context run${options} claude`],
    ["Claude Code, for good", `context install claude-code${api.token() === null ? `${url} --proxy` : options}`],
    ["Cursor", `context install cursor${options}`],
    ["VS Code", `context install vscode${options}`],
  ];
  return el(
    "div",
    { class: "welcome card" },
    el("h2", {}, "No session yet"),
    el("p", {}, "A session begins with an agent's first prompt or request."),
    el("p", {}, `This daemon is at ${location.origin}. Connect an agent to it:`),
    el(
      "dl",
      {},
      ...ways.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, command(text)))),
    ),
    el(
      "p",
      { class: "muted" },
      el("code", {}, "context run"),
      " changes no file: it starts the agent with the proxy, the tools and the hooks for that one run. ",
      el("code", {}, "context install"),
      " connects a program for good. Only requests that go through the proxy can become smaller: ",
      el("code", {}, "context run"),
      " and ",
      el("code", {}, "--proxy"),
      " send them through this daemon, the other ways bring the tools alone.",
    ),
    el(
      "p",
      {},
      el("button", { type: "button", class: "primary", onclick: () => openDemo(page) }, "Open a demo session"),
      el("span", { class: "muted" }, " Made up, named demo, in no sum. It ends by itself when it is idle."),
    ),
  );
}

/** @param {import("./app.js").Page} page */
async function openDemo(page) {
  try {
    const { session_id: id } = await api.demo();
    page.go(sessionLink(id));
  } catch (error) {
    if (!page.failed(error)) page.announce(messageOf(error));
  }
}
