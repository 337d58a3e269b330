// The page shows sessions and branches, and updates them.

import { Agent, assert, changed, findings, live, row, scenario, textOf } from "./browser.mjs";

const PROJECT = "/home/ana/work/shop";

scenario("the tree of a session appears", async (stage) => {
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon);
  await page.getByRole("link", { name: "shop" }).first().click();
  await row(page, "Compare in milliseconds").waitFor();
  const tree = page.getByRole("tree", { name: "Branches" });
  assert.deepEqual(
    await tree
      .getByRole("treeitem")
      .evaluateAll((rows) =>
        rows.map((item) => [item.getAttribute("aria-level"), item.querySelector(".description").textContent]),
      ),
    [
      ["1", "Main thread"],
      ["2", "Find where the session is refused"],
      ["3", "Reproduce it in a test"],
      ["2", "Store seconds everywhere"],
      ["3", "Migrate the rows that exist"],
      ["2", "Compare in milliseconds"],
      ["3", "Look for the same mistake elsewhere"],
    ],
  );
  assert.match(await row(page, "Find where").innerText(), /summary \d+\s+\d+\u202f/); // its size and its duration
  assert.match(await row(page, "Migrate the rows").innerText(), /discarded/);
  assert.match(await row(page, "Look for the same mistake").innerText(), /agent is here/);
  await page
    .locator("#chart-summary")
    .getByText(/of the limit of 32\u202f768/)
    .waitFor();
  assert.ok((await page.locator(".line.total").getAttribute("d")).includes("H"), "a line was drawn");
  await page.getByText("Show as a table").click();
  await page.getByRole("row").nth(20).waitFor();
  await page.reload();
  await row(page, "Compare in milliseconds").waitFor(); // the address has the session
});

scenario("the tree grows while an agent works", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  await agent.did("Message", "Users are signed out.");
  const page = await stage.page(daemon, { path: `/#/sessions/${await agent.session()}` });
  await live(page);
  await page
    .locator("#chart-summary")
    .getByText(/^Now 6 tokens/)
    .waitFor(); // a chart of one step
  const top = await agent.branch("Find the bug");
  await row(page, "Find the bug").waitFor();
  await row(page, "Find the bug").evaluate((item) => item.focus());
  await agent.branch("Reproduce it");
  await row(page, "Reproduce it").waitFor();
  await agent.did("Bash", "x".repeat(4000), true);
  await row(page, "Reproduce it").getByText("1 failed").waitFor();
  await agent.fold("It fails without a cookie.");
  await row(page, "Reproduce it")
    .getByText(/^summary/)
    .waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.dataset.key), top, "the focus stays on its row");
  await agent.fold("The cookie was not read.");
  await page.getByText("2 folded").waitFor();
  assert.match(await row(page, "Main thread").innerText(), /agent is here/);
  assert.deepEqual(page.watched.problems, []);
});

scenario("the list of sessions is updated while agents work", async (stage) => {
  const daemon = await stage.daemon();
  const page = await stage.page(daemon);
  await page.getByRole("heading", { name: "No session yet" }).waitFor();
  await page.getByText(`context install claude-code --url ${daemon.url} --proxy`, { exact: true }).waitFor();
  await live(page);
  await new Agent(daemon, "/home/ana/work/first").branch("Begin");
  await page.getByRole("link", { name: "first" }).waitFor();
  await page.getByText("1 branch, one open").waitFor();
});

scenario("the session with the latest activity moves to the top", async (stage) => {
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon);
  await live(page);
  const names = () => page.locator(".session a").allInnerTexts();
  assert.deepEqual(await names(), ["shop", "shop", "reports", "api-gateway", "infra", "docs-site"]);
  await page.locator(".session a").getByText("infra").focus();
  await new Agent(daemon, "/home/ana/work/infra").did("Read", "x".repeat(80_000));
  await page.locator(".session").first().getByText("infra", { exact: true }).waitFor();
  assert.deepEqual(await names(), ["infra", "shop", "shop", "reports", "api-gateway", "docs-site"]);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "infra"); // the focus moves with it
});

scenario("a warning is shown with its advice", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  await agent.did("Read", "x".repeat(4 * 25_000));
  const page = await stage.page(daemon);
  await page.locator(".session").getByText("high", { exact: true }).waitFor();
  await page.goto(`${daemon.url}/#/sessions/${await agent.session()}`);
  await page
    .locator(".notice")
    .getByText(/^The main thread is at 76\u202f% of the limit\.$/)
    .waitFor();
  await page.locator(".notice").getByText("context_fold").waitFor();
  assert.equal(await page.locator(".toast.on").count(), 0, "the banner has the warning, so no toast repeats it");
});

scenario("a branch with many failures is reported although the main thread is healthy", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  await agent.branch("Make the tests pass");
  for (const failed of [true, false, false, false, true]) await agent.did("Bash", "One more try.", failed);
  const page = await stage.page(daemon, { path: `/#/sessions/${await agent.session()}` });
  const message = (count) => `of the open branch's ${count} operations failed.`;
  await page.locator(".usage").getByText(`40\u202f% ${message(5)}`).waitFor();
  assert.equal(await page.locator(".overview .notice").isVisible(), false, "a few failures are no warning");
  await live(page);
  await agent.did("Bash", "One more try.", true);
  await agent.did("Bash", "One more try.", true);
  await page.getByText(message(7)).first().waitFor();
  await page.locator(".notice-medium").getByText(`57\u202f% ${message(7)}`, { exact: true }).waitFor();
  await page.locator(".figure", { hasText: "Health" }).getByText("failing").waitFor();
  await page.goto(`${daemon.url}/#/`);
  await page.locator(".session .health-medium").getByText("failing").waitFor();
  await agent.fold("It was the clock.");
  await page.locator(".session").getByText("good", { exact: true }).waitFor();
});

scenario("the page survives a restart of the daemon and misses nothing", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  await agent.branch("Before the restart");
  const page = await stage.page(daemon, { path: `/#/sessions/${await agent.session()}` });
  await live(page);
  await daemon.kill();
  await page.getByText("connection lost, trying again").waitFor();
  await row(page, "Before the restart").waitFor(); // what was shown before stays
  await daemon.start();
  await agent.branch("Right after the restart");
  await row(page, "Right after the restart").waitFor();
  await live(page);
  await agent.branch("Long after the restart");
  await row(page, "Long after the restart").waitFor();
  await page.goto(`${daemon.url}/#/`);
  await page.getByRole("link", { name: "shop" }).waitFor();
});

scenario("a figure that cannot be read is marked as old, and read again without another event", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  const id = await agent.branch("Find the bug");
  const session = await agent.session();
  const views = [
    { path: "/#/", part: "/v1/sessions?*", shows: ".session-usage .number" },
    { path: `/#/sessions/${session}`, part: `/v1/sessions/${session}?*`, shows: ".usage-text" },
    { path: `/#/sessions/${session}`, part: "/timeline", shows: "#chart-summary" },
    { path: `/#/sessions/${session}/branches/${id}`, part: "/trajectory?*", shows: ".details .figure" },
  ];
  const page = await stage.page(daemon, { path: null });
  for (const { path, part, shows } of views) {
    await page.goto("about:blank");
    await page.goto(`${daemon.url}${path}`);
    await page.locator(shows, { hasText: /\d/ }).first().waitFor();
    await live(page);
    const before = await textOf(page, shows);
    const fails = (route) => route.fulfill({ status: 503, body: "{}" });
    await page.route(`**${part}`, fails);
    await agent.did("Read", "x".repeat(400));
    await page.getByText("not up to date, trying again").waitFor();
    assert.equal(await textOf(page, shows), before, "the old figure stays");
    await page.unroute(`**${part}`, fails);
    await changed(page, shows, before);
    await live(page);
  }
});

scenario("a page in the background reads nothing, and is updated when it is shown again", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  await agent.branch("Before");
  const path = `/#/sessions/${await agent.session()}`;
  const [page, other] = [await stage.page(daemon, { path }), await stage.page(daemon, { path })];
  await live(page);
  await live(other);
  const setHidden = (isHidden) =>
    page.evaluate((value) => {
      Object.defineProperty(document, "hidden", { value, configurable: true }); // as a browser does for a tab
      document.dispatchEvent(new Event("visibilitychange"));
    }, isHidden);
  await setHidden(true);
  const requestCount = page.watched.requests.length;
  await agent.branch("Meanwhile");
  await row(other, "Meanwhile").waitFor();
  assert.equal(page.watched.requests.length, requestCount);
  assert.equal(await row(page, "Meanwhile").count(), 0);
  await setHidden(false);
  await row(page, "Meanwhile").waitFor();
  await agent.branch("Afterwards");
  await row(page, "Afterwards").waitFor();
});

scenario("another store at the same address replaces the view", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  for (const turn of [1, 2, 3]) await agent.did("Message", `Turn ${turn}`);
  const page = await stage.page(daemon);
  await page.getByRole("link", { name: "shop" }).waitFor();
  await live(page);
  await daemon.kill();
  daemon.store = `${daemon.store}.new`; // its cursors start again, and the page's cursor is unknown
  await daemon.start();
  await page.getByRole("heading", { name: "No session yet" }).waitFor();
  await live(page);
  await new Agent(daemon, "/home/ana/work/other").did("Message", "Hello.");
  await page.getByRole("link", { name: "other" }).waitFor();
});

scenario("a branch shows its prompt, operations, children and summary", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  const id = await agent.branch("Find the bug", "Follow the request.");
  await agent.did("Bash", `begin ${"long ".repeat(400)} end`, true);
  await agent.branch("Reproduce it");
  await agent.fold("It fails.");
  await agent.fold("The cookie was not read.");
  const page = await stage.page(daemon, { path: `/#/sessions/${await agent.session()}/branches/${id}` });
  const details = page.getByRole("region", { name: "Details" });
  await details.getByText("The cookie was not read.").waitFor();
  await details.getByText("Follow the request.").waitFor();
  const operation = details.locator('[data-kind="operation"]');
  assert.match(await operation.innerText(), /Bash[\s\S]*failed/);
  assert.doesNotMatch(await operation.innerText(), / end/);
  await operation.getByRole("button", { name: /^Show all/ }).click();
  assert.match(await operation.innerText(), / end/);
  await details.getByRole("link", { name: "Reproduce it" }).click();
  await details.getByText("It fails.").waitFor();
  await row(page, "Main thread").click();
  await details.getByRole("heading", { name: "Main thread" }).waitFor();
  await agent.did("Message", "Thank you.");
  await details.getByText("Thank you.").waitFor(); // the open details are updated, too
});

scenario("a long branch is read page by page", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  const id = await agent.branch("Read much");
  for (let turn = 1; turn <= 6; turn += 1)
    await agent.did("Read", `page ${turn} ${"word ".repeat(1500)} last of ${turn}`);
  const page = await stage.page(daemon, { path: `/#/sessions/${await agent.session()}/branches/${id}` });
  const details = page.getByRole("region", { name: "Details" });
  await details.getByText("page 1").waitFor();
  assert.equal(await details.getByText("page 6").count(), 0);
  for (let turn = 0; turn < 4; turn += 1) {
    const before = await details.locator(".entry").count();
    await details.getByRole("button", { name: "Show more", exact: true }).click();
    await details.locator(".entry").nth(before).waitFor();
    if (await details.getByText("page 6").count()) break;
  }
  while (await details.getByRole("button", { name: /^Show all/ }).count())
    await details
      .getByRole("button", { name: /^Show all/ })
      .first()
      .click();
  for (let turn = 1; turn <= 6; turn += 1)
    await details.locator(".entry", { hasText: new RegExp(`page ${turn} (word )+ last of ${turn}`) }).waitFor();
  assert.equal(await details.locator(".entry").count(), 7, "a text cut by a page's end is one entry");
});

scenario("a branch that grows beyond the limit of the page shows its last entries", async (stage) => {
  const [begin, end] = [395, 405]; // below and above the limit
  const daemon = await stage.daemon({ scene: ["busy", begin] });
  const agent = new Agent(daemon, "/home/ana/many/project-0000");
  const { session_id: session, active_branch_id: id } = await agent.call("context_branch_status", {});
  const page = await stage.page(daemon, { path: `/#/sessions/${session}/branches/${id}` });
  const details = page.getByRole("region", { name: "Details" });
  const numbers = async () =>
    (await details.locator('[data-kind="operation"] .text').allInnerTexts()).map((text) => Number(text.match(/\d+/)));
  const more = details.getByRole("button", { name: "Show more", exact: true });
  await details.getByText("Step 1:").waitFor();
  while ((await numbers()).at(-1) < begin) {
    const last = (await numbers()).at(-1);
    await more.click();
    await details.getByText(`Step ${last + 1}:`).waitFor();
  }
  await live(page);
  for (let number = begin + 1; number <= end; number += 1) {
    await agent.did("Read", `Step ${number}: looked at one more, nothing unusual was seen.`);
    await details.getByText(`Step ${number}:`).waitFor();
    const shown = await numbers();
    assert.ok(shown.length <= 400, `${shown.length} entries`);
    assert.deepEqual(
      shown,
      shown.map((_, index) => number - shown.length + 1 + index), // without a gap up to the last one
    );
  }
  await details.getByText("The first entries are no longer shown.").waitFor();
  await details.getByRole("button", { name: "Start again from the first" }).click();
  await details.getByText("Step 1:").waitFor();
  assert.equal((await numbers())[0], 1);
});

scenario("an ended session is opened from the list and cannot be rolled back", async (stage) => {
  const daemon = await stage.daemon({ scene: ["ended"] });
  const page = await stage.page(daemon);
  await page.locator(".session.ended a").focus();
  await page.keyboard.press("Enter");
  await page.getByText(/^ended, last activity/).waitFor();
  await row(page, "Bring the changelog up to date").click();
  await page.locator(".entry", { hasText: "four fixes, one new flag." }).waitFor();
  assert.equal(await page.getByRole("button", { name: /Roll back/ }).count(), 0);
  assert.equal(await page.locator(".chart:visible").count(), 0);
  assert.deepEqual(await findings(page), []);
});

scenario("search finds the folds of ended sessions", async (stage) => {
  const daemon = await stage.daemon({ scene: ["ended"] });
  const page = await stage.page(daemon);
  await page.locator(".session.ended", { hasText: "docs-site" }).waitFor();
  await page.locator("#words").fill("changelog entr");
  await page.locator(".result", { hasText: "four fixes, one new flag." }).waitFor();
  await page.getByText("its session has ended").waitFor();
  await page.getByText("Found by changelog (description").waitFor();
  await page.locator("#words").fill("changelog walrus");
  await page.getByRole("list", { name: "Earlier work" }).getByText("context fold expand br_").waitFor();
  assert.equal(await page.getByRole("link", { name: "Bring the changelog up to date" }).count(), 0);
  await page.goto(`${daemon.url}/#/sessions/sess_0000000000000000`);
  await page.getByText("It has been deleted after its retention, or it belongs to another owner.").waitFor();
  assert.doesNotMatch(await page.locator(".page-head").innerText(), /last activity/);
});
