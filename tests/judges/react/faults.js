// A front that is killed while a person reads.

import assert from "node:assert/strict";
import { STORY, alerted, answered, ended, openChat, say, startSession, withPages } from "./page.js";

export function killed_front_is_reconnected(stage) {
  return withPages(async (context) => {
    await startSession(stage, stage.chat, { permissions: "careful" });
    const page = await openChat(context, stage, stage.chat);
    const other = await openChat(context, stage, stage.chat);
    await stage.ask("stall the next answer");
    await say(page, "Tell a story");
    await answered(page, " 8 9");
    await other.reload();
    await answered(other, " 8 9");
    await stage.ask("kill the front");
    // The text stays, and the page says that the connection is lost.
    for (const tab of [page, other]) {
      await alerted(tab, "network error");
      await answered(tab, " 8 9");
    }
    await other.reload();
    await alerted(other, "Failed to fetch");
    await page.getByRole("button", { name: "Reconnect" }).click();
    await alerted(page, "Failed to fetch");
    await stage.ask("start the front");
    await page.getByRole("button", { name: "Reconnect" }).click();
    await other.reload();
    await stage.ask("let the model go on");
    for (const tab of [page, other]) {
      assert.match(await ended(tab, stage, "the end of the story."), STORY);
    }
    assert.equal(await page.getByRole("alert").count(), 0);
  });
}

export function answer_that_ended_meanwhile_is_whole(stage) {
  return withPages(async (context) => {
    await startSession(stage, stage.chat, { permissions: "careful" });
    const page = await openChat(context, stage, stage.chat);
    await stage.ask("stall the next answer");
    await say(page, "Tell a story");
    await answered(page, " 8 9");
    await stage.ask("kill the front");
    await alerted(page, "network error");
    await stage.ask("let the model go on");
    await stage.ask(`wait for the end of the turn of ${stage.chat}`);
    await stage.ask("start the front");
    await page.getByRole("button", { name: "Reconnect" }).click();
    assert.match(await ended(page, stage, "the end of the story."), STORY);
  });
}
