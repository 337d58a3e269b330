// Rolling back from the page: a dialog lists what will be discarded, and nothing happens without confirmation.

import { Agent, assert, live, row, scenario } from "./browser.mjs";

async function openDialog(stage) {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, "/home/ana/work/shop");
  const target = await agent.branch("Store seconds");
  await agent.did("Edit", "x".repeat(4000));
  await agent.branch("Migrate rows");
  await agent.did("Write", "y".repeat(8000));
  const session = await agent.session();
  const page = await stage.page(daemon, { path: `/#/sessions/${session}/branches/${target}` });
  await live(page);
  await page.getByRole("button", { name: "Roll back to this branch…" }).click();
  const dialog = page.getByRole("dialog", { name: "Roll back to “Store seconds”?" });
  await dialog.getByText("1 branch will be discarded:").waitFor();
  return { agent, page, dialog, session, target };
}

scenario("a rollback lists what it discards and reports its result", async (stage) => {
  const { agent, page, dialog, target } = await openDialog(stage);
  await dialog.getByText("Migrate rows").waitFor();
  await dialog.getByText("A rollback changes no files").waitFor();
  await dialog.getByText("3\u202f018 → 9", { exact: true }).waitFor();
  await dialog.getByRole("button", { name: "Roll back", exact: true }).click();
  await page.getByText(/^Rolled back to “Store seconds”: 1 branch discarded, 3\u202f009 tokens/).waitFor();
  assert.equal(await dialog.count(), 0);
  await row(page, "Migrate rows").getByText("discarded", { exact: true }).waitFor();
  await row(page, "Store seconds").getByText("agent is here").waitFor();
  await page.locator(".entry.undone").getByText("undone", { exact: true }).first().waitFor();
  const { active_branch_id: active } = await agent.call("context_branch_status", {});
  assert.equal(active, target);
});

scenario("a rollback names the branches that it reopens, and they are open afterwards", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, "/home/ana/work/shop");
  await agent.branch("Find the bug");
  await agent.did("Read", "x".repeat(4000));
  const target = await agent.branch("Reproduce it");
  await agent.did("Bash", "y".repeat(4000));
  await agent.fold("It fails.");
  await agent.fold("Found.");
  const session = await agent.session();
  const page = await stage.page(daemon, { path: `/#/sessions/${session}/branches/${target}` });
  await page.getByRole("button", { name: "Roll back to this branch…" }).click();
  const dialog = page.getByRole("dialog", { name: "Roll back to “Reproduce it”?" });
  await dialog.getByText("2 folded branches will be open again, their summaries leave the context:").waitFor();
  await dialog.getByText("No branch will be discarded.").waitFor();
  const names = await dialog.getByRole("listitem").allInnerTexts();
  assert.equal(names.length, 2);
  assert.match(names[0], /folded\s+Find the bug/); // the outer one first
  assert.match(names[1], /folded\s+Reproduce it/);
  await dialog.getByRole("button", { name: "Roll back", exact: true }).click();
  await row(page, "Reproduce it").getByText("agent is here").waitFor();
  await row(page, "Find the bug").getByText("open", { exact: true }).waitFor();
});

scenario("a rollback can discard only later branches", async (stage) => {
  const { page, dialog } = await openDialog(stage);
  await dialog.getByLabel("Only drop later branches").check();
  await dialog.getByText("3\u202f018 → 1\u202f009", { exact: true }).waitFor();
  await dialog.getByRole("button", { name: "Roll back", exact: true }).click();
  await row(page, "Migrate rows").getByText("discarded", { exact: true }).waitFor();
  await page.getByText("1\u202f009 of 32\u202f768 tokens if folded").waitFor();
});

scenario("the dialog is updated while an agent works", async (stage) => {
  const { agent, dialog } = await openDialog(stage);
  await agent.branch("One more");
  await dialog.getByText("2 branches will be discarded:").waitFor();
});

scenario("cancelling a rollback changes nothing", async (stage) => {
  const { agent, page, dialog } = await openDialog(stage);
  const before = await agent.call("context_list_branches", {});
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Cancel");
  await page.keyboard.press("Enter");
  await dialog.waitFor({ state: "hidden" });
  await page.getByRole("button", { name: "Roll back to this branch…" }).click();
  await dialog.waitFor();
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });
  assert.deepEqual(await agent.call("context_list_branches", {}), before);
  assert.ok(
    page.watched.requests.every((url) => !url.endsWith("/rollback")),
    "only previews were requested",
  );
});
