// What a person does while agents work, and with what they did.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { looksRight } from "./axe.js";
import { eventsOf, open, prompt, rested, said, startSession, v1, withBrowser } from "./browser.js";

export function steered_prompt_joins_the_turn_and_queued_one_follows({ address, ask }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Work until told", name: "steered" });
    const tool = page.locator("details.tool", { hasText: "bash" });
    await tool.getByText("running").waitFor();
    await prompt(page, "Say hello");
    await page.locator(".pending", { hasText: "Say hello" }).getByText("queued").waitFor();
    await page.getByText("Steer", { exact: true }).click();
    await looksRight(page, "a busy session");
    await page.getByLabel(/^Prompt to/).fill("Say the last word");
    await page.getByRole("button", { name: "Send" }).click();
    await page.locator(".pending", { hasText: "Say the last word" }).getByText("joins the running turn").waitFor();
    writeFileSync(join(await ask("tell the directory"), "told"), "");
    await said(page, "This is the last answer.");
    await said(page, "Hello! This is the");
    await page.locator(".pending").first().waitFor({ state: "detached" });
    const users = await page.locator(".item.user .plain").allTextContents();
    assert.deepEqual(users, ["Work until told", "Say the last word", "Say hello"]);
    const turns = await eventsOf(page, "steered", "turn_start");
    assert.equal(turns.length, 2, "the steered prompt opened a turn of its own");
    assert.deepEqual(page.errors, []);
  });
}

export function aborted_turn_keeps_its_text_and_the_next_prompt_runs({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Tell a long story", name: "aborted" });
    await said(page, " 12 13");
    await prompt(page, "Say the last word");
    await page.locator(".pending").getByText("queued").waitFor();
    await page.getByRole("button", { name: "Abort", exact: true }).click();
    await page.getByText("Turn aborted").waitFor();
    await page.getByText("This reply was interrupted.").waitFor();
    await said(page, "This is the last answer.");
    await page.getByRole("button", { name: "Abort", exact: true }).waitFor({ state: "detached" });
    await rested(page);
    assert.equal(await page.getByText("the end of the story").count(), 0);
    // A wait that is withdrawn cannot be answered any more.
    await v1(page, "POST", "/sessions", { name: "withdrawn", permissions: "careful", prompt: "Deploy" });
    await page.goto(`${address}/#/sessions/withdrawn`);
    await page.getByRole("button", { name: "Allow" }).waitFor();
    await page.getByRole("button", { name: "Abort", exact: true }).click();
    await page.getByRole("button", { name: "Allow" }).waitFor({ state: "detached" });
    await page.getByText("Turn aborted").waitFor();
    await rested(page);
    assert.deepEqual(page.errors, []);
  });
}

export function rewind_hides_later_messages_in_every_tab({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Say hello", permissions: "careful", name: "rewound" });
    await said(page, "Hello! This is the");
    await prompt(page, "Deploy");
    await page.getByRole("button", { name: "Allow" }).waitFor();
    const other = await open(context, `${address}/#/sessions/rewound`);
    await other.getByRole("button", { name: "Allow" }).waitFor();
    await page.bringToFront();
    const rewind = async () => {
      const message = page.locator(".item.user", { hasText: "Deploy" });
      await message.hover();
      await message.getByRole("button", { name: /^Rewind/ }).click();
    };
    await rewind();
    const dialog = page.getByRole("dialog", { name: "Rewind here?" });
    await dialog.getByText("planck session rewind rewound").waitFor();
    await looksRight(page, "the question before a rewind");
    await dialog.getByRole("button", { name: "Keep" }).click();
    await dialog.waitFor({ state: "detached" });
    assert.equal(await page.locator(".item.user").count(), 2, "keeping has rewound");
    await rewind();
    await dialog.getByRole("button", { name: "Rewind" }).click();
    for (const tab of [page, other]) {
      await tab.getByText(/^Rewound to before message/).waitFor();
      await tab.getByRole("button", { name: "Allow" }).waitFor({ state: "detached" });
      await rested(tab);
      assert.deepEqual(await tab.locator(".item.user .plain").allTextContents(), ["Say hello"]);
    }
    await prompt(other, "Say the last word");
    await said(page, "This is the last answer.");
    await page.reload();
    await said(page, "This is the last answer.");
    assert.deepEqual(await page.locator(".item.user .plain").allTextContents(), ["Say hello", "Say the last word"]);
    assert.deepEqual([page.errors, other.errors], [[], []]);
  });
}

export function changed_model_answers_the_next_prompt({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Which model", name: "models" });
    await said(page, "I am test.");
    await page.locator(".lane-head").first().click();
    await page.getByRole("button", { name: "Change…" }).click();
    const field = page.getByLabel("New model");
    await field.fill("nowhere:other");
    const change = page.getByRole("button", { name: "Change", exact: true });
    await change.click();
    await page.getByRole("alert").getByText(/nowhere/).waitFor();
    assert.equal(await field.inputValue(), "nowhere:other", "the input is lost");
    await looksRight(page, "a refused model");
    await field.fill("scripted:other");
    await change.click();
    await page.getByText("scripted:other", { exact: true }).waitFor();
    await page.getByRole("link", { name: "Open the session" }).click();
    await page.getByText("Model changed to scripted:other").waitFor();
    await prompt(page, "Which model");
    await said(page, "I am other.");
    assert.deepEqual(page.errors, []);
  });
}

export function deleted_session_is_named_in_other_tabs({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Deploy", permissions: "careful", name: "deleted" });
    await page.getByRole("button", { name: "Allow" }).waitFor();
    await page.getByLabel(/^Prompt to/).fill("A draft");
    const other = await open(context, `${address}/#/waits`);
    await other.locator(".wait-row", { hasText: "deleted" }).waitFor();
    await v1(other, "DELETE", "/sessions/deleted");
    await other.getByText("Nothing waits for you").waitFor();
    await page.bringToFront();
    await page.locator('[data-status="failed"]').waitFor();
    await page.getByRole("alert").getByText("Not found.").waitFor();
    assert.equal(await page.getByRole("button", { name: "Allow" }).count(), 0, "a wait of a deleted session is offered");
    await page.getByLabel(/^Prompt to/).press("Enter");
    const pending = page.locator(".pending", { hasText: "A draft" });
    await pending.getByText("not sent").waitFor();
    await pending.getByRole("button", { name: "Discard" }).waitFor();
    await looksRight(page, "a deleted session");
    await page.reload();
    await page.getByRole("alert").getByText("Not found.").waitFor();
    await page.getByRole("link", { name: "Sessions", exact: true }).click();
    await page.getByRole("heading", { name: "Sessions", level: 1 }).waitFor();
    assert.equal(await page.locator(".card-title", { hasText: /^deleted$/ }).count(), 0);
    assert.deepEqual([page.errors, other.errors], [[], []]);
  });
}

export function closed_session_is_resumed({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Say hello", name: "closed" });
    await said(page, "Hello! This is the");
    await page.getByRole("button", { name: "Close", exact: true }).click();
    await page.getByText("End all agents of this session?").waitFor();
    await looksRight(page, "the question before a close");
    await page.getByRole("group", { name: "End all agents of this session?" }).getByRole("button", { name: "Close" }).click();
    await page.getByRole("button", { name: "Resume" }).click();
    await page.getByText(/^Resumed/).waitFor();
    await page.getByRole("button", { name: "Close", exact: true }).waitFor();
    await page.locator(".lane-state", { hasText: "idle" }).waitFor();
    await prompt(page, "Say the last word");
    await said(page, "This is the last answer.");
    assert.deepEqual(page.errors, []);
  });
}

export function agent_shows_what_its_model_gets({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await v1(page, "POST", "/sessions", { name: "sent", prompt: "Fix the greeting", members: [{ type: "agent", tools: ["read", "edit", "bash"], system_prompt: "You fix <b>greetings</b>." }] });
    await page.goto(`${address}/#/sessions/sent`);
    await said(page, "The old version ignored its argument");
    await rested(page);
    await page.locator(".lane-head").first().click();
    const sent = page.getByRole("region", { name: "Messages of the model" });
    await sent.getByRole("button", { name: "Show the messages" }).click();
    await sent.getByText("Fix the greeting", { exact: true }).waitFor();
    const { messages } = await v1(page, "GET", "/sessions/sent/messages");
    await sent.getByText(`${messages.length} messages`).waitFor();
    assert.deepEqual(await sent.locator(".tool-name").allTextContents(), ["read", "edit", "bash"]);
    await sent.locator("details.tool", { hasText: "edit" }).locator("summary").click();
    await sent.locator(".diff .added").first().waitFor();
    await sent.locator("summary", { hasText: "System prompt" }).click();
    await sent.getByText(/You fix <b>greetings<\/b>\.$/).waitFor();
    await looksRight(page, "the messages of a model");
    assert.deepEqual(page.errors, []);
  });
}

export function answer_in_a_shape_is_a_tree_and_the_demand_is_no_prompt({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    const output = { name: "rivers", schema: { type: "object", required: ["rivers"] } };
    await v1(page, "POST", "/sessions", { name: "rivers", prompt: "List the rivers", output });
    await page.goto(`${address}/#/sessions/rivers`);
    const answer = page.locator(".item.output");
    await answer.getByText("answers in the shape rivers").waitFor();
    await rested(page);
    const branch = (name) => answer.locator("summary").filter({ hasText: name }).last();
    await branch("2 items").waitFor();
    // The branches of the third level are folded, and open by keyboard alone.
    assert.equal(await answer.getByText("Basel").count(), 0);
    await branch("3 fields").focus();
    await page.keyboard.press("Enter");
    await answer.getByText("1094").waitFor();
    await answer.locator("summary", { hasText: "3 fields" }).first().press("Space");
    await answer.locator("summary", { hasText: "towns" }).press("Enter");
    await answer.getByText('"<b>Bonn</b>"').waitFor();
    assert.equal(await answer.locator("b").count(), 0, "the model's markup");
    await looksRight(page, "an answer in a shape");
    assert.deepEqual(await page.locator(".item.user .plain").allTextContents(), ["List the rivers"]);
    const demand = page.locator(".item.custom", { hasText: "Message of the runtime" });
    await demand.locator("summary").click();
    await demand.getByText("Call submit_output now").waitFor();
    await answer.locator("summary").first().press("Enter");
    await answer.locator("li").first().waitFor({ state: "detached" });
    await v1(page, "POST", "/sessions", { name: "prose", prompt: "Refuse the shape", output });
    await page.goto(`${address}/#/sessions/prose`);
    await page.locator(".notice.bad", { hasText: "Turn failed (output_invalid)" }).waitFor();
    assert.deepEqual(await page.locator(".item.user .plain").allTextContents(), ["Refuse the shape"]);
    assert.equal(await page.locator(".item.output").count(), 0);
    assert.deepEqual(page.errors, []);
  });
}

export function lanes_are_widened_for_the_tab({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Say hello", name: "wide" });
    await said(page, "Hello! This is the");
    const width = () => page.locator(".pane.side").evaluate((node) => node.getBoundingClientRect().width);
    const border = page.getByRole("separator", { name: "Width of the lanes" });
    const first = await width();
    await border.focus();
    await page.keyboard.press("ArrowLeft");
    const byKey = await width();
    assert.ok(byKey > first + 30, `${first} ${byKey}`);
    const { x, y, height } = await border.boundingBox();
    await page.mouse.move(x + 4, y + height / 2);
    await page.mouse.down();
    await page.mouse.move(x - 200, y + height / 2, { steps: 4 });
    await page.mouse.up();
    const dragged = await width();
    assert.ok(Math.abs(dragged - byKey - 204) < 15, `${byKey} ${dragged}`);
    await looksRight(page, "wide lanes");
    await page.reload();
    await said(page, "Hello! This is the");
    assert.equal(await width(), dragged, "the width is lost");
    await border.dblclick();
    assert.equal(await width(), first);
    assert.deepEqual(page.errors, []);
  });
}
