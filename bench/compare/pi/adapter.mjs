// pi's agent with the sessions of its coding agent, which it saves as files of lines, as a contender of tools/compare.

import { AuthStorage, createAgentSession, DefaultResourceLoader, defineTool, ModelRegistry, SessionManager, SettingsManager } from "@mariozechner/pi-coding-agent";
import { appendFileSync, mkdirSync, readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import path from "node:path";
import readline from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Type } from "typebox";

const { COMPARE_MODEL, COMPARE_DIR, COMPARE_STORE, COMPARE_HOLD } = process.env;
const hold = Number(COMPARE_HOLD) * 1000;
const note = (line) => appendFileSync(path.join(COMPARE_DIR, "ledger"), line + "\n");
const said = (text) => ({ content: [{ type: "text", text }], details: {} });

const book = defineTool({
  name: "book",
  label: "Book",
  description: "Books a number.",
  parameters: Type.Object({ number: Type.String() }),
  execute: async (_id, { number }) => {
    note(`begin ${number}`);
    await sleep(hold);
    note(`effect ${number}`);
    await sleep(hold);
    return said(`booked ${number}`);
  },
});

const read = defineTool({
  name: "read",
  label: "Read",
  description: "Reads lines of a file.",
  parameters: Type.Object({ path: Type.String(), offset: Type.Number(), limit: Type.Number() }),
  execute: async (_id, { path: name, offset, limit }) => {
    const lines = (await readFile(path.join(COMPARE_DIR, name), "utf8")).split("\n");
    return said(lines.slice(offset, offset + limit).join("\n"));
  },
});

const model = {
  id: "book",
  name: "book",
  api: "openai-completions",
  provider: "compare",
  baseUrl: COMPARE_MODEL,
  reasoning: false,
  input: ["text"],
  cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
  contextWindow: 2 ** 30,
  maxTokens: 8192,
  // The scripted model refuses a user's message directly after a result, as some servers do.
  compat: { requiresAssistantAfterToolResult: true },
};

/** Opens a session with the given tools. Its manager decides where it is saved. */
async function open(sessionManager, tools) {
  const agentDir = path.join(COMPARE_STORE, "agent");
  mkdirSync(agentDir, { recursive: true });
  const authStorage = AuthStorage.create(path.join(agentDir, "auth.json"));
  authStorage.setRuntimeApiKey("compare", "none");
  const settingsManager = SettingsManager.inMemory({ compaction: { enabled: false } });
  const resourceLoader = new DefaultResourceLoader({ cwd: COMPARE_DIR, agentDir, settingsManager, systemPromptOverride: () => "Be brief." });
  await resourceLoader.reload();
  const modelRegistry = ModelRegistry.inMemory(authStorage);
  const options = { cwd: COMPARE_DIR, agentDir, model, authStorage, modelRegistry, settingsManager, resourceLoader, sessionManager };
  const { session } = await createAgentSession({ ...options, thinkingLevel: "off", noTools: "builtin", customTools: tools });
  return session;
}

const sessions = () => path.join(COMPARE_STORE, "sessions");
const text = (message) => message.content.filter((part) => part.type === "text").map((part) => part.text).join("").replaceAll(/\s+/g, " ");

/** Returns the line with the answer that a session has, or ends the process if its turn failed. */
function answer(session) {
  const last = session.messages.at(-1);
  if (last?.role === "assistant" && last.stopReason === "stop") return `answer ${text(last)}`;
  console.error(last?.errorMessage ?? "the turn ended without an answer");
  return process.exit(1);
}

async function cost(agents, turns) {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  for (;;) {
    console.log("ready");
    if ((await lines.next()).done) return;
    const opened = await Promise.all(Array.from({ length: agents }, () => open(SessionManager.create(COMPARE_DIR, sessions()), [read])));
    for (let at = 0; at < turns; at += 1) await Promise.all(opened.map((session) => session.prompt("Read the lines.")));
    console.log("done");
    opened.forEach((session) => session.dispose());
  }
}

const [what, ...rest] = process.argv.slice(2);
if (what === "version") {
  const file = new URL("node_modules/@mariozechner/pi-coding-agent/package.json", import.meta.url);
  console.log(`version pi-coding-agent ${JSON.parse(readFileSync(file)).version}, Node.js ${process.versions.node}`);
} else if (what === "cost") {
  await cost(Number(rest[1]), Number(rest[2]));
} else if (what === "prompt") {
  const session = await open(SessionManager.continueRecent(COMPARE_DIR, sessions()), [book]);
  await session.prompt(rest[0]);
  console.log(answer(session));
  process.exit();
} else if (what === "resume") {
  const session = await open(SessionManager.continueRecent(COMPARE_DIR, sessions()), [book]);
  const last = session.messages.at(-1);
  if (last?.role === "user" || last?.role === "toolResult") {
    await session.agent.continue();
    console.log(answer(session));
  } else if (last?.role === "assistant" && last.stopReason === "stop") {
    console.log(answer(session));
  } else {
    console.log(last ? "nothing the last message is a call without its result" : "nothing the session has no message");
  }
  process.exit();
}
