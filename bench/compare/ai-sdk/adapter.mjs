// The AI SDK with the chat store of its page on message persistence, as a contender of tools/compare.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { convertToModelMessages, generateId, isLoopFinished, streamText, tool, toUIMessageStream, validateUIMessages } from "ai";
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import readline from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";

const { COMPARE_MODEL, COMPARE_DIR, COMPARE_STORE, COMPARE_HOLD } = process.env;
const hold = Number(COMPARE_HOLD) * 1000;
const note = (line) => appendFileSync(path.join(COMPARE_DIR, "ledger"), line + "\n");

const tools = {
  book: tool({
    description: "Books a number.",
    inputSchema: z.object({ number: z.string() }),
    execute: async ({ number }) => {
      note(`begin ${number}`);
      await sleep(hold);
      note(`effect ${number}`);
      await sleep(hold);
      return `booked ${number}`;
    },
  }),
  read: tool({
    description: "Reads lines of a file.",
    inputSchema: z.object({ path: z.string(), offset: z.number(), limit: z.number() }),
    execute: async ({ path: name, offset, limit }) => {
      const lines = (await readFile(path.join(COMPARE_DIR, name), "utf8")).split("\n");
      return lines.slice(offset, offset + limit).join("\n");
    },
  }),
};

const file = (id) => path.join(COMPARE_STORE, `${id}.json`);
const loadChat = async (id) => (existsSync(file(id)) ? JSON.parse(await readFile(file(id), "utf8")) : []);
const saveChat = ({ chatId, messages }) => writeFile(file(chatId), JSON.stringify(messages, null, 2));

/** Answers a message of a chat, and returns the text of its last step when the stream of the client has ended. */
async function turn(id, text) {
  const message = { id: generateId(), role: "user", parts: [{ type: "text", text }] };
  const messages = await validateUIMessages({ messages: [...(await loadChat(id)), message], tools });
  const model = createOpenAICompatible({ name: "compare", baseURL: COMPARE_MODEL, apiKey: "none" })("book");
  const result = streamText({
    model,
    instructions: "Be brief.",
    messages: await convertToModelMessages(messages),
    tools,
    stopWhen: isLoopFinished(),
  });
  let answer = "";
  const stream = toUIMessageStream({
    stream: result.stream,
    originalMessages: messages,
    generateMessageId: generateId,
    onEnd: ({ messages }) => saveChat({ chatId: id, messages }),
  });
  for await (const chunk of stream) {
    if (chunk.type === "start-step") answer = "";
    if (chunk.type === "text-delta") answer += chunk.delta;
    if (chunk.type === "error") throw new Error(chunk.errorText);
  }
  return answer.replaceAll(/\s+/g, " ");
}

async function cost(agents, turns) {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  for (;;) {
    console.log("ready");
    if ((await lines.next()).done) return;
    const ids = Array.from({ length: agents }, () => generateId());
    for (let at = 0; at < turns; at += 1) await Promise.all(ids.map((id) => turn(id, "Read the lines.")));
    console.log("done");
  }
}

const [what, ...rest] = process.argv.slice(2);
if (what === "version") {
  const version = (name) => JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
  console.log(`version ai ${version("ai")}, Node.js ${process.versions.node}`);
} else if (what === "cost") {
  await cost(Number(rest[1]), Number(rest[2]));
} else if (what === "prompt") {
  console.log(`answer ${await turn("compare", rest[0])}`);
} else if (what === "resume") {
  const last = (await loadChat("compare")).at(-1);
  const answer = last?.role === "assistant" ? last.parts.findLast((part) => part.type === "text")?.text : undefined;
  console.log(answer ? `answer ${answer}` : "nothing a turn that has not ended is in memory only");
}
