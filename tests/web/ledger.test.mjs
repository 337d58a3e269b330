// The requests of an agent through the proxy, sent and without folding. The provider is a stand-in.

import { createServer } from "node:http";
import { join } from "node:path";
import { Agent, assert, live, makeToken, row, scenario } from "./browser.mjs";

const PROJECT = "/home/ann/work/shop";

/** A provider with a cache of one conversation: it reads the common beginning of two requests and writes the rest. */
class Provider {
  #last = [];
  #server = createServer((request, response) => this.#answer(request, response));

  static async on(stage) {
    const provider = new Provider();
    await new Promise((resolve) => provider.#server.listen(0, "127.0.0.1", resolve));
    provider.url = `http://127.0.0.1:${provider.#server.address().port}`;
    stage.onClose(() => provider.#server.close(() => {}));
    return provider;
  }

  forget() {
    this.#last = [];
  }

  async #answer(request, response) {
    let text = "";
    for await (const part of request.setEncoding("utf8")) text += part;
    const messages = JSON.parse(text).messages.map((message) => JSON.stringify(message));
    const firstChange = messages.findIndex((message, index) => message !== this.#last[index]);
    const tokens = (some) => Math.ceil(some.join("").length / 4);
    const read = firstChange < 0 ? messages : messages.slice(0, firstChange);
    const usage = {
      input_tokens: 3,
      cache_read_input_tokens: tokens(read),
      cache_creation_input_tokens: tokens(messages.slice(read.length)),
      output_tokens: 40,
    };
    this.#last = messages;
    const content = [{ type: "text", text: "Go on." }];
    response.setHeader("content-type", "application/json").setHeader("connection", "close");
    response.end(JSON.stringify({ id: "msg_1", type: "message", role: "assistant", model: "m", content, usage }));
  }
}

/** The loop of an agent: it calls our tools, and sends its whole history to the model in each request. */
class Loop {
  messages = [];
  #calls = 0;

  constructor(daemon, token, begin) {
    Object.assign(this, { daemon, token, agent: new Agent(daemon, PROJECT, token) });
    this.messages.push({ role: "user", content: begin });
  }

  #recordCall(name, input, result) {
    this.#calls += 1;
    const id = `toolu_${this.#calls}`;
    this.messages.push({ role: "assistant", content: [{ type: "tool_use", id, name, input }] });
    this.messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: id, content: result }] });
  }

  async tool(name, input) {
    const result = await this.agent.call(name, input);
    this.#recordCall(name, input, JSON.stringify(result));
    return result;
  }

  async branch(description) {
    return (await this.tool("context_branch", { description, prompt: "Say what you found." })).branch_id;
  }

  fold(message) {
    return this.tool("context_return", { message });
  }

  read(characters) {
    this.#recordCall("Read", { path: "a" }, "x".repeat(characters));
  }

  /** A branch that is opened in a message with unknown content, so that the proxy cannot fold it. */
  async branchWithUnknownContent(description) {
    await this.branch(description);
    this.messages.at(-2).content.unshift({ type: "hologram" });
  }

  async ask() {
    const headers = { "content-type": "application/json", "x-api-key": "sk-none", "x-context-token": this.token };
    const body = JSON.stringify({ model: "m", max_tokens: 100, messages: this.messages });
    const response = await fetch(`${this.daemon.url}/proxy/anthropic/v1/messages`, { method: "POST", headers, body });
    assert.equal(response.status, 200, await response.text());
    return JSON.parse(response.headers.get("x-context-fold"));
  }
}

scenario("the chart compares requests with and without folding, and a costly fold is named", async (stage) => {
  const [ann, bob] = ["ann", "bob"].map((owner) => makeToken(stage, owner));
  const provider = await Provider.on(stage);
  const argv = ["--token-file", join(stage.folder, "tokens"), "--anthropic-upstream", provider.url];
  const daemon = await stage.daemon({ argv });
  const loop = new Loop(daemon, ann, "y".repeat(40_000));
  const small = await loop.branch("Look at one <b>file</b>");
  const session = await loop.agent.session();
  const signedIn = async (token) => {
    const page = await stage.page(daemon, { path: null, profile: {} });
    await page.addInitScript((value) => sessionStorage.setItem("contextfold.token", value), token);
    await page.goto(`${daemon.url}/#/sessions/${session}`);
    return page;
  };
  const page = await signedIn(ann);
  await row(page, "Look at one").waitFor();
  await live(page);
  const panel = page.getByRole("region", { name: "What was sent to the model" });
  const figure = (label) => panel.locator(".figure", { hasText: label }).locator("b");
  const savingsRequests = () => page.watched.requests.filter((url) => url.endsWith("/savings")).length;
  const heights = (kind) =>
    panel.locator(`.line.${kind}`).evaluate((line) => line.getAttribute("d").match(/[ V][\d.]+/g).length);
  assert.equal(await panel.count(), 0, "nothing went through the proxy yet");

  loop.read(2000);
  await loop.ask();
  await figure("Requests").getByText("1", { exact: true }).waitFor();
  await panel.locator(".verdict", { hasText: "1 request" }).waitFor();
  await loop.fold("Nothing there.");
  provider.forget(); // the whole prompt is written again, for a branch of some hundred tokens
  assert.ok((await loop.ask()).turns_dropped > 0);
  const misses = page.getByRole("region", { name: "What the provider's cache lost" });
  await misses.getByRole("row", { name: /work was folded from message \d+ on .*contextfold/ }).waitFor();
  await panel.locator(".notice").getByText("This fold has cost more than it saved").waitFor();
  const costly = panel.locator(".notice").getByRole("link", { name: "Look at one <b>file</b>" });
  assert.ok((await costly.getAttribute("href")).endsWith(small));
  await figure("Folding cost").waitFor();
  assert.deepEqual([await heights("sent"), await heights("without")], [2, 2]);

  await loop.branch("Read everything");
  for (let turn = 0; turn < 3; turn += 1) {
    loop.read(60_000);
    await loop.ask();
  }
  await loop.fold("It is in the second file.");
  for (let turn = 0; turn < 4; turn += 1) await loop.ask();
  await figure("Requests").getByText("9", { exact: true }).waitFor();
  assert.deepEqual([await heights("sent"), await heights("without")], [9, 9]);
  assert.match(await panel.locator(".verdict").innerText(), /1 of 2 folds/);
  await figure("Saved").waitFor();
  await panel.getByText(/read from the cache .*written for 5 minutes/).waitFor();
  await panel.getByText("Show the requests as a table").click();
  const requests = panel.getByRole("region", { name: "Tokens of the requests" });
  await requests.getByRole("row").nth(9).waitFor(); // the table is filled a moment after it is opened
  assert.equal(await requests.getByRole("row").count(), 10);
  await panel.getByText("Show the folds as a table").click();
  const folds = panel.getByRole("region", { name: /^Folds/ });
  await folds.getByRole("row", { name: /Read everything/ }).waitFor();

  await loop.branchWithUnknownContent("Something new");
  loop.read(400);
  await loop.fold("Done.");
  assert.equal((await loop.ask()).reason, "unknown_content");
  await figure("Left unfolded").getByText("1", { exact: true }).waitFor();
  await panel.getByText("something unknown in the branch (1 request)").waitFor();

  const counts = [];
  for (const name of ["Only", "the tools", "are called", "again"]) {
    // The page reads the timeline as often as it may read the ledger.
    const charted = page.waitForResponse((response) => response.url().endsWith("/timeline"));
    await loop.agent.branch(name);
    await charted;
    counts.push(savingsRequests());
  }
  // The event of the last request may arrive after the page has read it; then the page reads the ledger once more
  // within a second. The third timeline was requested more than a second later, so the count is final by then.
  assert.equal(counts[3], counts[2], "tool calls do not make the page read the ledger again");
  await row(page, "Main thread").click();
  await page.locator(".entry").getByText("counted by the proxy").first().waitFor();
  assert.deepEqual(page.watched.problems, []);

  const other = await signedIn(bob);
  await other.getByRole("heading", { name: "No such session" }).waitFor();
  assert.equal(await other.locator(".ledger-card").count(), 0);
  const headers = { authorization: `Bearer ${bob}` };
  assert.equal((await fetch(`${daemon.url}/v1/sessions/${session}/savings`, { headers })).status, 404);
});
