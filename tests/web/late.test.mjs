// Answers that come late, or in another order than they were asked for; letters that come in between.

import { Agent, assert, live, row, scenario } from "./browser.mjs";
import { PROJECT as MANY } from "./measure.mjs";

const PROJECT = "/home/ana/work/shop";
const settled = (page) => page.evaluate(() => new Promise((resolve) => setTimeout(resolve))); // what is done is done

scenario("an answer that comes late does not take the events from the view that is shown", async (stage) => {
  const daemon = await stage.daemon();
  const [first, second] = [new Agent(daemon, PROJECT), new Agent(daemon, "/home/ana/work/other")];
  for (const agent of [first, second]) await agent.did("Message", "Begin.");
  const session = await first.session();
  const page = await stage.page(daemon, { path: null });
  const answers = [
    { give: (route) => route.continue(), shown: "1 branch, one open" },
    { give: (route) => route.fulfill({ status: 500, body: "{}" }), shown: "2 branches, 2 deep" },
  ];
  for (const { give, shown } of answers) {
    await page.goto(`${daemon.url}/#/`);
    const held = Promise.withResolvers();
    await page.route(`**/v1/sessions/${session}?*`, (route) => held.resolve(route));
    await live(page);
    await page.locator(".session a").getByText("shop").click();
    const late = await held.promise;
    const path = page.getByRole("navigation", { name: "Path to this view" });
    await path.getByRole("link", { name: "Sessions" }).click();
    await live(page);
    const answered = page.waitForResponse(`**/v1/sessions/${session}?*`);
    await give(late);
    await (await answered).finished();
    await settled(page);
    await second.branch("Something new");
    await page.locator(".session", { hasText: "other" }).getByText(shown).waitFor();
    await page.unrouteAll();
  }
});

scenario("a branch is read behind its tree, so that no event falls between", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  const id = await agent.branch("Find the bug");
  const session = await agent.session();
  const page = await stage.page(daemon, { path: null });
  const held = Promise.withResolvers();
  await page.route(`**/v1/sessions/${session}?*`, (route) => held.resolve(route));
  await page.goto(`${daemon.url}/#/sessions/${session}/branches/${id}`);
  const tree = await held.promise;
  await agent.did("Read", "Something new");
  assert.deepEqual(
    page.watched.requests.filter((url) => url.includes("/trajectory")),
    [],
  );
  await tree.continue();
  await page.locator(".entry", { hasText: "Something new" }).waitFor();
  await live(page);
  await agent.did("Read", "Something newer");
  await page.locator(".entry", { hasText: "Something newer" }).waitFor();
});

scenario("earlier branches stay, whatever was asked for before them", async (stage) => {
  const daemon = await stage.daemon({ scene: ["many", 1, 600] }); // of scale.test.mjs, where it is written anyway
  const agent = new Agent(daemon, MANY);
  const session = await agent.session();
  const page = await stage.page(daemon, { path: `/#/sessions/${session}` });
  await row(page, "Main thread").waitFor();
  await live(page);
  const held = Promise.withResolvers();
  const address = `**/v1/sessions/${session}?limit=60*`;
  await page.route(address, (route) => held.resolve(route), { times: 1 });
  await agent.did("Read", "Something new");
  const late = await held.promise;
  const answer = await late.fetch();
  await page.getByRole("button", { name: /^Show earlier/ }).click();
  await row(page, "Main thread").waitFor();
  await page.getByRole("treeitem").nth(119).waitFor();
  const answered = page.waitForResponse(address);
  await late.fulfill({ response: answer });
  await (await answered).finished();
  await settled(page);
  assert.equal(await page.getByRole("treeitem").count(), 121);
});

scenario("no letter is lost that is typed while others are looked for", async (stage) => {
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon);
  await live(page);
  await page.evaluate(() => {
    const words = document.getElementById("words");
    const type = (text) => {
      words.value = text;
      words.dispatchEvent(new Event("input", { bubbles: true }));
    };
    type("mill");
    setTimeout(() => type("milli"), 250); // when it is looked for: the address has changed, and the page not heard of it
  });
  await page.getByText("for “milli”").waitFor();
  assert.equal(await page.locator("#words").inputValue(), "milli");
});
