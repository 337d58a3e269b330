// Responses that arrive late or in another order than their requests, and input that arrives in between.

import { Agent, assert, live, row, scenario } from "./browser.mjs";
import { PROJECT as MANY } from "./measure.mjs";

const PROJECT = "/home/ana/work/shop";
/** Waits until the page has run all its pending tasks. */
const settled = (page) => page.evaluate(() => new Promise((resolve) => setTimeout(resolve)));

scenario("a late response for another view does not stop updates of the current view", async (stage) => {
  const daemon = await stage.daemon();
  const [first, second] = [new Agent(daemon, PROJECT), new Agent(daemon, "/home/ana/work/other")];
  for (const agent of [first, second]) await agent.did("Message", "Begin.");
  const session = await first.session();
  const page = await stage.page(daemon, { path: null });
  const responses = [
    { respond: (route) => route.continue(), shown: "1 branch, one open" },
    { respond: (route) => route.fulfill({ status: 500, body: "{}" }), shown: "2 branches, 2 deep" },
  ];
  for (const { respond, shown } of responses) {
    await page.goto(`${daemon.url}/#/`);
    const heldRoute = Promise.withResolvers();
    await page.route(`**/v1/sessions/${session}?*`, (route) => heldRoute.resolve(route));
    await live(page);
    await page.locator(".session a").getByText("shop").click();
    const delayed = await heldRoute.promise;
    const path = page.getByRole("navigation", { name: "Path to this view" });
    await path.getByRole("link", { name: "Sessions" }).click();
    await live(page);
    const responded = page.waitForResponse(`**/v1/sessions/${session}?*`);
    await respond(delayed);
    await (await responded).finished();
    await settled(page);
    await second.branch("Something new");
    await page.locator(".session", { hasText: "other" }).getByText(shown).waitFor();
    await page.unrouteAll();
  }
});

scenario("a branch is read after its tree, so that no event is missed", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, PROJECT);
  const id = await agent.branch("Find the bug");
  const session = await agent.session();
  const page = await stage.page(daemon, { path: null });
  const heldRoute = Promise.withResolvers();
  await page.route(`**/v1/sessions/${session}?*`, (route) => heldRoute.resolve(route));
  await page.goto(`${daemon.url}/#/sessions/${session}/branches/${id}`);
  const tree = await heldRoute.promise;
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

scenario("earlier branches stay on the page when an older response arrives later", async (stage) => {
  const daemon = await stage.daemon({ scene: ["many", 1, 600] }); // scale.test.mjs writes this scene, too
  const agent = new Agent(daemon, MANY);
  const session = await agent.session();
  const page = await stage.page(daemon, { path: `/#/sessions/${session}` });
  await row(page, "Main thread").waitFor();
  await live(page);
  const heldRoute = Promise.withResolvers();
  const address = `**/v1/sessions/${session}?limit=60*`;
  await page.route(address, (route) => heldRoute.resolve(route), { times: 1 });
  await agent.did("Read", "Something new");
  const delayed = await heldRoute.promise;
  const response = await delayed.fetch();
  await page.getByRole("button", { name: /^Show earlier/ }).click();
  await row(page, "Main thread").waitFor();
  await page.getByRole("treeitem").nth(119).waitFor();
  const responded = page.waitForResponse(address);
  await delayed.fulfill({ response });
  await (await responded).finished();
  await settled(page);
  assert.equal(await page.getByRole("treeitem").count(), 121);
});

scenario("no letter is lost that is typed during a search", async (stage) => {
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
    // This is during the search: the address has changed, and the page has not had the event yet.
    setTimeout(() => type("milli"), 250);
  });
  await page.getByText("for “milli”").waitFor();
  assert.equal(await page.locator("#words").inputValue(), "milli");
});
