// The cost of a first view and of an update: time, bytes fetched, elements of the page. The scenarios check bytes and
// elements. Run alone (`node measure.mjs TURNS SESSIONS BRANCHES LONG OPERATIONS`), it prints the times of small and
// large stores.

import { pathToFileURL } from "node:url";
import { Agent, changed, closeBrowser, live, Stage, textOf } from "./browser.mjs";

const UPDATE_PAUSE_MS = 1100; // longer than the page waits between two readings of a list
export const PROJECT = "/home/ana/many/project-0000"; // seed.py always makes this project

/** For each view: its path, the elements that it has when it is complete, and the elements that an update changes. */
const VIEWS = {
  sessions: {
    path: async () => "/",
    ready: [".session"],
    shows: [".session .session-usage .number"],
  },
  session: {
    // Requested only once, so that a restarted daemon reads nothing before the view does.
    path: async (agent) => `/#/sessions/${(agent.daemon.sessionId ??= await agent.session())}`,
    ready: ['[role="treeitem"][aria-level="2"]', ".dots circle"],
    shows: [".usage-text", "#chart-summary"], // figures and chart are read separately
  },
};

export class Look {
  bytes = 0;

  constructor(page, view, agent) {
    Object.assign(this, { page, view, agent });
  }

  static async at(stage, daemon, name) {
    const agent = new Agent(daemon, PROJECT);
    const page = await stage.page(daemon, { path: null });
    const look = new Look(page, VIEWS[name], agent);
    const network = await page.context().newCDPSession(page);
    await network.send("Network.enable");
    await network.send("Network.clearBrowserCache");
    network.on("Network.loadingFinished", ({ encodedDataLength }) => (look.bytes += encodedDataLength));
    const url = `${daemon.url}${await look.view.path(agent)}`;
    look.ms = await elapsedMs(async () => {
      await page.goto(url);
      for (const selector of look.view.ready) await page.locator(selector).first().waitFor();
    });
    await live(page);
    return look;
  }

  /** Lets the agent do something. Gives the milliseconds until the page shows it. */
  async update() {
    await this.page.waitForTimeout(UPDATE_PAUSE_MS);
    const { shows } = this.view;
    const before = await Promise.all(shows.map((selector) => textOf(this.page, selector)));
    this.bytes = 0;
    const updated = Promise.all(shows.map((selector, index) => changed(this.page, selector, before[index])));
    return elapsedMs(async () => {
      await this.agent.did("Read", "x".repeat(40));
      await updated;
    });
  }

  nodes() {
    return this.page.evaluate(() => document.querySelectorAll("*").length);
  }

  close() {
    return this.page.close();
  }
}

async function elapsedMs(work) {
  const begin = performance.now();
  await work();
  return performance.now() - begin;
}

/** Measures first views and updates of two daemons in turns. With `isAnew`, a daemon is restarted before each view. */
async function inTurns(stage, turns, view, daemons, isAnew = false) {
  const times = daemons.map(() => ({ first: [], update: [] }));
  for (let turn = 0; turn <= turns; turn += 1) {
    const order = turn % 2 ? [0, 1] : [1, 0]; // the first one is affected by what ran before it
    for (const index of order) {
      const daemon = daemons[index];
      if (isAnew) {
        await daemon.stop();
        await daemon.start();
      }
      const look = await Look.at(stage, daemon, view);
      const update = await look.update();
      await look.close();
      if (turn === 0) continue; // warms up
      times[index].first.push(look.ms);
      times[index].update.push(update);
    }
  }
  return times;
}

async function main([turns, sessions, branches, long, operations]) {
  const stage = new Stage();
  try {
    const few = await stage.daemon({ name: "few", scene: ["many", 10, 10] });
    const many = await stage.daemon({ name: "many", scene: ["many", sessions, branches] });
    const window = await stage.daemon({ name: "window", scene: ["many", 1, 60] });
    const tall = await stage.daemon({ name: "tall", scene: ["many", 1, long] });
    const quiet = await stage.daemon({ name: "quiet", scene: ["busy", 200] });
    const busy = await stage.daemon({ name: "busy", scene: ["busy", operations] });
    console.log(
      JSON.stringify({
        sessions: await inTurns(stage, turns, "sessions", [few, many]),
        session: await inTurns(stage, turns, "session", [few, many]),
        long: await inTurns(stage, turns, "session", [window, tall]),
        busy: await inTurns(stage, turns, "session", [quiet, busy]),
        anew: await inTurns(stage, turns, "session", [quiet, busy], true),
      }),
    );
  } finally {
    await stage.close();
    await closeBrowser();
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) await main(process.argv.slice(2).map(Number));
