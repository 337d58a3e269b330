// Accessibility: keyboard only, the rules of axe-core, light and dark, narrow screens.

import { join } from "node:path";
import { assert, findings, isSoak, live, makeToken, NARROW, row, scenario } from "./browser.mjs";

const MOST_TABS = 40;
const focused = (page) => page.evaluate(() => document.activeElement.textContent.trim());

/** Presses Tab until the focused element has the wanted text. */
async function tabTo(page, wanted) {
  for (let turn = 0; turn < MOST_TABS; turn += 1) {
    await page.keyboard.press("Tab");
    if (wanted.test(await focused(page))) return;
  }
  assert.fail(`Tab never came to ${wanted}`);
}

const inTree = (page) => page.evaluate(() => document.activeElement.querySelector(".description")?.textContent);

scenario("the keyboard alone is enough", async (stage) => {
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon);
  await live(page);
  await tabTo(page, /^shop$/);
  await page.keyboard.press("Enter");
  await row(page, "Compare in milliseconds").waitFor();
  await tabTo(page, /^main thread: Main thread/);
  await page.keyboard.press("ArrowDown");
  assert.equal(await inTree(page), "Find where the session is refused");
  await page.keyboard.press("ArrowRight");
  assert.equal(await inTree(page), "Reproduce it in a test");
  await page.keyboard.press("ArrowLeft");
  assert.equal(await inTree(page), "Find where the session is refused");
  await page.keyboard.press("ArrowLeft"); // closes it
  assert.equal(await row(page, "Reproduce it").count(), 0);
  await page.keyboard.press("ArrowRight");
  await row(page, "Reproduce it").waitFor();
  await page.keyboard.press("End");
  assert.equal(await inTree(page), "Look for the same mistake elsewhere");
  await page.keyboard.press("Home");
  assert.equal(await inTree(page), "Main thread");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  const details = page.getByRole("region", { name: "Details" });
  await details.getByRole("heading", { name: "Find where the session is refused" }).waitFor();
  assert.equal(await inTree(page), "Find where the session is refused"); // the focus stays in the tree
  await page.keyboard.press("Escape"); // closes what the row has opened
  await details.waitFor({ state: "detached" });
  await page.keyboard.press("Enter");
  await details.getByRole("heading", { name: "Find where the session is refused" }).waitFor();

  await tabTo(page, /^Roll back to this branch…$/);
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").getByText("branches will be discarded").waitFor();
  assert.equal(await focused(page), "Cancel");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  assert.equal(await focused(page), "Roll back to this branch…");
  await page.keyboard.press("Escape"); // leaves the details
  await details.waitFor({ state: "detached" });
  assert.equal(await inTree(page), "Find where the session is refused");

  await page.keyboard.press("/");
  await page.keyboard.type("milliseconds");
  await page.getByText("for “milliseconds”").waitFor(); // slow typing shows results of the first letters, too
  await tabTo(page, /^Find where the session is refused$/);
  await page.keyboard.press("Enter");
  await details.getByRole("heading", { name: "Find where the session is refused" }).waitFor();
});

const PHONE = { colorScheme: "light", viewport: NARROW, hasTouch: true, isMobile: true };

// Light, dark and phone have mostly the same elements, so some rules are enough. `make soak` runs all rules everywhere.
const COLOUR_RULES = isSoak ? undefined : ["color-contrast", "link-in-text-block"];
const LAYOUT_RULES = isSoak
  ? undefined
  : [...COLOUR_RULES, "scrollable-region-focusable", "target-size", "meta-viewport"];

scenario("axe-core finds nothing serious in light and dark", async (stage) => {
  await examine(stage, undefined, { light: undefined, dark: COLOUR_RULES });
});
scenario("axe-core finds nothing serious on a phone", (stage) => examine(stage, PHONE, { light: LAYOUT_RULES }));

/** Checks every view in each colour scheme with its rules. */
async function examine(stage, profile, schemes) {
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon, { profile });
  const check = async (view) => {
    for (const [colorScheme, rules] of Object.entries(schemes)) {
      await page.emulateMedia({ colorScheme });
      assert.deepEqual(await findings(page, rules), [], `${view} in ${colorScheme}`);
    }
    const { content, window } = await page.evaluate(() => ({
      content: document.documentElement.scrollWidth,
      window: innerWidth,
    }));
    assert.ok(content <= window, `${view} fits in its width`);
  };
  await page.locator(".session").first().waitFor();
  await check("sessions");
  await page.locator(".session a").first().click();
  await row(page, "Compare").waitFor();
  for (const table of ["Show as a table", "Show the requests as a table", "Show the folds as a table"])
    await page.getByText(table).click();
  for (const table of ["Tokens over time", "Tokens of the requests", /^Folds/])
    await page.getByRole("region", { name: table }).getByRole("row").nth(1).waitFor();
  await check("session");
  await row(page, "Reproduce it").click();
  await page.locator(".entry").first().waitFor();
  await check("branch");
  await page.getByRole("button", { name: /^Roll back to/ }).click();
  await page.locator("#rollback-confirm:enabled").waitFor();
  await check("dialog");
  await page.keyboard.press("Escape");
  await page.goto(`${daemon.url}/#/search/session`);
  await page.locator(".result").first().waitFor();
  await check("search");
  await page.goto(`${daemon.url}/#/sessions/sess_none`);
  await page.getByRole("heading", { name: "No such session" }).waitFor();
  await check("no session");

  const empty = await stage.daemon({ name: "empty" });
  await page.goto(empty.url);
  await page.getByRole("heading", { name: "No session yet" }).waitFor();
  await check("empty");

  makeToken(stage, "ann");
  const guarded = await stage.daemon({ name: "guarded", argv: ["--token-file", join(stage.folder, "tokens")] });
  await page.goto(guarded.url);
  await page.getByLabel("Token").fill("wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("This token is not valid here.").waitFor();
  await check("sign-in");
}

scenario("on a phone an open branch replaces the tree until it is closed", async (stage) => {
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon, { profile: PHONE });
  await page.locator(".session a").first().tap();
  await row(page, "Find where").tap();
  await page.locator(".entry").first().waitFor();
  assert.equal(await page.getByRole("tree").count(), 0);
  assert.equal(await focused(page), "Find where the session is refused"); // a screen reader begins here
  await page.getByRole("button", { name: "Close" }).tap();
  await row(page, "Find where").waitFor();
});

scenario("a chosen theme is remembered", async (stage) => {
  const daemon = await stage.daemon();
  const page = await stage.page(daemon);
  await page.emulateMedia({ colorScheme: "light" });
  const paper = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await paper();
  await page.locator("#theme").click();
  await page.locator("#theme").click();
  assert.equal(await page.locator("#theme").getAttribute("aria-label"), "Theme: dark");
  const dark = await paper();
  assert.notEqual(dark, light);
  await page.reload();
  assert.equal(await paper(), dark);
});
