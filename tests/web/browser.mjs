// Helpers for the scenarios: a real daemon, agents that make real MCP calls, and pages of a real browser.
// A scenario is registered with `scenario`; CONTEXTFOLD_SCENARIO runs only one of a file. The scenarios of a process
// share a browser and its default pages, because opening a window takes Chromium as long as most scenarios take.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { createConnection } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
export const ROOT = dirname(dirname(HERE));
export const COMMANDS = process.env.CONTEXTFOLD_BIN ?? join(ROOT, ".venv", "bin");
// The socket of daemons.py. Without it, as in the bench, a daemon is the installed command.
const DAEMONS = process.env.CONTEXTFOLD_DAEMONS;
const CHROMIUM = process.env.CONTEXTFOLD_CHROMIUM ?? "/usr/bin/chromium";
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  // Drawing without a GPU needs no separate process.
  "--in-process-gpu",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // Each daemon has another port, and Chromium would start processes for each of them.
  "--process-per-site",
  "--disable-site-isolation-trials",
  "--renderer-process-limit=2",
];
export const isSoak = Boolean(process.env.CONTEXTFOLD_SOAK);
export const PATIENCE_MS = 60_000; // a bound on a hang, not a measure
export const WIDE = { width: 1280, height: 860 };
export const NARROW = { width: 360, height: 740 };

const installed = createRequire(join(ROOT, "tests", "clients", "package.json"));
const { chromium } = installed("playwright-core");
const AXE = readFileSync(installed.resolve("axe-core/axe.min.js"), "utf8");

let launched;
let sharedProfile; // the profile of the default pages
const seeded = new Map(); // the file of each scene that has been written
const idlePages = []; // default pages that no scenario uses
let isRegistered = false;

/** Ends the browser, if it was started. */
export async function closeBrowser() {
  await (await launched)?.close();
}

/** The resources of a scenario. They are closed when it ends, the last one first. */
export class Stage {
  #cleanups = [];

  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), "contextfold-page-"));
    this.onClose(() => rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 }));
  }

  onClose(cleanup) {
    this.#cleanups.push(cleanup);
  }

  async close() {
    for (const cleanup of this.#cleanups.reverse()) await cleanup();
  }

  /** A daemon with a new store, which is empty or filled by seed.py with a scene; or with a given store. */
  async daemon({ name = "daemon", scene = [], argv = [], store } = {}) {
    const folder = join(this.folder, name);
    const daemon = new Daemon(folder, argv, store);
    if (scene.length) seed(daemon.store, scene);
    await daemon.start();
    this.onClose(() => daemon.stop());
    return daemon;
  }

  /** Starts a NATS server with JetStream and returns its address. */
  async nats() {
    const folder = join(this.folder, "nats");
    const argv = ["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", folder, "-js", "-sd", folder];
    mkdirSync(folder);
    const server = spawn(join(COMMANDS, "nats-server"), argv, { stdio: "ignore" });
    const ended = new Promise((resolve) => server.once("exit", resolve));
    this.onClose(async () => {
      server.kill("SIGKILL");
      await ended;
    });
    const portsFile = join(folder, `nats-server_${server.pid}.ports`);
    for (const end = performance.now() + PATIENCE_MS; performance.now() < end; ) {
      const text = existsSync(portsFile) ? readFileSync(portsFile, "utf8") : "";
      if (text.trimEnd().endsWith("}")) return JSON.parse(text).nats[0];
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    throw new Error("no NATS server");
  }

  async browser() {
    launched ??= chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
    return launched;
  }

  async profile(options = {}) {
    const browser = await this.browser();
    // An animation is drawn sixty times a second, and no scenario needs one.
    const still = { reducedMotion: "reduce" };
    const profile = await browser.newContext({ viewport: WIDE, locale: "en-GB", timezoneId: "UTC", ...still, ...options });
    profile.setDefaultTimeout(PATIENCE_MS);
    return profile;
  }

  /** An empty default page; or, if options are given (even `{}`), a page with a separate profile. */
  async #blank(options) {
    if (options) {
      const profile = await this.profile(options);
      this.onClose(() => profile.close());
      return profile.newPage();
    }
    sharedProfile ??= this.profile();
    const page = idlePages.pop() ?? (await (await sharedProfile).newPage());
    this.onClose(() => recycle(page));
    return page;
  }

  /** A page that records its requests, problems and dialogs in `page.watched`. */
  async page(daemon, { path = "/", profile } = {}) {
    const page = await this.#blank(profile);
    const watched = { requests: [], problems: [], dialogs: [] };
    page.on("request", (request) => watched.requests.push(request.url()));
    page.on(
      "console",
      (message) => ["error", "warning"].includes(message.type()) && watched.problems.push(message.text()),
    );
    page.on("pageerror", (error) => watched.problems.push(String(error)));
    page.on("dialog", (dialog) => {
      watched.dialogs.push(dialog.message());
      return dialog.dismiss();
    });
    page.watched = watched;
    if (path !== null) await page.goto(`${daemon.url}${path}`);
    return page;
  }
}

/** Resets a page, so that the next scenario can use it. */
async function recycle(page) {
  if (page.isClosed()) return;
  const origins = new Set(page.watched.requests.map((url) => new URL(url).origin));
  page.removeAllListeners();
  // The storage of other origins cannot be cleared from here.
  if (origins.size > 1) return page.close();
  await page.unrouteAll({ behavior: "ignoreErrors" });
  await page.emulateMedia({ colorScheme: null });
  await page.evaluate(() => [localStorage, sessionStorage].forEach((storage) => storage.clear()));
  await page.goto("about:blank");
  await page.setViewportSize(WIDE);
  idlePages.push(page);
}

/** Writes a store with a scene. A scene is written once, and copied for the next scenario. */
function seed(store, scene) {
  const name = scene.join("-");
  if (!seeded.has(name)) {
    const template = join(mkdtempSync(join(tmpdir(), "contextfold-scene-")), "state.db");
    execFileSync(join(COMMANDS, "python"), ["-m", "tests.web.seed", template, ...scene.map(String)], { cwd: ROOT });
    seeded.set(name, template);
  }
  mkdirSync(dirname(store), { recursive: true });
  copyFileSync(seeded.get(name), store);
}

/** Starts `context`. Gives its first line, its end, and a function that sends a signal. */
async function start(argv, env, log) {
  if (DAEMONS) {
    const socket = createConnection(DAEMONS);
    const ended = new Promise((resolve) => socket.once("close", resolve));
    const lines = createInterface({ input: socket });
    socket.write(`${JSON.stringify({ argv, env, log })}\n`);
    const answer = await Promise.race([new Promise((resolve) => lines.once("line", resolve)), ended]);
    const { pid, line } = JSON.parse(answer);
    let isRunning = true;
    ended.then(() => (isRunning = false));
    return { line, ended, kill: (signal) => isRunning && process.kill(pid, signal) };
  }
  const child = spawn(join(COMMANDS, "context"), argv, { stdio: ["ignore", "pipe", openSync(log, "a")], env });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const lines = createInterface({ input: child.stdout });
  const line = await Promise.race([new Promise((resolve) => lines.once("line", resolve)), ended]);
  return { line: String(line), ended, kill: (signal) => child.kill(signal) };
}

/** `context serve` on a free port. It keeps this port after a restart. */
class Daemon {
  constructor(folder, argv, store = join(folder, "state", "state.db")) {
    this.folder = folder;
    this.store = store;
    this.argv = argv;
    this.port = 0; // a free port at the first start, then always the same
  }

  async start() {
    mkdirSync(this.folder, { recursive: true });
    const log = join(this.folder, "daemon.log");
    const argv = ["serve", "--store", this.store, "--port", String(this.port), ...this.argv];
    const env = {
      ...process.env,
      XDG_DATA_HOME: join(this.folder, "data"),
      CONTEXT_RATE_PER_SECOND: "1000000",
      CONTEXT_RATE_BURST: "1000000",
    };
    this.process = await start(argv, env, log);
    this.ended = this.process.ended;
    const line = this.process.line.trim();
    assert.match(line, /^contextfold listens on /, readFileSync(log, "utf8").slice(-2000));
    this.url = line
      .split(" ")
      .at(-1)
      .replace(/\/mcp$/, "");
    this.port = Number(new URL(this.url).port);
  }

  async kill() {
    this.process.kill("SIGKILL");
    await this.ended;
  }

  async stop() {
    this.process.kill("SIGTERM");
    await this.ended;
  }
}

/** An agent on a project that makes real MCP calls. */
export class Agent {
  constructor(daemon, project, token) {
    this.daemon = daemon;
    this.project = project;
    this.headers = {
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      "mcp-protocol-version": "2025-11-25",
      ...(token ? { authorization: `Bearer ${token}` } : {}),
    };
  }

  async call(name, args) {
    const params = { name, arguments: { project_path: this.project, ...args } };
    const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params });
    const response = await fetch(`${this.daemon.url}/mcp`, { method: "POST", headers: this.headers, body });
    const message = await response.json();
    assert.ok(message.result, JSON.stringify(message));
    return JSON.parse(message.result.content[0].text);
  }

  async branch(description, prompt = "Look into it and say what you found.") {
    const { branch_id: id } = await this.call("context_branch", { description, prompt });
    return id;
  }

  did(type, content, failed = false) {
    return this.call("context_record", { type, content, failed });
  }

  fold(message) {
    return this.call("context_return", { message });
  }

  /** The session this agent works in. */
  async session() {
    return (await this.call("context_branch_status", {})).session_id;
  }
}

/** @param {string} name @param {(stage: Stage) => Promise<void>} play */
export function scenario(name, play) {
  if (!isRegistered) after(closeBrowser);
  isRegistered = true;
  const chosen = process.env.CONTEXTFOLD_SCENARIO;
  if (chosen && chosen !== name) return;
  test(name, async () => {
    const stage = new Stage();
    try {
      await play(stage);
    } finally {
      await stage.close();
    }
  });
}

/** Makes a token with `context token`. */
export function makeToken(stage, owner) {
  const argv = ["token", owner, "--token-file", join(stage.folder, "tokens")];
  return execFileSync(join(COMMANDS, "context"), argv, { encoding: "utf8" }).trim();
}

export const row = (page, text) => page.getByRole("treeitem").filter({ hasText: text });
export const live = (page) => page.locator('#live[data-state="live"]').waitFor();

/** The text of the first matching element; and a wait until the text of the first matching element is different. */
export const textOf = (page, selector) => page.locator(selector).first().innerText();
export const changed = (page, selector, before) =>
  page.evaluate(
    ([path, text, patienceMs]) =>
      new Promise((resolve, reject) => {
        const end = performance.now() + patienceMs;
        const look = () => {
          if (document.querySelector(path)?.innerText !== text) resolve();
          else if (performance.now() > end) reject(new Error(`${path} still says ${text}`));
          else requestAnimationFrame(look);
        };
        look();
      }),
    [selector, before, PATIENCE_MS],
  );

/** The serious and critical violations that axe-core finds, with all rules or with some. */
export async function findings(page, rules) {
  // Without these options axe-core also describes every element without a violation and loads style sheets again.
  const options = { resultTypes: ["violations"], preload: false, ...(rules ? { runOnly: rules } : {}) };
  if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(AXE);
  const { violations } = await page.evaluate((given) => globalThis.axe.run(given), options);
  return violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(
      ({ id, nodes }) =>
        `${id}: ${nodes
          .map((node) => node.html)
          .slice(0, 3)
          .join(" | ")}`,
    );
}

export { assert };
