// Two daemons on NATS: the page of one daemon shows live what an agent does at the other.

import { Agent, assert, live, row, scenario } from "./browser.mjs";

scenario("a page shows live what an agent does at another daemon", async (stage) => {
  const store = await stage.nats();
  const here = await stage.daemon({ name: "here", store });
  const there = await stage.daemon({ name: "there", store });
  const agent = new Agent(there, "/home/ann/elsewhere");
  await agent.branch("Begun before");
  const page = await stage.page(here, { path: `/#/sessions/${await agent.session()}` });
  await row(page, "Begun before").waitFor();
  await live(page);
  await agent.branch("Begun meanwhile");
  await row(page, "Begun meanwhile").waitFor();
  await agent.fold("Done over there.");
  await row(page, "Begun meanwhile").filter({ hasText: "folded" }).waitFor();
  await there.kill();
  const other = new Agent(here, "/home/ann/elsewhere");
  await other.branch("Gone on with here");
  await row(page, "Gone on with here").waitFor();
  await page.goto(`${here.url}/#/`);
  await page.getByRole("link", { name: "elsewhere" }).waitFor();
  assert.deepEqual(page.watched.problems, []);
});
