// With tokens: who may sign in, and what each owner sees.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Agent, assert, live, makeToken, row, scenario } from "./browser.mjs";

async function guarded(stage) {
  const [ann, bob] = ["ann", "bob"].map((owner) => makeToken(stage, owner));
  const daemon = await stage.daemon({ argv: ["--token-file", join(stage.folder, "tokens")] });
  return { daemon, ann, bob };
}

async function signIn(page, token) {
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
}

scenario("a valid token signs in, and a wrong token is refused with a message", async (stage) => {
  const { daemon, ann } = await guarded(stage);
  const agent = new Agent(daemon, "/home/ann/secret-plans", ann);
  await agent.branch("Plan");
  const path = `/#/sessions/${await agent.session()}`;
  const page = await stage.page(daemon, { path });
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
  await page.getByText("context token NAME").waitFor();
  assert.equal(await page.getByLabel("Token").getAttribute("type"), "password");
  for (const wrong of ["wrong", "wröng", `${ann}x`]) {
    await signIn(page, wrong);
    await page.getByText("This token is not valid here.").waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  }
  await signIn(page, ann);
  await row(page, "Plan").waitFor(); // the view that was requested before the sign-in
  await page.locator("#owner").getByText("ann").waitFor();
  await live(page);
  await agent.branch("Plan further");
  await row(page, "Plan further").waitFor(); // events need the token, too
  await page.reload();
  await row(page, "Plan further").waitFor();
  const stored = await page.evaluate(() => [JSON.stringify(localStorage), document.cookie, location.href]);
  assert.ok(
    stored.every((text) => !text.includes(ann)),
    "the token is stored only for this tab",
  );
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  assert.equal(await page.getByText("Plan further").count(), 0);
});

scenario("a revoked token leads back to the sign-in", async (stage) => {
  const { daemon, ann } = await guarded(stage);
  await new Agent(daemon, "/home/ann/secret-plans", ann).branch("Plan");
  const page = await stage.page(daemon);
  await signIn(page, ann);
  await page.getByRole("link", { name: "secret-plans" }).waitFor();
  await live(page);
  await daemon.kill();
  writeFileSync(join(stage.folder, "tokens"), "");
  makeToken(stage, "somebody-else");
  await daemon.start();
  await page.getByText("Your token is not valid any more.").waitFor();
  assert.equal(await page.getByText("secret-plans").count(), 0);
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
});

scenario("another owner's session is invisible", async (stage) => {
  const { daemon, ann, bob } = await guarded(stage);
  const annsAgent = new Agent(daemon, "/home/ann/secret-plans", ann);
  const branch = await annsAgent.branch("Hidden work");
  await annsAgent.fold("A hidden summary about zebras.");
  const session = await annsAgent.session();
  const page = await stage.page(daemon);
  await signIn(page, bob);
  await page.getByRole("heading", { name: "No session yet" }).waitFor();
  await live(page);

  await annsAgent.branch("More hidden work"); // an event of Ann, then one of Bob
  await new Agent(daemon, "/home/bob/own", bob).branch("Own work");
  await page.getByRole("link", { name: "own" }).waitFor();
  assert.equal(await page.locator(".session").count(), 1);

  for (const path of [`/#/sessions/${session}`, `/#/sessions/${session}/branches/${branch}`]) {
    await page.goto(`${daemon.url}${path}`);
    await page.getByRole("heading", { name: "No such session" }).waitFor();
  }
  await page.locator("#words").fill("zebras");
  await page.getByText("Nothing has “zebras”.").waitFor();
  const content = await page.content();
  for (const word of ["secret-plans", "idden work", "hidden summary"]) assert.ok(!content.includes(word), word);

  const headers = { authorization: `Bearer ${bob}`, "last-event-id": "0" };
  const abort = new AbortController();
  const events = await fetch(`${daemon.url}/v1/events`, { headers, signal: abort.signal });
  let text = "";
  for await (const chunk of events.body.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    if (text.includes("Own work")) break; // Ann's events came before it
  }
  abort.abort();
  assert.doesNotMatch(text, /idden/);
  assert.ok(!text.includes(session));
});
