// What callers with different roles may do.

import assert from "node:assert/strict";
import { looksRight } from "./axe.js";
import { followsDecisions, open, prompt, said, startSession, v1, withBrowser } from "./browser.js";

export function key_is_asked_for_and_roles_are_named({ address, ask }) {
  return withBrowser(async (context) => {
    const keys = JSON.parse(await ask("tell the keys"));
    const page = await open(context, `${address}/#/cluster`);
    const dialog = page.getByRole("dialog", { name: "A key is needed" });
    await dialog.getByLabel("Key").fill("wrong");
    await dialog.getByRole("button", { name: "Use the key" }).click();
    await dialog.getByText("no key of this front").waitFor();
    await looksRight(page, "the question for a key");
    await use(page, keys.observe);
    // What the page began to read without a key is read now.
    await followsDecisions(page);
    const operator = await open(context, address);
    await use(operator, keys.operate);
    await startSession(operator, { prompt: "Deploy", permissions: "careful", name: "guarded" });
    await operator.getByRole("button", { name: "Allow" }).waitFor();
    // A page behind another one draws about once a second.
    await page.bringToFront();
    await observes(page, address);
    assert.equal((await v1(page, "GET", "/waits")).waits.length, 1, "an observer answered");
    await operator.bringToFront();
    await operator.getByRole("button", { name: "Allow" }).click();
    await said(operator, "Done: deployed to staging");
    await page.bringToFront();
    await page.goto(`${address}/#/sessions/guarded`);
    await page.getByRole("log").getByText("Done: deployed to staging").waitFor();
    await page.keyboard.press("t");
    await page.getByText("Decided: allow by otto").waitFor();
    assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes("pk_")), false, "the key outlives the tab");
    assert.deepEqual([page.errors, operator.errors], [[], []]);
  });
}

/** The address that the front prints opens the console. Its key stays in the tab only. */
export function printed_address_brings_the_key({ address, key }) {
  return withBrowser(async (context) => {
    const page = await open(context, `${address}/#/cluster`);
    await followsDecisions(page);
    assert.equal(page.url(), `${address}/#/cluster`, "the key stays in the address");
    await page.reload();
    await followsDecisions(page);
    assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes("pk_")), false, "the key outlives the tab");
    // Another tab does not have it. There the address is pasted while the page is open.
    const other = await open(context, "about:blank");
    await other.goto(address);
    const dialog = other.getByRole("dialog", { name: "A key is needed" });
    await dialog.getByText("planck serve key").waitFor();
    await other.evaluate(() => { location.hash = "#key=pk_wrong/waits"; });
    await dialog.getByText("no key of this front").waitFor();
    assert.equal(other.url(), `${address}/#/waits`);
    await other.evaluate((key) => { location.hash = `#key=${key}`; }, key);
    await dialog.waitFor({ state: "detached" });
    assert.equal(other.url(), `${address}/`);
    assert.deepEqual((await v1(other, "GET", "/sessions")).sessions, []);
    assert.deepEqual([page.errors, other.errors], [[], []]);
  });
}

async function use(page, key) {
  const dialog = page.getByRole("dialog", { name: "A key is needed" });
  await dialog.getByLabel("Key").fill(key);
  await dialog.getByRole("button", { name: "Use the key" }).click();
  await dialog.waitFor({ state: "detached" });
}

/** Tries everything that an observer may not do. Each try is refused with the role that is needed. */
async function observes(page, address) {
  const refused = (area, role) => area.getByText(new RegExp(`needs \`${role}\``)).first().waitFor();
  await page.getByRole("button", { name: "Drain", exact: true }).click();
  await page.getByText("It is the only one: all work stops").waitFor();
  await page.getByRole("group", { name: /^End this node/ }).getByRole("button", { name: "Drain" }).click();
  await refused(page.getByRole("alert"), "operate");
  await looksRight(page, "a refused drain");
  await page.keyboard.press("n");
  const form = page.getByRole("dialog", { name: "New session" });
  await form.getByLabel("Prompt").fill("Say hello");
  await form.getByRole("button", { name: "Start" }).click();
  await refused(form, "use");
  assert.equal(await form.getByLabel("Prompt").inputValue(), "Say hello", "the form is lost");
  await page.keyboard.press("Escape");
  await page.goto(`${address}/#/waits`);
  const wait = page.getByRole("region", { name: /^Approval/ });
  await wait.getByRole("button", { name: "Allow" }).click();
  await refused(wait, "use");
  await looksRight(page, "a refused answer");
  await page.goto(`${address}/#/sessions/guarded`);
  const head = page.locator(".session-head");
  await head.getByRole("button", { name: "Abort", exact: true }).click();
  await refused(head, "use");
  await head.getByRole("button", { name: "Dismiss" }).click();
  await head.getByRole("button", { name: "Close", exact: true }).click();
  await head.getByRole("group", { name: /End all agents/ }).getByRole("button", { name: "Close" }).click();
  await refused(head, "operate");
  await prompt(page, "Say the last word");
  const pending = page.locator(".pending", { hasText: "Say the last word" });
  await refused(pending, "use");
  await pending.getByRole("button", { name: "Discard" }).click();
  await page.locator(".item.user:not(.pending)").hover();
  await page.getByRole("button", { name: /^Rewind/ }).click();
  const rewind = page.getByRole("dialog", { name: "Rewind here?" });
  await rewind.getByRole("button", { name: "Rewind" }).click();
  await refused(rewind, "use");
  await page.keyboard.press("Escape");
  await rewind.waitFor({ state: "detached" });
  await page.locator(".lane-head").first().click();
  await page.getByRole("button", { name: "Change…" }).click();
  await page.getByLabel("New model").fill("scripted:other");
  await page.getByRole("button", { name: "Change", exact: true }).click();
  await refused(page.locator("main"), "operate");
}
