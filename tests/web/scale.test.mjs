// Many, long and busy sessions: the page fetches and holds little data.

import { Agent, assert, isSoak, live, row, scenario } from "./browser.mjs";
import { Look, PROJECT } from "./measure.mjs";

const LIMIT = 2; // times the cost of ten sessions
const SESSIONS = isSoak ? 1000 : 48;
const BRANCHES = isSoak ? 1000 : 600;
const WINDOW = 60; // branches that are shown at first
const FIRST = 400; // the limit of entries that the page holds of a branch
const STEPS = isSoak ? 100 : WINDOW + 10;
const EVENTS = isSoak ? 2000 : 96;
const AT_ONCE = 16;
const MOST_NODES = 4300;
const READS_PER_SECOND = 4;
const MOST_GROWTH_BYTES = 250_000; // less than the events themselves

/** Compares bytes and elements of a first view and of an update with those of a smaller store. */
async function compare(stage, view, small, large) {
  const costs = [];
  for (const daemon of [small, large]) {
    const look = await Look.at(stage, daemon, view);
    const first = look.bytes;
    const nodes = await look.nodes();
    await look.update();
    costs.push({ first, nodes, update: look.bytes, updatedNodes: await look.nodes() });
    assert.deepEqual(look.page.watched.problems, []);
    await look.close();
  }
  for (const [name, cost] of Object.entries(costs[1])) {
    assert.ok(costs[0][name] > 0, name);
    assert.ok(cost <= LIMIT * costs[0][name], `${view}, ${name}: ${cost} if large, ${costs[0][name]} if small`);
  }
}

scenario("many sessions cost at most twice as much as ten", async (stage) => {
  const few = await stage.daemon({ name: "few", scene: ["many", 10, 4] });
  const many = await stage.daemon({ name: "many", scene: ["many", SESSIONS, 4] });
  await compare(stage, "sessions", few, many);
  await compare(stage, "session", few, many);
  const page = await stage.page(many);
  await page.getByText(`${count(SESSIONS)} live`).waitFor();
  await page.getByRole("button", { name: /^Show more/ }).click();
  await page.locator(".session").nth(39).waitFor();
  assert.equal(await page.locator(".session").count(), 40);
});

scenario("a session of many branches shows its newest ones, and earlier ones on demand", async (stage) => {
  const small = await stage.daemon({ name: "small", scene: ["many", 1, WINDOW] });
  const large = await stage.daemon({ name: "large", scene: ["many", 1, BRANCHES] });
  await compare(stage, "session", small, large);
  const page = await stage.page(large, { path: `/#/sessions/${await new Agent(large, PROJECT).session()}` });
  await row(page, `Piece of work ${BRANCHES}`).waitFor();
  assert.ok(await row(page, `Piece of work ${BRANCHES}`).isVisible(), "the newest is on screen");
  const first = () => page.getByRole("treeitem").nth(1).locator(".description").innerText();
  assert.equal(await first(), `Piece of work ${BRANCHES - WINDOW + 1}`);
  for (let turn = 0; turn < 9; turn += 1) {
    const before = await first();
    await page.getByRole("button", { name: /^Show earlier/ }).click();
    await page.getByRole("treeitem").nth(1).locator(".description").filter({ hasNotText: before }).waitFor();
    assert.ok((await page.getByRole("treeitem").count()) <= 500, "rows are bounded");
  }
  await page.getByRole("button", { name: "Show the newest" }).click();
  await row(page, `Piece of work ${BRANCHES}`).waitFor();
});

scenario("many events do not make the page larger, and are read in batches", async (stage) => {
  // The tree, the chart and the entries of the branch have reached their limits.
  const daemon = await stage.daemon({ scene: ["busy", FIRST, STEPS] });
  const agent = new Agent(daemon, PROJECT);
  const { session_id: session, active_branch_id: id } = await agent.call("context_branch_status", {});
  const page = await stage.page(daemon, { path: `/#/sessions/${session}/branches/${id}` });
  await row(page, `Small step ${STEPS}`).waitFor();
  const details = page.getByRole("region", { name: "Details" });
  for (const last = details.getByText(`Step ${FIRST}:`); !(await last.count()); ) {
    const text = details.locator(".entry .text").last();
    const before = await text.innerText();
    await details.getByRole("button", { name: "Show more", exact: true }).click();
    await text.filter({ hasNotText: before }).waitFor();
  }
  await live(page);
  const reads = () =>
    page.watched.requests.filter((url) => url.includes(`${session}?`) && !url.includes("events")).length;
  const recordOperations = async (operations, shown) => {
    for (let done = 0; done < operations; done += AT_ONCE) {
      await Promise.all(Array.from({ length: AT_ONCE }, () => agent.did("Read", "x".repeat(40))));
    }
    const figures = page.locator(".figure", { hasText: "Operations" }); // one of the session, one of the branch
    for (const index of [0, 1]) await figures.nth(index).getByText(shown, { exact: true }).waitFor();
  };
  await recordOperations(AT_ONCE, count(FIRST + AT_ONCE));
  const before = { at: performance.now(), reads: reads(), nodes: await nodes(page), heap: await heap(page) };
  await recordOperations(EVENTS, count(FIRST + AT_ONCE + EVENTS));
  const seconds = (performance.now() - before.at) / 1000;
  assert.ok(reads() - before.reads <= READS_PER_SECOND * seconds + READS_PER_SECOND, "reads are limited");
  const after = await nodes(page);
  assert.ok(after <= MOST_NODES && after <= 2 * before.nodes, `${before.nodes} elements, then ${after}`);
  const growth = (await heap(page)) - before.heap;
  assert.ok(growth <= MOST_GROWTH_BYTES, `${before.heap} bytes held by scripts, then ${growth} more`);
  assert.deepEqual(page.watched.problems, []);
});

/** A number in the format of the page. */
const count = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");

/** Bytes of the heap after garbage collection. */
async function heap(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  const { usedSize } = await session.send("Runtime.getHeapUsage");
  await session.detach();
  return usedSize;
}

function nodes(page) {
  return page.evaluate(() => document.querySelectorAll("*").length);
}
