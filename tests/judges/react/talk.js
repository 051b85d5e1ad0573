// What a person does with a page. The cases are played on the page of the guide and on that of
// assistant-ui.

import assert from "node:assert/strict";
import { STORY, answered, ended, grew, openChat, rested, say, shown, showsWhatWasSaved, withPages } from "./page.js";

export function text_grows_to_what_is_saved(stage) {
  return withPages(async (context) => {
    const page = await openChat(context, stage, stage.chat);
    await say(page, "Count");
    assert.match(await ended(page, stage, " 2 3"), /^I count\. 1 2 3 .* 39 40 That is all\.$/);
    await grew(page, 5);
    await say(page, "Say hello");
    await ended(page, stage, "This is the first answer.");
    await page.reload();
    await answered(page, "This is the first answer.");
    assert.equal((await shown(page)).length, 4);
    await showsWhatWasSaved(page, stage, stage.chat);
    await say(page, "Say goodbye");
    await ended(page, stage, "This is the last answer.");
  });
}

export function tool_runs_when_allowed_and_not_when_denied(stage) {
  return withPages(async (context) => {
    const page = await openChat(context, stage, stage.chat);
    await say(page, "Deploy");
    await page.getByText("bash: approval-requested").waitFor();
    await page.getByRole("button", { name: "Allow" }).click();
    await answered(page, /^Done: .*deployed to staging/);
    await page.getByText(/^bash: (output-available|done)/).waitFor();
    await rested(page);
    await showsWhatWasSaved(page, stage, stage.chat);
    await say(page, "Deploy");
    await page.getByText("bash: approval-requested").waitFor();
    await page.reload();
    await page.getByRole("button", { name: "Deny" }).click();
    await page.getByText(/^bash: (output-denied|failed)/).waitFor();
    await answered(page, /^Done: .*denied/);
    await rested(page);
    assert.equal(await page.getByRole("button", { name: "Allow" }).count(), 0);
    await showsWhatWasSaved(page, stage, stage.chat);
    await page.reload();
    await page.getByText(/^bash: (output-denied|failed)/).waitFor();
    await page.getByText(/^bash: (output-available|done)/).waitFor();
    await showsWhatWasSaved(page, stage, stage.chat);
  });
}

export function stopped_answer_keeps_its_text_and_the_next_one_comes(stage) {
  return withPages(async (context) => {
    const page = await openChat(context, stage, stage.chat);
    await say(page, "Tell it for ever");
    await answered(page, " 2 3");
    await page.getByRole("button", { name: "Stop" }).click();
    await rested(page);
    const text = await showsWhatWasSaved(page, stage, stage.chat);
    assert.match(text, /^Once there were numbers\. 1 2 3/);
    await say(page, "Say goodbye");
    await ended(page, stage, "This is the last answer.");
    await page.reload();
    await ended(page, stage, "This is the last answer.");
  });
}

export function reload_in_mid_stream_continues_the_text(stage) {
  return withPages(async (context) => {
    const page = await openChat(context, stage, stage.chat);
    await stage.ask("stall the next answer");
    await say(page, "Tell a story");
    await answered(page, " 8 9");
    await page.reload();
    await answered(page, " 8 9");
    assert.deepEqual((await shown(page))[0], { role: "user", text: "Tell a story" });
    assert.equal(await page.getByText("the end of the story").count(), 0, "the story ended before the reload");
    await stage.ask("let the model go on");
    await answered(page, "the end of the story.");
    await rested(page);
    await grew(page, 2);
    assert.match(await showsWhatWasSaved(page, stage, stage.chat), STORY);
  });
}
