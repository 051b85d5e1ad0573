// Plays one scenario with the MCP project's SDK for TypeScript.
//
//     client.mjs SCENARIO legacy TARGET...
//
// The targets and scenarios are those of client.py. The SDK itself checks every result against the schema of its tool.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.env.MCP_JUDGE, "package.json"));
const load = (part) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${part}`)).href);
const { Client } = await load("client/index.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
const { StdioClientTransport } = await load("client/stdio.js");

const TOOLS = ["list_teams", "run_team", "continue", "status", "list_sessions", "answer", "cancel"];
const WARM = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
};
const where = process.env.PLANCK_WORKSPACE ? { workspace: process.env.PLANCK_WORKSPACE } : {};

async function connected(target, use) {
  const client = new Client({ name: "judge", version: "1" });
  const headers = { Authorization: `Bearer ${process.env.PLANCK_KEY ?? "none"}` };
  const transport = target.startsWith("http")
    ? new StreamableHTTPClientTransport(new URL(target), { requestInit: { headers } })
    : new StdioClientTransport({ command: target, args: ["mcp", "serve"], env: process.env, stderr: "inherit" });
  await client.connect(transport);
  try {
    return await use(client);
  } finally {
    await client.close();
  }
}

// Calls a tool, and returns its structured content, which is the same as its text.
async function work(client, name, args, options) {
  const result = await client.callTool({ name, arguments: args }, undefined, options);
  assert.ok(!result.isError, JSON.stringify(result));
  assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
  return result.structuredContent;
}

async function refused(client, name, args) {
  const result = await client.callTool({ name, arguments: args });
  assert.ok(result.isError, JSON.stringify(result));
  return result.content[0].text;
}

async function finished(client, found) {
  while (found.state === "working") {
    found = await work(client, "status", { session: found.session, prompt_id: found.prompt_id });
  }
  return found;
}

async function tour([target]) {
  return connected(target, async (client) => {
    const { tools } = await client.listTools();
    assert.deepEqual(tools.map((tool) => tool.name), TOOLS);
    for (const tool of tools) {
      assert.ok(tool.title && tool.description && tool.outputSchema && tool.annotations, tool.name);
    }
    const { teams } = await work(client, "list_teams", {});
    for (const name of ["painter", "asker"]) {
      assert.ok(teams.some((team) => team.name === name), name);
    }

    const told = [];
    const run = { prompt: "Say hello.", team: "painter", request_key: `hello-${process.pid}`, ...where };
    const first = await finished(client, await work(client, "run_team", run, { onprogress: (it) => told.push(it) }));
    assert.deepEqual([first.state, first.answer], ["completed", "Hello."]);
    assert.ok(told[0].message.startsWith(`session ${first.session},`), JSON.stringify(told));
    assert.ok(told.some((it) => it.message.includes("lead calls")), JSON.stringify(told));
    told.forEach((it, at) => assert.equal(it.progress, at + 1));
    assert.deepEqual(await work(client, "run_team", run), first);

    const more = await work(client, "continue", { session: first.session, prompt: "Once more." });
    assert.equal((await finished(client, more)).answer, "Again.");

    const warm = await work(client, "run_team", { prompt: "How warm is it?", output_schema: WARM, ...where });
    assert.deepEqual((await finished(client, warm)).output, { city: "Rome", degrees: 21 });

    const asked = await finished(client, await work(client, "run_team", { prompt: "Paint.", team: "asker", ...where }));
    assert.equal(asked.state, "input_required");
    const { id, kind, digest } = asked.waits[0];
    const decision = kind === "approval" ? { decision: "allow" } : { decision: "answer", value: "blue" };
    const painted = await work(client, "answer", { session: asked.session, wait: id, digest, ...decision });
    assert.equal((await finished(client, painted)).answer, "Painted.");

    const story = await work(client, "run_team", { prompt: "Tell a story.", wait_seconds: 1, ...where });
    assert.equal(story.state, "working");
    const ended = await work(client, "cancel", { session: story.session, prompt_id: story.prompt_id });
    assert.equal(ended.state, "cancelled");

    assert.match(await refused(client, "status", { session: "missing" }), /no session/);
    assert.match(await refused(client, "run_team", { prompt: "a", dir: "/" }), /`dir`/);
    return { session: story.session };
  });
}

// A call that its client gives up is found by another client, at another server.
async function lost(targets) {
  await connected(targets[0], async (client) => {
    const call = work(client, "run_team", { prompt: "Tell a story.", ...where }, { timeout: 2_000 });
    await assert.rejects(call, /timed out/i);
  });
  return connected(targets.at(-1), async (client) => {
    const { sessions } = await work(client, "list_sessions", { limit: 1 });
    assert.equal(sessions[0].first_prompt, "Tell a story.");
    let told;
    do {
      told = await work(client, "status", { session: sessions[0].session });
    } while (told.state === "working");
    assert.equal(told.state, "completed");
    return told;
  });
}

// The test kills the node of the session while the call waits.
async function killed(targets) {
  const onprogress = ({ message }) => message.includes("lead calls") && console.log("streaming");
  const run = { prompt: "Tell a story.", team: "painter", ...where };
  const found = await connected(targets[0], (client) => work(client, "run_team", run, { onprogress }));
  return connected(targets.at(-1), (client) => finished(client, found));
}

const [scenario, , ...targets] = process.argv.slice(2);
console.log(JSON.stringify(await { tour, lost, killed }[scenario](targets)));
