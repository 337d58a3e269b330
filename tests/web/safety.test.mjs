// Text from outside is never interpreted as markup, and no request leaves the machine.

import { Agent, assert, live, row, scenario } from "./browser.mjs";

const MARKUP = `<script>alert(1)</script><img src="/x" onerror="alert(2)">`;
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
  "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

scenario("injected markup stays text wherever it comes from", async (stage) => {
  const daemon = await stage.daemon();
  const agent = new Agent(daemon, `/home/ana/${MARKUP}`);
  const id = await agent.branch(`desc ${MARKUP}`, `prompt ${MARKUP}`);
  await agent.did("Bash", `operation ${MARKUP}`);
  await agent.branch(`child ${MARKUP}`);
  await agent.fold(`inner ${MARKUP}`);
  await agent.fold(`summary ${MARKUP}`);
  const page = await stage.page(daemon);
  await live(page);
  await page.locator(".session .path", { hasText: MARKUP }).waitFor();
  await page.goto(`${daemon.url}/#/search/inner`);
  await page.locator(".result", { hasText: `inner ${MARKUP}` }).waitFor();
  await page.goto(`${daemon.url}/#/sessions/${await agent.session()}/branches/${id}`);
  await row(page, `desc ${MARKUP}`).waitFor();
  for (const part of ["prompt", "operation", "summary", "child"])
    await page.locator(".entry", { hasText: `${part} ${MARKUP}` }).waitFor();
  await page.getByRole("button", { name: /^Roll back to/ }).click();
  await page.getByRole("dialog").getByText(`child ${MARKUP}`).waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Roll back", exact: true }).click();
  await page.locator(".toast.on", { hasText: MARKUP }).waitFor();
  await page.goto(`${daemon.url}/#/search/${encodeURIComponent(MARKUP)}`);
  await page.locator(".page-head", { hasText: MARKUP }).waitFor();
  assert.deepEqual(await page.evaluate(() => [document.images.length, document.scripts.length]), [0, 2]);
  assert.ok(page.watched.requests.every((url) => !url.endsWith("/x")));
  assert.deepEqual(page.watched.dialogs, []);
  assert.deepEqual(page.watched.problems, []);
});

scenario("no request leaves the machine and the browser reports no problem", async (stage) => {
  const daemon = await stage.daemon({ scene: ["story"] });
  const page = await stage.page(daemon);
  const answer = await page.request.get(`${daemon.url}/`);
  assert.equal(answer.headers()["content-security-policy"], POLICY);
  await page.locator(".session a").first().click();
  await row(page, "Find where").click();
  await page.locator(".entry").first().waitFor();
  await page.locator("#words").fill("session");
  await page.locator(".result").first().waitFor();
  for (const theme of ["light", "dark", "system"]) {
    await page.locator("#theme").click();
    assert.equal(await page.locator("#theme").getAttribute("aria-label"), `Theme: ${theme}`);
  }
  assert.ok(page.watched.requests.length > 15, "the page made requests");
  for (const url of page.watched.requests) assert.equal(new URL(url).origin, daemon.url);
  assert.deepEqual(page.watched.problems, []);
});

scenario("the content security policy blocks an injected script", async (stage) => {
  const daemon = await stage.daemon();
  const page = await stage.page(daemon);
  await page.getByRole("heading", { name: "No session yet" }).waitFor();
  const outcome = await page.evaluate(() => {
    try {
      document.body.innerHTML = "<b>in</b>";
      return "parsed";
    } catch (error) {
      return error.name;
    }
  });
  assert.equal(outcome, "TypeError"); // the policy lets no script parse markup
  await page
    .evaluate(() => {
      const script = document.createElement("script");
      script.setAttribute("src", "data:text/javascript,globalThis.injected = true");
      try {
        document.head.append(script);
      } catch {
        /* refused already */
      }
    })
    .catch(() => {});
  await page.evaluate(() => new Promise((resolve) => setTimeout(resolve, 0)));
  assert.equal(await page.evaluate(() => globalThis.injected), undefined);
});
