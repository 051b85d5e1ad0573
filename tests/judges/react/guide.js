// What only the page of the guide shows: errors, and what another tab or another page does.

import assert from "node:assert/strict";
import { STORY, alerted, answered, ended, grew, openChat, request, rested, say, showsWhatWasSaved, withPages } from "./page.js";

export function pages_of_other_origins_are_refused(stage) {
  return withPages(async (context) => {
    // The pages are also there under this name, which is another origin.
    const pages = stage.pages.replace("127.0.0.1", "localhost");
    const page = await openChat(context, { ...stage, pages }, stage.chat);
    await alerted(page, "Failed to fetch");
    const status = await page.evaluate(async ([front, id]) => {
      const messages = [{ id: "m", role: "user", parts: [{ type: "text", text: "Say hello" }] }];
      const headers = { "content-type": "application/json" };
      const sent = await fetch(`${front}/ui/chat`, { method: "POST", headers, body: JSON.stringify({ id, messages }) }).catch((error) => error.message);
      const plain = await fetch(`${front}/ui/chat`, { method: "POST", mode: "no-cors", body: JSON.stringify({ id, messages }) }).catch((error) => error.message);
      return [sent, plain.type];
    }, [stage.front, stage.chat]);
    assert.deepEqual(status, ["Failed to fetch", "opaque"]);
    const session = await request(stage.front, `/v1/sessions/${stage.chat}`);
    assert.equal(session.status, 404, "a page of another origin started a session");
  });
}

export function error_before_the_stream_is_shown(stage) {
  return withPages(async (context) => {
    const page = await openChat(context, stage, stage.chat);
    await say(page, "Deploy");
    await page.getByText("bash: approval-requested").waitFor();
    await say(page, "Say hello");
    await alerted(page, /the chat waits for an answer to/);
    const malformed = await openChat(context, stage, "a.b");
    await alerted(malformed, /malformed/);
  });
}

export function failed_answer_is_shown_and_the_next_one_comes(stage) {
  return withPages(async (context) => {
    const page = await openChat(context, stage, stage.chat);
    await say(page, "Break");
    await alerted(page, /status 400/);
    await page.reload();
    await alerted(page, /status 400/);
    await say(page, "Say hello");
    await answered(page, "This is the first answer.");
    await page.getByRole("alert").waitFor({ state: "detached" });
    await page.reload();
    await answered(page, "This is the first answer.");
  });
}

export function message_in_mid_stream_is_answered_next(stage) {
  return withPages(async (context) => {
    const page = await openChat(context, stage, stage.chat);
    await stage.ask("stall the next answer");
    await say(page, "Tell a story");
    await answered(page, " 2 3");
    await say(page, "Say goodbye");
    await page.getByText("Say goodbye").waitFor();
    await stage.ask("let the model go on");
    await ended(page, stage, "This is the last answer.");
    await page.reload();
    await ended(page, stage, "This is the last answer.");
  });
}

export function two_tabs_share_a_chat(stage) {
  return withPages(async (context) => {
    const page = await openChat(context, stage, stage.chat);
    await stage.ask("stall the next answer");
    await say(page, "Tell a story");
    await answered(page, " 2 3");
    const other = await openChat(context, stage, stage.chat);
    await answered(other, " 2 3");
    await stage.ask("let the model go on");
    for (const tab of [page, other]) {
      await answered(tab, "the end of the story.");
      await rested(tab);
      await grew(tab, 2);
      assert.match(await showsWhatWasSaved(tab, stage, stage.chat), STORY);
    }
    // A tab that does not know what the other one has sent is told so, and sends nothing.
    await say(page, "Say hello");
    await answered(page, "This is the first answer.");
    await say(other, "Say goodbye");
    await alerted(other, /the history is not that of this chat/);
    await other.reload();
    await ended(other, stage, "This is the first answer.");
    // The first answer to an approval holds, and the other tab shows what was decided.
    await say(other, "Deploy");
    await other.getByRole("button", { name: "Allow" }).waitFor();
    await page.reload();
    await page.getByRole("button", { name: "Deny" }).waitFor();
    await other.getByRole("button", { name: "Allow" }).click();
    await answered(other, /^Done: .*deployed to staging/);
    await page.getByRole("button", { name: "Deny" }).click();
    await answered(page, /^Done: .*deployed to staging/);
    await page.getByText("bash: output-available").waitFor();
    for (const tab of [page, other]) {
      await rested(tab);
      await showsWhatWasSaved(tab, stage, stage.chat);
    }
  });
}
