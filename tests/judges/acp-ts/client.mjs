// Plays an editor with the Agent Client Protocol's SDK for TypeScript.
//
//     client.mjs COMMAND...
//
// The command is `planck acp` with its options, and the model answers as cli/tests/acp_judges.rs says. Every line that the command
// writes is checked with the SDK's schemas. They mend optional fields that are wrong and drop fields that they do not know, so what
// a schema has read must have all that the line says. Methods that the command does not announce are not called. The script ends
// with an exception if the agent says something else than is expected, and otherwise prints the number of lines.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { PassThrough, Readable, Transform, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const sdk = (part) => import(pathToFileURL(join(process.env.ACP_JUDGE, "node_modules/@agentclientprotocol/sdk/dist/v1", part)).href);
// Agents beside the lead are no part of the stable protocol yet.
const stable = { ...(await sdk("stable/acp.js")), types: await sdk("schema/zod.gen.js") };
const unstable = { ...(await sdk("unstable/acp.js")), types: await sdk("unstable/schema/zod.gen.js") };

const RESULTS = {
  "initialize": "zInitializeResponse",
  "session/new": "zNewSessionResponse",
  "session/load": "zLoadSessionResponse",
  "session/resume": "zResumeSessionResponse",
  "session/list": "zListSessionsResponse",
  "session/close": "zCloseSessionResponse",
  "session/delete": "zDeleteSessionResponse",
  "session/prompt": "zPromptResponse",
  "session/set_mode": "zSetSessionModeResponse",
  "session/set_config_option": "zSetSessionConfigOptionResponse",
};
const CALLS = {
  "session/update": "zSessionNotification",
  "session/request_permission": "zRequestPermissionRequest",
  "elicitation/create": "zCreateElicitationRequest",
  "elicitation/complete": "zCompleteElicitationNotification",
  "$/cancel_request": "zCancelRequestNotification",
};
const judged = { lines: 0, wrong: [] };

// Returns the path of the first part of what was written that was not read, or undefined.
function lost(written, read, path = "") {
  if (written === null || typeof written !== "object") return Object.is(written, read) ? undefined : path;
  if (read === null || typeof read !== "object" || Array.isArray(written) !== Array.isArray(read)) return path;
  if (Array.isArray(written) && written.length !== read.length) return path;
  for (const key of Object.keys(written)) {
    const found = lost(written[key], read[key], `${path}/${key}`);
    if (found !== undefined) return found;
  }
}

function judge(line, methods, types) {
  judged.lines += 1;
  const message = JSON.parse(line);
  assert.equal(message.jsonrpc, "2.0", line);
  let [name, content] = ["zError", message.error];
  if (message.method) [name, content] = [CALLS[message.method], message.params];
  else if (!message.error) [name, content] = [RESULTS[methods.get(message.id)], message.result];
  const type = types[name];
  const read = type?.safeParse(content);
  const why = !type ? "no such method" : read.error ? read.error.message : lost(content, read.data);
  if (why === undefined) return;
  judged.wrong.push(why);
  console.error(`wrong: ${why}: ${line}`);
}

// Returns a stream that lets everything pass and shows its lines.
function lines(see) {
  let rest = "";
  return new Transform({
    transform(chunk, _, done) {
      const parts = (rest + chunk.toString("utf8")).split("\n");
      rest = parts.pop();
      parts.forEach(see);
      done(null, chunk);
    },
  });
}

// Starts the command, plays a part with it, and lets it end as an editor does: by the end of its input.
async function connected(play, { sdk = stable, clientCapabilities = {} } = {}) {
  const agent = spawn(process.argv[2], process.argv.slice(3), { stdio: ["pipe", "pipe", "inherit"] });
  const [methods, seen] = [new Map(), { updates: [], asked: [], forms: [], option: "allow", told: () => {} }];
  const said = agent.stdout.pipe(lines((line) => judge(line, methods, sdk.types)));
  const sent = lines((line) => {
    const { id, method } = JSON.parse(line);
    if (method && id !== undefined) methods.set(id, method);
  });
  sent.pipe(agent.stdin);
  const app = sdk
    .client({ name: "judge" })
    .onNotification("session/update", ({ params }) => {
      seen.updates.push(params);
      seen.told(params.update);
    })
    .onRequest("session/request_permission", ({ params }) => {
      seen.asked.push(params);
      assert.equal(params.toolCall.title, params.toolCall.rawInput.command);
      const optionId = params.options.find((option) => option.optionId === seen.option)?.optionId;
      return { outcome: optionId ? { outcome: "selected", optionId } : { outcome: "cancelled" } };
    })
    .onRequest("elicitation/create", ({ params }) => {
      seen.forms.push(params);
      return { action: "accept", content: { answer: "blue" } };
    });
  const stream = sdk.ndJsonStream(Writable.toWeb(sent), Readable.toWeb(said.pipe(new PassThrough())));
  const result = await app.connectWith(stream, async (context) => {
    const call = (method, params) => context.request(method, params);
    const hello = await call("initialize", { protocolVersion: sdk.PROTOCOL_VERSION, clientCapabilities });
    assert.equal(hello.protocolVersion, sdk.PROTOCOL_VERSION);
    assert.deepEqual(hello.authMethods, []);
    return play({ call, seen, can: hello.agentCapabilities, notify: (method, params) => context.notify(method, params) });
  });
  sent.end();
  const [code] = await once(agent, "exit");
  assert.equal(code, 0);
  return result;
}

const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";
const place = { cwd: process.cwd(), mcpServers: [] };
const prompt = ({ call }, sessionId, text) => call("session/prompt", { sessionId, prompt: [{ type: "text", text }] });

// Returns what was said in a session since the last call, and what became of the calls of tools.
function taken({ seen }, sessionId) {
  const updates = seen.updates.splice(0);
  assert.ok(updates.every((update) => update.sessionId === sessionId), JSON.stringify(updates));
  const of = (kind) => updates.map(({ update }) => update).filter((update) => update.sessionUpdate === kind);
  const text = (kind) => of(kind).map((update) => update.content.text).join("");
  const calls = updates.map(({ update }) => update).filter((update) => update.toolCallId);
  return { said: text("agent_message_chunk"), asked: text("user_message_chunk"), states: calls.map((call) => call.status), of };
}

async function refused(answer, code) {
  await assert.rejects(answer, (error) => error.code === code || assert.fail(`${error.code}: ${error.message}`));
}

// Waits until something comes of which `is` is true.
const told = ({ seen }, is) => new Promise((found) => (seen.told = (update) => is(update) && found(update)));

async function prompts(agent) {
  const opened = await agent.call("session/new", place);
  const { sessionId } = opened;
  assert.equal((await prompt(agent, sessionId, "Write it.")).stopReason, "end_turn");
  assert.deepEqual(agent.seen.asked.splice(0).map(({ sessionId }) => sessionId), [sessionId]);
  let heard = taken(agent, sessionId);
  assert.equal(heard.said, "I write it.It is written.");
  assert.deepEqual(heard.states, ["pending", "in_progress", "completed"]);
  assert.equal(heard.of("available_commands_update").length, 1);
  assert.equal(readFileSync("out.txt", "utf8"), "one\ntwo\n");
  rmSync("out.txt");

  for (const [option, stopReason] of [["deny", "end_turn"], ["none", "cancelled"]]) {
    agent.seen.option = option;
    const { sessionId } = await agent.call("session/new", place);
    const answer = prompt(agent, sessionId, "Write it.");
    if (option === "none") {
      // The editor answers `cancelled`, which decides nothing, and so the prompt has to be cancelled.
      await told(agent, (update) => update.content?.text?.includes("decides nothing"));
      await agent.notify("session/cancel", { sessionId });
    }
    assert.equal((await answer).stopReason, stopReason);
    assert.deepEqual(taken(agent, sessionId).states, ["pending", "failed"]);
  }
  assert.ok(!existsSync("out.txt"));
  agent.seen.option = "allow";
  agent.seen.asked.splice(0);

  const story = prompt(agent, sessionId, "Tell a story.");
  await told(agent, (update) => update.sessionUpdate === "agent_message_chunk");
  await refused(prompt(agent, sessionId, "Hello."), -32600);
  await agent.notify("session/cancel", { sessionId });
  assert.equal((await story).stopReason, "cancelled");
  heard = taken(agent, sessionId);
  assert.ok(heard.said.startsWith("slow"), heard.said);
  assert.equal((await prompt(agent, sessionId, "Hello.")).stopReason, "end_turn");
  assert.equal(taken(agent, sessionId).said, "Quick.");
  return opened;
}

async function loads(agent, { sessionId }) {
  await refused(agent.call("session/load", { ...place, sessionId: "none" }), -32002);
  await refused(agent.call("session/new", { ...place, cwd: "work" }), -32602);
  await refused(agent.call("session/surprise", {}), -32601);
  await agent.call("session/load", { ...place, sessionId });
  const heard = taken(agent, sessionId);
  assert.equal(heard.asked, "Write it.Tell a story.Hello.");
  assert.match(heard.said, /^I write it\.It is written\.[slow ]+Quick\.$/);
  assert.deepEqual(heard.states, ["pending", "in_progress", "completed"]);
  assert.equal((await prompt(agent, sessionId, "Hello.")).stopReason, "end_turn");
  assert.equal(taken(agent, sessionId).said, "Quick.");
}

// Returns all sessions, page by page.
async function list(agent, wanted = {}) {
  const sessions = [];
  for (let cursor; ; ) {
    const page = await agent.call("session/list", { ...wanted, ...(cursor && { cursor }) });
    sessions.push(...page.sessions);
    cursor = page.nextCursor;
    if (!cursor) break;
  }
  const ids = sessions.map(({ sessionId }) => sessionId);
  assert.equal(new Set(ids).size, ids.length, JSON.stringify(ids));
  return ids;
}

async function lists(agent, { sessionId }) {
  if (!agent.can.sessionCapabilities?.list) return "list";
  assert.ok((await list(agent)).includes(sessionId));
  assert.ok((await list(agent, { cwd: process.cwd() })).includes(sessionId));
  assert.deepEqual(await list(agent, { cwd: "/no/such/folder" }), []);
  await refused(agent.call("session/list", { cursor: "none" }), -32602);
}

async function resumes(agent, { sessionId }) {
  if (!agent.can.sessionCapabilities?.resume) return "resume";
  await refused(agent.call("session/resume", { ...place, sessionId: "none" }), -32002);
  await agent.call("session/resume", { ...place, sessionId });
  assert.equal((await prompt(agent, sessionId, "Hello.")).stopReason, "end_turn");
  const heard = taken(agent, sessionId);
  assert.equal(heard.asked + heard.said, "Quick.", "what was said before is not said again");
}

// Whether a call is asked about is what tells the modes apart. The first prompt fixes the mode.
async function modes(agent) {
  for (const [modeId, asked] of [["auto", 0], ["careful", 1]]) {
    const { sessionId, modes } = await agent.call("session/new", place);
    if (!modes) return "set_mode";
    const known = modes.availableModes.map(({ id }) => id);
    assert.ok(known.includes(modes.currentModeId) && known.includes(modeId), JSON.stringify(modes));
    const set = (modeId, id = sessionId) => agent.call("session/set_mode", { sessionId: id, modeId });
    await refused(set("none"), -32602);
    await refused(set(modeId, "none"), -32002);
    await set(modeId);
    assert.equal((await prompt(agent, sessionId, "Write it.")).stopReason, "end_turn");
    assert.equal(agent.seen.asked.splice(0).length, asked, modeId);
    await refused(set("read-only"), -32602);
    taken(agent, sessionId);
  }
}

async function options(agent) {
  const { sessionId, configOptions } = await agent.call("session/new", place);
  if (!configOptions?.length) return "set_config_option";
  const set = (configId, value) => agent.call("session/set_config_option", { sessionId, configId, value });
  await refused(set("none", "none"), -32602);
  for (const { id, currentValue, options } of configOptions) {
    await refused(set(id, "no such value"), -32602);
    const values = options.flatMap((option) => option.options ?? [option]).map(({ value }) => value);
    for (const value of [...values.slice(0, 3), currentValue]) {
      const { configOptions: now } = await set(id, value);
      assert.deepEqual(now.map(({ id }) => id), configOptions.map(({ id }) => id));
      assert.equal(now.find((option) => option.id === id).currentValue, value);
    }
  }
  assert.equal((await prompt(agent, sessionId, "Hello.")).stopReason, "end_turn");
}

async function ends(agent, { sessionId }) {
  const can = agent.can.sessionCapabilities ?? {};
  if (can.close) {
    const { sessionId } = await agent.call("session/new", place);
    const story = prompt(agent, sessionId, "Tell a story.");
    await told(agent, (update) => update.sessionUpdate === "agent_message_chunk");
    await agent.call("session/close", { sessionId });
    assert.equal((await story).stopReason, "cancelled");
    await agent.call("session/load", { ...place, sessionId });
  }
  if (can.delete) {
    await agent.call("session/delete", { sessionId });
    await refused(agent.call("session/load", { ...place, sessionId }), -32002);
    if (can.list) assert.ok(!(await list(agent)).includes(sessionId));
  }
  return ["close", "delete"].filter((name) => !can[name]).join() || undefined;
}

// A prompt has what an editor puts into it: a picture, a file that it has read, and a link to another one.
async function contents(agent) {
  const { image, embeddedContext } = agent.can.promptCapabilities ?? {};
  const parts = [
    { type: "text", text: "Hello." },
    { type: "resource_link", name: "a.txt", uri: "file:///a.txt" },
    ...(image ? [{ type: "image", mimeType: "image/png", data: PIXEL }] : []),
    ...(embeddedContext ? [{ type: "resource", resource: { uri: "file:///b.txt", text: "b" } }] : []),
  ];
  const { sessionId } = await agent.call("session/new", place);
  assert.equal((await agent.call("session/prompt", { sessionId, prompt: parts })).stopReason, "end_turn");
  assert.match(taken(agent, sessionId).said, /Quick\.$/);
  if (parts.length < 4) return "image,embeddedContext";
}

// Opens a session with the team `pair`, or returns undefined.
async function pair(agent) {
  const { sessionId, configOptions } = await agent.call("session/new", place);
  const team = configOptions?.find(({ id }) => id === "team");
  if (!team?.options.some(({ value }) => value === "pair")) return undefined;
  await agent.call("session/set_config_option", { sessionId, configId: "team", value: "pair" });
  return sessionId;
}

// An agent beside the lead needs a permission. An editor that shows such agents is asked in the agent's own session, which was
// announced before. Any other editor knows only the session of the lead.
const scouts = (shows) => async (agent) => {
  const sessionId = await pair(agent);
  if (!sessionId) return "teams";
  assert.equal((await prompt(agent, sessionId, "Send a scout.")).stopReason, "end_turn");
  assert.equal(readFileSync("out.txt", "utf8"), "one\ntwo\n");
  rmSync("out.txt");
  const known = new Set([sessionId]);
  for (const { sessionId, update } of agent.seen.updates) {
    assert.ok(known.has(sessionId), `${sessionId} was not announced`);
    if (update.sessionUpdate === "subagent_update") known.add(update.sessionId);
  }
  assert.equal(known.size, shows ? 2 : 1);
  const [asked, ...more] = agent.seen.asked;
  assert.ok(known.has(asked.sessionId) && (asked.sessionId !== sessionId) === shows && !more.length);
  agent.seen.updates = agent.seen.updates.filter((update) => update.sessionId === sessionId);
  assert.match(taken(agent, sessionId).said, /^It is on its way\.\s*The scout has it\.$/);
};

const asks = (forms) => async (agent) => {
  const sessionId = await pair(agent);
  if (!sessionId) return "questions";
  assert.equal((await prompt(agent, sessionId, "Ask me.")).stopReason, "end_turn");
  if (!forms) {
    // Without forms the question ends the prompt, and the next one is its answer.
    assert.match(taken(agent, sessionId).said, /Which colour\?/);
    assert.equal((await prompt(agent, sessionId, "blue")).stopReason, "end_turn");
  }
  assert.equal(agent.seen.forms.length, forms ? 1 : 0);
  assert.match(taken(agent, sessionId).said, /It is blue\.$/);
};

// The model `small` has so small a context that a few answers fill it.
async function compacts(agent) {
  const { sessionId, configOptions } = await agent.call("session/new", place);
  const small = configOptions?.find(({ id }) => id === "model")?.options.find(({ value }) => value.endsWith(":small"));
  if (!small) return "compaction";
  await agent.call("session/set_config_option", { sessionId, configId: "model", value: small.value });
  const states = () => agent.seen.updates.map(({ update }) => update).filter((update) => update.compactionId).map(({ status }) => status);
  for (let n = 0; !states().length && n < 12; n += 1) {
    assert.equal((await prompt(agent, sessionId, "Say much.")).stopReason, "end_turn");
  }
  assert.deepEqual(states().slice(0, 2), ["in_progress", "completed"]);
}

const opened = await connected(prompts);
await connected((agent) => loads(agent, opened));
const left = [];
for (const scene of [lists, resumes, modes, options, contents, scouts(false), asks(false), ends]) {
  left.push(await connected((agent) => scene(agent, opened)));
}
const everything = { sdk: unstable, clientCapabilities: { subagents: {}, elicitation: { form: {} }, session: { notices: {}, compaction: {} } } };
for (const scene of [scouts(true), asks(true), compacts]) left.push(await connected(scene, everything));
assert.deepEqual(judged.wrong, []);
console.log(JSON.stringify({ messages: judged.lines, notAnnounced: left.filter(Boolean).join() }));
