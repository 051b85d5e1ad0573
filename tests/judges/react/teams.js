// A lead that sends a worker and rests, and answers again when the worker has told its result. The
// cases are played on the page of the guide and on that of assistant-ui.

import assert from "node:assert/strict";
import { answered, ended, eventually, openChat, rested, say, shown, shows, showsWhatWasSaved, startSession, v1, withPages } from "./page.js";

const FIRST = "I send a scout.The scout is on its way.";
const WHOLE = `${FIRST}The scout has it. This is the end of the search.`;

export function answer_of_a_team_ends_with_its_result(stage) {
  return withPages(async (context) => {
    const page = await sent(context, stage, "Search in the house");
    // The lead rests, and the answer is open.
    await agents(stage, { lead: "idle", scout: "executing_tools" });
    assert.deepEqual((await shown(page)).at(-1), { role: "assistant", text: FIRST });
    await page.getByRole("button", { name: "Stop" }).waitFor();
    const other = await openChat(context, stage, stage.chat);
    await page.reload();
    for (const tab of [page, other]) {
      await tab.getByText("scout: working").waitFor();
      await answered(tab, "The scout is on its way.");
      await tab.getByRole("button", { name: "Stop" }).waitFor();
    }
    await stage.ask("open the door");
    for (const tab of [page, other]) await isWhole(tab, stage);
    await agents(stage, { lead: "idle", scout: "idle" });
    await page.reload();
    await isWhole(page, stage);
    await say(page, "Say goodbye");
    await ended(page, stage, "This is the last answer.");
    assert.equal((await shown(page)).length, 4);
  });
}

export function stopped_team_rests_and_the_next_answer_comes(stage) {
  return withPages(async (context) => {
    const page = await sent(context, stage, "Search in the house");
    await agents(stage, { lead: "idle", scout: "executing_tools" });
    await page.getByRole("button", { name: "Stop" }).click();
    await rested(page);
    await agents(stage, { lead: "idle", scout: "idle" });
    assert.ok((await showsWhatWasSaved(page, stage, stage.chat)).startsWith(FIRST));
    await page.getByText("scout: idle").waitFor();
    await say(page, "Say goodbye");
    await ended(page, stage, "This is the last answer.");
    await page.reload();
    await ended(page, stage, "This is the last answer.");
    assert.equal((await shown(page)).length, 4);
  });
}

export function message_to_a_team_at_work_is_answered_at_once(stage) {
  return withPages(async (context) => {
    const prompt = "Search in the house";
    const page = await sent(context, stage, prompt);
    await agents(stage, { lead: "idle", scout: "executing_tools" });
    await say(page, "Say goodbye");
    await answered(page, "This is the last answer.");
    await stage.ask("open the door");
    await agents(stage, { lead: "idle", scout: "idle" });
    const all = [
      { role: "user", text: prompt },
      { role: "assistant", text: WHOLE },
      { role: "user", text: "Say goodbye" },
      { role: "assistant", text: "Goodbye! This is the last answer." },
    ];
    await shows(page, () => all);
    await rested(page);
    await page.reload();
    await shows(page, () => all);
    await rested(page);
  });
}

export function answer_goes_on_when_the_node_of_the_lead_is_killed(stage) {
  return goes_on(stage, "lead", "Search behind the hill");
}

export function answer_goes_on_when_the_node_of_the_worker_is_killed(stage) {
  return goes_on(stage, "scout", "Search behind the sea");
}

function goes_on(stage, victim, prompt) {
  return withPages(async (context) => {
    const page = await sent(context, stage, prompt);
    await agents(stage, { lead: "idle", scout: "streaming" });
    await stage.ask(`kill the node of ${victim} in ${stage.chat}`);
    await isWhole(page, stage);
    assert.equal((await shown(page)).length, 2);
    await page.reload();
    await isWhole(page, stage);
  });
}

/** Starts a team, and sends the prompt with which its lead sends a worker. Returns the page. */
async function sent(context, stage, prompt) {
  const members = [{ type: "lead", system_prompt: "You are the lead.", tools: ["spawn_agent", "bash"] }];
  await startSession(stage, stage.chat, { members });
  const page = await openChat(context, stage, stage.chat);
  await say(page, prompt);
  await answered(page, "The scout is on its way.");
  await page.getByText("scout: working").waitFor();
  return page;
}

/** Waits until the page shows the whole answer, which the front has saved. */
async function isWhole(page, stage) {
  assert.equal(await ended(page, stage, "This is the end of the search."), WHOLE);
  // A page that was opened again shows what was saved, and may then play the answer once more. The text is that of one
  // element: this fails if there are two.
  await eventually(async () => assert.equal(await page.getByText(/^scout: /).textContent(), "scout: idle"));
}

/** Waits until the agents of the session have these states, by their names. */
function agents({ front, chat }, expected) {
  return v1(front, `/sessions/${chat}`, ({ agents }) => {
    const found = Object.fromEntries(agents.map(({ name, state }) => [name, state]));
    assert.deepEqual(found, expected);
  });
}
