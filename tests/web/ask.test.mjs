// The view for questions to caches: its address, and caches that cannot be asked.

import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { assert, COMMANDS, findings, scenario } from "./browser.mjs";

/** Builds a cache of one document below a cache root, and returns its folder. */
function build(stage, name, text) {
  const sources = join(stage.folder, "sources", name);
  mkdirSync(sources, { recursive: true });
  writeFileSync(join(sources, "guide.md"), text);
  const cache = join(stage.folder, "caches", name);
  execFileSync(join(COMMANDS, "context"), ["build", "--sources", sources, "--cache", cache]);
  return cache;
}

scenario("a question is in the address: a reload and the back button give its answer again", async (stage) => {
  build(stage, "hand book", "# Guide\n\nRoll back 100% of the deployment.\n");
  build(stage, "notes", "# Notes\n\nFeed the cat.\n");
  const daemon = await stage.daemon({ argv: ["--cache-root", join(stage.folder, "caches")] });
  const page = await stage.page(daemon, { path: "/#/ask" });
  await page.getByLabel("Cache").selectOption("hand book");
  await page.getByLabel("Question").fill("roll back 100%/all?");
  await page.getByLabel("Budget in tokens").fill("300");
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  const answer = page.getByText("Roll back 100% of the deployment.");
  await answer.waitFor();
  await page.reload();
  await answer.waitFor();
  assert.equal(await page.getByLabel("Question").inputValue(), "roll back 100%/all?");
  assert.equal(await page.getByLabel("Cache").inputValue(), "hand book");
  assert.equal(await page.getByLabel("Budget in tokens").inputValue(), "300");

  await page.getByLabel("Question").fill("feed the cat");
  await page.getByLabel("Cache").selectOption("");
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.getByText("Feed the cat.").waitFor();
  await page.goBack();
  await answer.waitFor();
  assert.equal(await page.getByLabel("Cache").inputValue(), "hand book");
  await page.getByRole("link", { name: "Ask", exact: true }).click();
  await answer.waitFor({ state: "detached" });
  assert.equal(await page.getByLabel("Question").inputValue(), "");
  assert.deepEqual(page.watched.problems, []);
});

scenario("a cache without an index does not stop a question to all, and is named", async (stage) => {
  build(stage, "handbook", "# Guide\n\nRoll back with the last tag.\n");
  rmSync(join(build(stage, "old", "# Old\n\nRoll back the carpet.\n"), "pack", "index.sqlite"));
  const daemon = await stage.daemon({ argv: ["--cache-root", join(stage.folder, "caches")] });
  const page = await stage.page(daemon, { path: "/#/ask/roll%20back" });
  await page.getByText("Roll back with the last tag.").waitFor();
  await page.getByText(/The cache old was not asked: .*context build/).waitFor();
  assert.deepEqual(await findings(page), []);
});

scenario("the answer says how many sections were left out for the budget", async (stage) => {
  build(stage, "handbook", "# Roll back\n\nWith the last tag.\n\n# Roll back a canary\n\nStop it first.\n");
  const daemon = await stage.daemon({ argv: ["--cache-root", join(stage.folder, "caches")] });
  const page = await stage.page(daemon, { path: "/#/ask/roll%20back/280" });
  await page.getByText(/1 section of 2 that match · 1 section left out for the budget/).waitFor();
});

scenario("Markdown and code are shown as such, and HTML in them stays text", async (stage) => {
  const text = [
    "# Deploy *now*", "Use `make deploy`, **never** by hand: [the guide](javascript:alert(1)).", "- first\n  goes on",
    "- <img src=x onerror=alert(1)>", "| step | who |\n|---|---|\n| build | `ci` |", "```sh\nmake deploy <b>\n```",
  ];
  const cache = build(stage, "handbook", text.join("\n\n"));
  const daemon = await stage.daemon({ argv: ["--cache-root", join(cache, "..")] });
  const page = await stage.page(daemon, { path: "/#/ask/deploy" });
  const shown = page.locator(".markdown");
  await shown.locator(".heading em", { hasText: "now" }).waitFor();
  assert.equal(await page.locator(".answer-section b").first().textContent(), "", "a heading is not shown twice");
  assert.equal(await shown.locator("p code").textContent(), "make deploy");
  assert.equal(await shown.locator("strong").textContent(), "never");
  assert.equal(await shown.locator("pre").textContent(), "make deploy <b>");
  assert.deepEqual(await shown.locator("td").allTextContents(), ["build", "ci"]);
  assert.deepEqual(await shown.locator("li").allTextContents(), ["first\ngoes on", "<img src=x onerror=alert(1)>"]);
  assert.equal(await shown.locator("a, img").count(), 0);
  assert.deepEqual(await findings(page), []);
  assert.deepEqual(page.watched.problems, []);
});
