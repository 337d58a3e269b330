// The pictures of the documentation, from the real page: taken into docs/images when CONTEXTFOLD_SCREENSHOTS=1.

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { assert, live, makeToken, NARROW, ROOT, row, scenario } from "./browser.mjs";

const FOLDER = join(ROOT, "docs", "images");
const LOOKS = {
  light: { colorScheme: "light" },
  dark: { colorScheme: "dark" },
  narrow: { colorScheme: "light", viewport: NARROW, deviceScaleFactor: 2, hasTouch: true, isMobile: true },
};

scenario("every view can be photographed in light", (stage) => photograph(stage, "light"));
scenario("every view can be photographed in dark", (stage) => photograph(stage, "dark"));
scenario("every view can be photographed on a phone", (stage) => photograph(stage, "narrow"));

async function photograph(stage, look) {
  mkdirSync(FOLDER, { recursive: true });
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon, { reducedMotion: "reduce", ...LOOKS[look] });
  const photo = async (name) => {
    const bytes = await page.screenshot({ path: join(FOLDER, `${name}-${look}.png`) });
    assert.ok(bytes.length < 200_000, `${name} is ${bytes.length} bytes`);
  };
  await page.locator(".session").first().waitFor();
  await live(page);
  await photo("sessions");
  await page.locator(".session a").first().click();
  await row(page, "Compare").waitFor();
  await page.locator(".dots circle").first().waitFor();
  await live(page);
  await photo("session");
  if (look === "narrow") {
    await page.locator(".tree-card").evaluate((card) => card.scrollIntoView());
    await page.evaluate(() => scrollBy(0, -120)); // out from under the bar on top
    await photo("tree");
  }
  await row(page, "Reproduce it").click();
  await page.locator(".entry").nth(2).waitFor();
  await page.mouse.move(0, 0);
  await photo("branch");
  await page.getByRole("button", { name: /^Roll back to/ }).click();
  await page.locator("#rollback-confirm:enabled").waitFor();
  await photo("rollback");
  await page.keyboard.press("Escape");
  await page.goto(`${daemon.url}/#/search/session`);
  await page.locator(".result").first().waitFor();
  await photo("search");
  const empty = await stage.daemon({ name: "empty" });
  await page.goto(empty.url);
  await page.getByRole("heading", { name: "No session yet" }).waitFor();
  await live(page);
  await photo("empty");
  makeToken(stage, "ana");
  const guarded = await stage.daemon({ name: "guarded", argv: ["--token-file", join(stage.folder, "tokens")] });
  await page.goto(guarded.url);
  await page.getByLabel("Token").waitFor();
  await photo("sign-in");
}
