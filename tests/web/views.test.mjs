// Other views and controls: totals, questions to caches, search by keyboard, the demo, the filter of the list.

import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Agent, assert, COMMANDS, findings, live, NARROW, row, scenario } from "./browser.mjs";

const LONG = "Restore the last backup before a rollback. ".repeat(60);
const DEPLOY =
  "# Deploy\n\nPush the tag.\n\n## Roll back a deployment\n\nRun `deploy rollback` with the last good tag.\n\n" +
  `## Roll back a database\n\n${LONG}\n`;

/** A cache root with one cache of one document. */
function cacheRoot(stage) {
  const sources = join(stage.folder, "sources");
  mkdirSync(sources);
  writeFileSync(join(sources, "deploy.md"), DEPLOY);
  const root = join(stage.folder, "caches");
  mkdirSync(root);
  execFileSync(join(COMMANDS, "context"), ["build", "--sources", sources, "--cache", join(root, "handbook")]);
  return root;
}

scenario("a person asks a cache and sees why each section was chosen and what was left out", async (stage) => {
  const root = cacheRoot(stage);
  const daemon = await stage.daemon({ argv: ["--cache-root", root] });
  const page = await stage.page(daemon, { path: "/#/ask" });
  await page.getByLabel("Cache").selectOption("handbook");
  await page.getByLabel("Question").fill("how do I roll back a deployment, zyzzyva");
  await page.getByLabel("Budget in tokens").fill("330");
  const answered = page.waitForResponse("**/v1/ask");
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  const answer = await (await answered).json();
  const section = page.getByRole("region", { name: "Deploy › Roll back a deployment" });
  await section.getByText("Run deploy rollback with the last good tag.").waitFor();
  await section.getByText(/^Why:/).click();
  const shown = await section.locator("tbody tr").evaluateAll((rows) => rows.map((item) => item.cells[0].textContent));
  const sections = answer.documents.flatMap((document) => document.sections);
  const chosen = sections.find((candidate) => candidate.heading.at(-1) === "Roll back a deployment");
  assert.deepEqual(
    shown,
    chosen.why.map(({ term }) => term),
  );
  await page.getByRole("status").getByText("in no document: zyzzyva").waitFor();
  await page.getByRole("list", { name: "Left out" }).getByText("Deploy › Roll back a database").first().waitFor();
  const question = { cache: "handbook", query: answer.selection.query, budget: 330 };
  const args = { ...question, format: "json", project_path: undefined };
  const mcp = await new Agent(daemon, "/home/ana").call("context.ask", args);
  assert.deepEqual(mcp, answer, "the page and a host get the same answer");
  assert.deepEqual(await findings(page), []);

  await page.getByLabel("Budget in tokens").fill("900");
  await page.getByLabel("Question").fill("roll back database or deployment");
  await page.getByLabel("Cache").selectOption("");
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.getByText("Restore the last backup").first().waitFor();
  await page.getByLabel("Budget in tokens").fill("0");
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.getByText("none fits the budget").waitFor();
  assert.deepEqual(page.watched.problems, []);
});

scenario("a daemon without a cache says how to build one", async (stage) => {
  const daemon = await stage.daemon();
  const page = await stage.page(daemon, { path: "/#/ask" });
  await page.getByText(/^context build docs --cache .*contextfold\/caches\/docs/).waitFor();
});

scenario("totals are given by day, project and model", async (stage) => {
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon, { path: "/#/totals" });
  const table = page.getByRole("region", { name: "Totals" });
  await table.getByRole("rowheader", { name: /^\d{4}-\d\d-\d\d$/ }).first().waitFor();
  await page.getByLabel("Group by").selectOption("project");
  await table.getByRole("rowheader", { name: "/home/ana/work/shop" }).waitFor();
  assert.equal(await table.getByRole("rowheader").count(), 2, "one project has requests, and all together");
  await page.getByLabel("Group by").selectOption("model");
  await table.getByRole("rowheader", { name: "a-model" }).waitFor();
  assert.deepEqual(await findings(page), []);
  await page.setViewportSize(NARROW);
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
});

scenario("the list can be filtered and sorted, and shows what was measured", async (stage) => {
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon);
  await live(page);
  const shop = page.locator("li.session", { hasText: "shop" });
  await shop.first().getByText(/saved|cost/).waitFor();
  await shop.first().getByText("a-model").waitFor();
  await shop.last().getByText("not measured").waitFor();
  await shop.last().getByText("if folded").waitFor();
  await page.getByLabel("Sort by").selectOption("project");
  await page.locator("li.session").first().getByText("api-gateway", { exact: true }).waitFor();
  await page.getByLabel("Filter", { exact: true }).fill("INFRA");
  await page.locator("li.session").nth(1).waitFor({ state: "detached" });
  assert.deepEqual(await page.locator(".session a").allInnerTexts(), ["infra"]);
  await page.getByLabel("Filter", { exact: true }).fill("no such project");
  await page.getByText("No session matches.").waitFor();
  await page.getByLabel("Filter", { exact: true }).fill("");
  await page.getByLabel("Show").selectOption("ended");
  await page.getByText("No session matches.").waitFor();
});

scenario("a session whose log is damaged is named below the list", async (stage) => {
  const daemon = await stage.daemon({ scene: ["damaged"] });
  const page = await stage.page(daemon);
  const ids = [];
  for (const ended of [false, true]) {
    const answer = await page.request.get(`${daemon.url}/v1/sessions?ended=${ended}`);
    ids.push(...(await answer.json()).unreadable);
  }
  await page.getByText("2 sessions have logs that cannot be read, so figures are missing here").waitFor();
  await page.getByText(`(run context store verify): ${ids.join(", ")}`).waitFor();
  assert.equal(await page.locator("li.session").count(), 3, "the ended session is listed without its figures");
  assert.deepEqual(await findings(page), []);
});

scenario("one click opens a demo session, with work that was folded afterwards", async (stage) => {
  const daemon = await stage.daemon();
  const page = await stage.page(daemon);
  await page.getByText(`context run --url ${daemon.url} claude`, { exact: true }).waitFor();
  await page.getByRole("button", { name: "Open a demo session" }).click();
  await row(page, "Main thread").getByText("agent is here").waitFor();
  assert.equal(await page.getByRole("treeitem").filter({ hasText: "summary" }).count(), 2);
  await page.locator(".figure", { hasText: "Left out" }).getByText("4 old texts").waitFor();
  await row(page, "cart/total.py:3 treats").click();
  const entries = page.locator(".entry");
  await entries.nth(2).waitFor();
  const kinds = await entries.evaluateAll((items) => items.map((item) => item.dataset.kind));
  assert.deepEqual(kinds.slice(0, 3), ["summary", "operation", "operation"]);
  assert.equal(kinds.filter((kind) => kind === "summary").length, 1);
  const again = await page.request.post(`${daemon.url}/v1/demo`, { data: {} });
  assert.ok(page.url().includes((await again.json()).session_id), "there is one demo session");
});

scenario("search finds projects and branches, and works by keyboard", async (stage) => {
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon);
  await live(page);
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("shop");
  await page.getByText("2 sessions for “shop”").waitFor();
  assert.deepEqual(await page.locator("mark").first().allInnerTexts(), ["shop"]);
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  const focused = () => page.evaluate(() => document.activeElement.closest(".result, #words")?.innerText ?? "");
  assert.match(await focused(), /second agent/);
  await page.keyboard.press("Escape");
  assert.equal(await page.evaluate(() => document.activeElement.id), "words");
  await page.locator("#words").fill("mistake elsewhere");
  await page.getByText("1 branch for “mistake elsewhere”").waitFor();
  await page.keyboard.press("Enter");
  await page.getByRole("region", { name: "Details" }).getByRole("heading", { name: "Look for the same" }).waitFor();
});

scenario("control characters cannot change the direction of a name", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, "/home/ana/work/\u202egpj.exe");
  await agent.branch("innocent \u2066name\u2069");
  const page = await stage.page(daemon);
  await page.getByRole("link", { name: "\\u202egpj.exe" }).click();
  await row(page, "innocent \\u2066name\\u2069").waitFor();
  assert.doesNotMatch(await page.content(), /[\u202e\u2066\u2069]/);
  assert.match(await page.title(), /\\u202egpj/);
});
