// What a person does about agents that wait.

import assert from "node:assert/strict";
import { looksRight } from "./axe.js";
import { eventsOf, open, prompt, rested, said, startSession, v1, withBrowser } from "./browser.js";

const CUSTOMER = {
  name: "customer",
  description: "Looks a customer up.",
  parameters: { type: "object", properties: { id: { type: "string" } }, required: ["id"] },
};
const MARKUP = '<img src=x onerror="window.pwned = 1"><script>window.pwned = 2</script>';

export function two_tabs_answer_one_approval_once({ address }) {
  return withBrowser(async (context) => {
    const first = await open(context, address);
    await startSession(first, { prompt: "Deploy", permissions: "careful", name: "two-tabs" });
    await first.goto(`${address}/#/waits`);
    const second = await open(context, `${address}/#/waits`);
    const allow = (page) => page.getByRole("region", { name: /Approval/ }).getByRole("button", { name: "Allow" });
    const deny = (page) => page.getByRole("region", { name: /Approval/ }).getByRole("button", { name: "Deny" });
    await Promise.all([allow(first).waitFor(), deny(second).waitFor()]);
    const decidedIn = (page) => page.getByText("Just decided").waitFor();
    // The button of the slower tab may be gone before it is clicked. It does not come back.
    const click = (button, page) => Promise.race([button.click(), decidedIn(page)]);
    await Promise.all([click(allow(first), first), click(deny(second), second)]);
    // One tab has answered. The other one shows the conflict, or who was faster.
    await Promise.all([decidedIn(first), decidedIn(second)]);
    const decided = (page) => page.locator(".over .decision").textContent();
    assert.equal(await decided(first), await decided(second));
    await first.goto(`${address}/#/sessions/two-tabs`);
    const calls = first.locator("details.tool");
    await calls.getByText(/done|failed/).first().waitFor();
    assert.equal(await calls.count(), 1);
  });
}

export function wait_with_a_long_word_is_read_on_a_phone({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Write far away", permissions: "careful", name: "long-word" });
    await page.goto(`${address}/#/waits`);
    const card = page.getByRole("region", { name: /^Approval: write/ });
    await card.getByText(/also allow/).waitFor();
    await looksRight(page, "a wait with a long word");
    await card.getByRole("button", { name: "Deny" }).click();
    await page.getByText("Just decided").waitFor();
    assert.deepEqual(page.errors, []);
  });
}

export function approval_shows_the_whole_call({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Deploy elsewhere", permissions: "careful", name: "whole" });
    const shows = async (area) => {
      for (const each of ["echo \\u{202e}; dne ohce", "important", "7"]) await area.getByText(each, { exact: true }).last().waitFor();
    };
    await shows(page.locator("details.tool"));
    await page.goto(`${address}/#/waits`);
    const card = page.getByRole("region", { name: /^Approval: bash in important: echo/ });
    await shows(card);
    await card.getByRole("button", { name: "Edit the arguments…" }).click();
    assert.match(await card.getByLabel("Arguments to run with").inputValue(), /"echo \\u202e; dne ohce"/);
    assert.ok(!(await page.locator("body").textContent()).includes("\u202e"), "a hidden character reached the page");
    await card.getByRole("button", { name: "Deny" }).click();
    await page.getByText("Just decided").waitFor();
    assert.deepEqual(page.errors, []);
  });
}

export function wait_says_who_asks_and_why_and_stays_in_the_history({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await v1(page, "POST", "/sessions", { name: "history", permissions: "careful", prompt: "Fix the greeting", members: [{ type: "agent", name: "fixer", tools: ["read", "edit", "bash"] }] });
    await page.goto(`${address}/#/waits`);
    await page.getByText("1 agent waits for 1 answer").waitFor();
    const row = page.locator(".wait-row:not(.over)", { hasText: "fixer of history" });
    await row.getByText("Asked because the mode careful asks").waitFor();
    // The same lines as in the conversation.
    const changed = async (area) => [await area.locator(".diff .removed").allTextContents(), await area.locator(".diff .added").count()];
    const expected = [['-    return "Hello"'], 2];
    assert.deepEqual(await changed(row), expected);
    await looksRight(page, "a wait with a change");
    await row.getByRole("button", { name: "Allow" }).click();
    await page.getByRole("region", { name: /^Approval: bash/ }).getByLabel("Reason for a denial").fill("not now");
    await page.getByRole("region", { name: /^Approval: bash/ }).getByRole("button", { name: "Deny" }).click();
    await page.getByText("nothing waits").waitFor();
    await page.goto(`${address}/#/sessions/history`);
    await page.locator(".about").getByText("careful", { exact: true }).waitFor();
    await said(page, "The old version ignored its argument");
    await rested(page);
    await page.goto(`${address}/#/waits`);
    const history = page.getByRole("region", { name: "Decided before" });
    await history.getByRole("button", { name: "Show them" }).click();
    const rows = history.locator("li", { hasText: "fixer of history" });
    await rows.filter({ hasText: "edit: greet.py" }).getByText("allow", { exact: true }).waitFor();
    assert.deepEqual(await rows.locator(".decided-title").evaluateAll((all) => all.map((each) => each.textContent.split(":")[0])), ["bash", "edit"]);
    await rows.filter({ hasText: "bash" }).locator("summary").click();
    await history.getByText(/^Decided: deny.*: not now$/).waitFor();
    await rows.filter({ hasText: "edit: greet.py" }).locator("summary").click();
    await history.locator(".diff").waitFor();
    assert.deepEqual(await changed(history), expected);
    await looksRight(page, "decided waits");
    assert.deepEqual(page.errors, []);
  });
}

export function changed_files_are_shown_and_kept({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Change settings", name: "changes" });
    await page.goto(`${address}/#/waits`);
    const card = page.getByRole("region", { name: /^Changed files: bash changed protected files: .*\.envrc/ });
    await card.getByText("export X=<b>1</b>").waitFor();
    await looksRight(page, "a change of protected files");
    await page.goto(`${address}/#/sessions/changes`);
    await card.getByRole("button", { name: "Keep the changes" }).click();
    await said(page, "It says changed");
    assert.deepEqual(page.errors, []);
  });
}

export function edited_arguments_run_and_wrong_ones_are_refused({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Deploy", permissions: "careful", name: "edited" });
    const card = page.getByRole("region", { name: /^Approval: bash/ });
    const allow = card.getByRole("button", { name: "Allow" });
    await card.getByRole("button", { name: "Edit the arguments…" }).click();
    const args = card.getByLabel("Arguments to run with");
    assert.deepEqual(JSON.parse(await args.inputValue()), { command: "echo deployed to staging" });
    await args.fill('{"command": "echo edited"');
    await card.getByText("This is no valid JSON").waitFor();
    assert.ok(await allow.isDisabled(), "arguments that are no JSON can be sent");
    await args.fill('{"command": 7}');
    await allow.click();
    await card.getByRole("alert").getByText(/command/).waitFor();
    await looksRight(page, "edited arguments");
    assert.equal(await args.inputValue(), '{"command": 7}', "the edit is lost");
    assert.equal((await v1(page, "GET", "/waits?session=edited")).waits.length, 1);
    await args.fill('{"command": "echo edited by hand"}');
    await allow.click();
    await said(page, "Done: edited by hand");
    const call = page.locator("details.tool");
    await call.getByText("echo edited by hand", { exact: true }).first().waitFor();
    assert.equal((await eventsOf(page, "edited", "tool_start")).length, 1);
    assert.deepEqual(page.errors, []);
  });
}

export function allowance_for_the_session_covers_the_next_call({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Deploy to both", permissions: "careful", name: "allowance" });
    const card = page.getByRole("region", { name: /^Approval: bash/ });
    await card.getByRole("checkbox", { name: /For the rest of the session, also allow bash/ }).check();
    await card.getByRole("button", { name: "Allow" }).click();
    await said(page, "Both are deployed.");
    await page.getByText(/Decided: allow for this session/).waitFor();
    assert.equal((await eventsOf(page, "allowance", "tool_end")).length, 2);
    // The second call is answered by the rule, and not by a person.
    const closed = await eventsOf(page, "allowance", "wait_closed");
    assert.deepEqual(closed.map(({ data }) => data.decision), ["allow", "allow"]);
    // Another command still asks.
    await prompt(page, "Deploy");
    await card.getByRole("button", { name: "Deny" }).waitFor();
    await card.getByLabel("Reason for a denial").fill("not on a Friday");
    await card.getByRole("button", { name: "Deny" }).click();
    await page.getByText(/Decided: deny.*not on a Friday/).waitFor();
    await rested(page);
    assert.deepEqual(page.errors, []);
  });
}

export function tool_of_a_client_that_is_gone_is_answered({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await v1(page, "POST", "/sessions", { name: "client-tool", client_tools: [CUSTOMER], prompt: `Who is customer ${MARKUP}` });
    await page.goto(`${address}/#/waits`);
    await page.locator(".wait-row", { hasText: "client-tool" }).getByText("Answer in its place only if it is gone").waitFor();
    await page.getByRole("link", { name: /^Waits\s*, 1\s*open$/ }).waitFor();
    await looksRight(page, "a tool of the client");
    await page.goto(`${address}/#/sessions/client-tool`);
    const card = page.getByRole("region", { name: /^Tool of the client: customer/ });
    const result = card.getByLabel("Result, as text or JSON");
    await result.fill('{"name": "Ann"');
    await card.getByText("This is no valid JSON").waitFor();
    assert.ok(await card.getByRole("button", { name: "Send the result" }).isDisabled());
    await result.fill(JSON.stringify({ name: MARKUP }));
    await card.getByRole("button", { name: "Send the result" }).click();
    await said(page, /^The customer is .*window\.pwned = 2/);
    await prompt(page, "Who is customer 8");
    await result.fill("the database is away");
    await card.getByRole("button", { name: "Report an error" }).click();
    await said(page, /^The customer is .*the database is away/);
    await page.locator("details.tool.bad").getByText("failed").waitFor();
    assert.equal(await page.evaluate(() => window.pwned), undefined);
    assert.equal(await page.locator("main script, main img").count(), 0);
    assert.deepEqual(page.errors, []);
  });
}

export function question_is_answered_in_the_conversation({ address, ask }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    const members = [{ type: "agent", tools: ["ask_user"] }];
    await v1(page, "POST", "/sessions", { name: "question", members, prompt: "Which colour?", dir: await ask("tell the directory") });
    await page.goto(`${address}/#/sessions/question`);
    await page.getByRole("button", { name: "green" }).click();
    await said(page, "The button is green now.");
  });
}
