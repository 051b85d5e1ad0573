// What a person does with the console.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { open, said, startSession, v1, withBrowser } from "./browser.js";

export function session_is_started_and_answered({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Say hello" });
    await said(page, "Hello! This is the");
    await page.locator(".live").waitFor({ state: "detached" });
    assert.equal(await page.locator(".prose strong").textContent(), "first");
    const box = page.getByLabel("Prompt to the team");
    await box.fill("Fix the greeting");
    await box.press("Enter");
    await said(page, "The old version ignored its argument");
    const edit = page.locator("details.tool", { hasText: "edit" });
    await edit.locator("summary").click();
    assert.deepEqual(await edit.locator(".removed").allTextContents(), ['-    return "Hello"']);
    assert.equal(await edit.locator(".added").count(), 2);
    await page.getByRole("link", { name: "Planck, to the sessions" }).click();
    await page.locator(".card", { hasText: "after Hello, Ann" }).waitFor();
    assert.deepEqual(page.errors, []);
  });
}

export function form_checks_a_name_and_is_closed_by_a_change_of_page({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await page.getByRole("button", { name: "New session" }).first().click();
    const dialog = page.getByRole("dialog");
    const name = dialog.getByLabel("Name");
    const fits = () => name.evaluate((input) => input.checkValidity());
    await name.fill("My session");
    assert.equal(await fits(), false);
    await name.fill("my-session-2");
    assert.equal(await fits(), true);
    await dialog.getByText("planck run --session my-session-2 PROMPT").waitFor();
    await page.evaluate(() => { location.hash = "#/waits"; });
    await dialog.waitFor({ state: "detached" });
    assert.deepEqual(page.errors, []);
  });
}

export function markup_of_models_and_tools_stays_text({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Show markup" });
    await said(page, "Markup</b> is only text.");
    await page.keyboard.press("Escape");
    await page.keyboard.press("t");
    await page.locator(".tool pre", { hasText: "onerror" }).last().waitFor();
    await page.keyboard.press("t");
    await page.locator("details.tool[open]").first().waitFor({ state: "detached" });
    await page.keyboard.press("t");
    await page.locator(".tool pre", { hasText: "onerror" }).last().waitFor();
    assert.equal(await page.evaluate(() => window.pwned), undefined);
    assert.equal(await page.locator("main script, main img, main b").count(), 0);
    assert.deepEqual(page.errors, []);
  });
}

export function reload_in_mid_stream_continues_the_text({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Tell a long story" });
    await said(page, " 12 13");
    await page.reload();
    await said(page, "Once there were numbers. 1 2 3");
    await said(page, "that was the end of the story");
    await page.locator(".live").waitFor({ state: "detached" });
    await said(page, /^Once there were numbers\. 1 2 3 .* 99 100 and that was the end of the story\.$/);
    assert.deepEqual(page.errors, []);
  });
}

export function keyboard_alone_is_enough({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await page.getByRole("heading", { name: "Sessions", level: 1 }).waitFor();
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keys" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.keyboard.press("n");
    await page.getByRole("dialog", { name: "New session" }).waitFor();
    await focusOn(page, "Prompt");
    await page.keyboard.type("Deploy");
    await focusOn(page, "Permissions");
    await page.keyboard.press("c");
    await focusOn(page, "Start");
    await page.keyboard.press("Enter");
    await page.getByRole("log").waitFor();
    await page.getByRole("button", { name: "Allow" }).waitFor();
    await focusOn(page, "Allow");
    await page.keyboard.press("Enter");
    await said(page, "Done: deployed to staging");
    await focusOn(page, /^turn 1,/);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.locator(".flash").waitFor();
    await page.keyboard.press("/");
    await page.keyboard.type("Say hello");
    await page.keyboard.press("Enter");
    await said(page, "Hello! This is the");
    await page.keyboard.press("Escape");
    await page.keyboard.press("g");
    await page.keyboard.press("w");
    await page.getByRole("heading", { name: "Waits", level: 1 }).waitFor();
  });
}

/** Presses Tab until the named element has the focus, and checks that the focus can be seen. */
async function focusOn(page, name) {
  for (let presses = 0; presses < 60; presses++) {
    await page.keyboard.press("Tab");
    const seen = await page.evaluate(() => {
      const node = document.activeElement;
      const label = node.getAttribute("aria-label") ?? node.labels?.[0]?.textContent ?? node.textContent;
      return { label: label.trim(), outline: getComputedStyle(node).outlineStyle };
    });
    const isIt = name instanceof RegExp ? name.test(seen.label) : seen.label.startsWith(name);
    if (!isIt) continue;
    assert.notEqual(seen.outline, "none", `the focus on ${name} cannot be seen`);
    return;
  }
  throw new Error(`Tab does not reach ${name}`);
}

export function pages_of_other_origins_cannot_use_the_front({ address }) {
  const stranger = createServer((request, response) => response.setHeader("content-type", "text/html").end("<p>stranger</p>"));
  return new Promise((resolve) => stranger.listen(0, "127.0.0.1", resolve)).then(() => withBrowser(async (context) => {
    const page = await open(context, `http://127.0.0.1:${stranger.address().port}/`);
    const outcomes = await page.evaluate(async (front) => {
      const attempt = (path, options) => fetch(front + path, options).then(
        (response) => response.type === "opaque" ? "opaque" : `read ${response.status}`,
        () => "failed",
      );
      return Promise.all([
        attempt("/v1/sessions"),
        attempt("/v1/sessions", { method: "POST", headers: { "content-type": "application/json" }, body: '{"name":"stolen"}' }),
        attempt("/v1/sessions", { method: "POST", mode: "no-cors", body: '{"name":"stolen"}' }),
      ]);
    }, address);
    assert.deepEqual(outcomes.slice(0, 2), ["failed", "failed"]);
    const own = await open(context, address);
    const sessions = await v1(own, "GET", "/sessions");
    assert.ok(!sessions.sessions.some((session) => session.name === "stolen"), "a stranger's page started a session");
    const framed = await page.evaluate((front) => new Promise((resolve) => {
      const frame = document.createElement("iframe");
      frame.onload = () => resolve(frame.contentDocument === null && frame.contentWindow.length === 0);
      frame.src = front;
      document.body.append(frame);
    }), address);
    assert.ok(framed);
  })).finally(() => stranger.close());
}
