// Screenshots for the documentation. They are written to docs/images if CONTEXTFOLD_SCREENSHOTS=1.

import { execFileSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { assert, COMMANDS, findings, live, NARROW, ROOT, row, scenario } from "./browser.mjs";

const FOLDER = join(ROOT, "docs", "images");
const LOOKS = {
  light: { colorScheme: "light" },
  dark: { colorScheme: "dark" },
  narrow: { colorScheme: "light", viewport: NARROW, deviceScaleFactor: 2, hasTouch: true, isMobile: true },
};
const SCREENSHOTS = {
  light: ["sessions", "session", "ledger", "branch", "rollback", "search", "totals", "ask", "ended", "welcome"],
  dark: ["session", "totals", "ask", "ended"],
  narrow: ["sessions", "tree", "rollback", "totals", "ask", "ended"],
};

scenario("the views can be captured in light", (stage) => capture(stage, "light"));
scenario("the views can be captured in dark", (stage) => capture(stage, "dark"));
scenario("the views can be captured on a phone", (stage) => capture(stage, "narrow"));

async function capture(stage, look) {
  mkdirSync(FOLDER, { recursive: true });
  const caches = join(stage.folder, "caches");
  mkdirSync(caches);
  execFileSync(join(COMMANDS, "context"), ["build", "--sources", join(ROOT, "docs"), "--cache", join(caches, "docs")]);
  const daemon = await stage.daemon({ scene: ["story"], argv: ["--cache-root", caches] });
  const page = await stage.page(daemon, { profile: { reducedMotion: "reduce", ...LOOKS[look] } });
  const screenshot = async (name, of = page) => {
    // Every view is checked for accessibility in every look, also without a screenshot.
    assert.deepEqual(await findings(page), [], `${name}, ${look}`);
    if (!SCREENSHOTS[look].includes(name)) return;
    const bytes = await of.screenshot({ path: join(FOLDER, `${name}-${look}.png`) });
    assert.ok(bytes.length < 250_000, `${name} is ${bytes.length} bytes`);
  };
  await page.locator(".session").first().waitFor();
  await live(page);
  await screenshot("sessions");
  await page.locator(".session a").first().click();
  await row(page, "Compare").waitFor();
  await page.locator(".dots circle").first().waitFor();
  await live(page);
  await screenshot("session");
  await screenshot("ledger", page.locator(".ledger-card"));
  await page.evaluate(() => scrollTo(0, 0));
  if (look === "narrow") {
    await page.locator(".tree-card").evaluate((card) => card.scrollIntoView());
    await page.evaluate(() => scrollBy(0, -120)); // out from under the bar on top
    await screenshot("tree");
  }
  await row(page, "Reproduce it").click();
  await page.locator(".entry").nth(2).waitFor();
  await page.mouse.move(0, 0);
  await screenshot("branch");
  await page.getByRole("button", { name: /^Roll back to/ }).click();
  await page.locator("#rollback-confirm:enabled").waitFor();
  await screenshot("rollback");
  await page.keyboard.press("Escape");
  await page.goto(`${daemon.url}/#/search/session`);
  await page.locator(".result").first().waitFor();
  await screenshot("search");
  await page.goto(`${daemon.url}/#/totals`);
  await page.getByLabel("Group by").selectOption("model");
  await page.locator(".totals th", { hasText: "a-model" }).waitFor();
  await screenshot("totals");
  await page.goto(`${daemon.url}/#/ask`);
  await page.getByLabel("Question").fill("how do I point Claude Code at the proxy?");
  await page.getByLabel("Budget in tokens").fill("1500");
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.locator(".answer details summary").first().click();
  await page.getByRole("heading", { name: "Ask a cache" }).focus();
  await page.evaluate(() => scrollTo(0, 0));
  await screenshot("ask");
  const past = await stage.daemon({ name: "past", scene: ["ended"] });
  await page.goto(past.url);
  await page.locator(".session.ended a").click();
  await row(page, "Bring the changelog up to date").click();
  await page.locator(".entry").first().waitFor();
  await page.mouse.move(0, 0);
  await page.evaluate(() => scrollTo(0, 0));
  await screenshot("ended");
  if (look !== "light") return;
  const empty = await stage.daemon({ name: "empty" });
  await page.goto(empty.url);
  await page.locator(".welcome").waitFor();
  await screenshot("welcome");
}
