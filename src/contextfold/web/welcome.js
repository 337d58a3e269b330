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
  const hasToken = api.token() !== null;
  const options = `${url}${hasToken ? " --token-variable CONTEXT_TOKEN" : ""}`;
  const onlyTools = "The tools alone: its requests do not pass this daemon, so nothing is saved in them.";
  /** @type {[string, string, string][]} what a way is for, its command, and what the program gets */
  const ways = [
    [
      "For one run",
      `context run${options} claude`,
      "Proxy, tools, hooks and skill; no file changes. In place of claude: codex, opencode or gemini, which get proxy and tools.",
    ],
    [
      "Claude Code, for good",
      `context install claude-code${hasToken ? options : `${url} --proxy`}`,
      hasToken
        ? "Tools, hooks and skill. Its requests pass this daemon only with context run."
        : "Proxy, tools, hooks and skill. This daemon then has to run whenever Claude Code does.",
    ],
    ["Cursor", `context install cursor${options}`, onlyTools],
    ["VS Code", `context install vscode${options}`, onlyTools],
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
      ...ways.map(([name, text, gets]) =>
        el("div", {}, el("dt", {}, name), el("dd", {}, command(text)), el("dd", { class: "muted" }, gets)),
      ),
    ),
    el(
      "p",
      {},
      el("button", { type: "button", class: "primary", onclick: () => openDemo(page) }, "Open a demo session"),
      el("span", { class: "muted" }, "Made up, named demo, in no sum. It ends by itself when it is idle."),
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
