// A cluster that loses nodes and fronts while a person watches and decides.

import assert from "node:assert/strict";
import { looksRight } from "./axe.js";
import { eventsOf, followsDecisions, open, prompt, said, startSession, status, v1, withBrowser } from "./browser.js";

export function drained_node_gives_its_agents_away({ address, ask }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Sleep", name: "moved", dir: await ask("tell the directory") });
    await page.locator("details.tool", { hasText: "bash" }).getByText("running").waitFor();
    const { owner } = await v1(page, "GET", "/sessions/moved");
    const cluster = await open(context, `${address}/#/cluster`);
    await followsDecisions(cluster);
    const node = cluster.locator(".node", { hasText: owner.slice(-6) });
    await node.getByRole("button", { name: "Drain", exact: true }).click();
    await node.getByText("Move its agents away and end this node?").waitFor();
    await looksRight(cluster, "the question before a drain");
    await node.getByRole("button", { name: "Keep" }).click();
    await node.getByText("alive").waitFor();
    await node.getByRole("button", { name: "Drain", exact: true }).click();
    await node.getByRole("group").getByRole("button", { name: "Drain", exact: true }).click();
    const gone = cluster.locator(".node-gone", { hasText: owner.slice(-6) });
    await node.getByText("draining").or(gone.getByText("left")).first().waitFor();
    await said(page, "I am back: rested");
    await gone.getByText("left", { exact: true }).waitFor();
    const decisions = cluster.locator(".decisions");
    await decisions.getByText("node left").waitFor();
    await decisions.getByText("drain", { exact: true }).first().waitFor();
    await looksRight(cluster, "decisions of the cluster");
    await page.bringToFront();
    await prompt(page, "Say the last word");
    await said(page, "This is the last answer.");
    assert.notEqual((await v1(page, "GET", "/sessions/moved")).owner, owner);
    await ask("start a node");
    await decisions.getByText("node joined").waitFor();
    await cluster.getByText("2 nodes in service").waitFor();
    assert.deepEqual([page.errors, cluster.errors], [[], []]);
  });
}

export function approval_survives_the_death_of_the_front({ address, ask }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Deploy", permissions: "careful", name: "approved", dir: await ask("tell the directory") });
    const card = page.getByRole("region", { name: /^Approval: bash/ });
    await card.getByRole("button", { name: "Edit the arguments…" }).click();
    const args = card.getByLabel("Arguments to run with");
    await args.fill('{"command": "echo deployed by hand"}');
    const all = await open(context, `${address}/#/waits`);
    const listed = all.getByRole("region", { name: /^Approval: bash/ });
    await listed.waitFor();
    await page.bringToFront();
    await ask("kill the front");
    await card.getByRole("button", { name: "Allow" }).click();
    await card.getByRole("alert").getByText("The front does not answer.").waitFor();
    await status(page, "reconnecting");
    await all.getByRole("alert").getByText("The front does not answer.").waitFor();
    assert.ok(await listed.isVisible(), "the wait disappears with the front");
    await looksRight(all, "waits without a front");
    await ask("start the front");
    await status(page, "open");
    assert.equal(await args.inputValue(), '{"command": "echo deployed by hand"}', "the edit is lost");
    await card.getByRole("button", { name: "Allow" }).click();
    await said(page, "Done: deployed by hand");
    await all.getByText("Just decided").waitFor();
    assert.equal((await eventsOf(page, "approved", "tool_start")).length, 1);
    assert.deepEqual([page.errors, all.errors], [[], []]);
  });
}
