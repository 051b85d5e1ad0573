// A session as a file: its log, or its conversation as Markdown.

import { api } from "./api.js";
import { duration, text } from "./format.js";
import { apply, emptyState, nameAgents } from "./reducer.js";

/** The most characters of a log that a page holds in its memory for a file. */
const LARGEST = 128 * 1024 * 1024;
/** How long the address of a made file is kept for the browser to read it. */
const KEPT_MS = 60_000;

/** Reads the log up to its present end, and gives the browser a file: `json` has an event on each line. */
export async function download(session, kind) {
  const events = await readLog(session);
  const isJson = kind === "json";
  const parts = isJson ? events.map((event) => `${JSON.stringify(event)}\n`) : [markdownOf(session, events)];
  const address = URL.createObjectURL(new Blob(parts, { type: isJson ? "application/x-ndjson" : "text/markdown" }));
  const link = document.createElement("a");
  Object.assign(link, { href: address, download: `${session.name}.${isJson ? "jsonl" : "md"}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), KEPT_MS);
}

async function readLog(session) {
  const events = [];
  const { head } = await api.session(session.id);
  let size = 0;
  for (let from = 1; from <= head; ) {
    const page = await api.events(session.id, { from });
    if (!page.events.length) break;
    events.push(...page.events);
    size += JSON.stringify(page.events).length;
    if (size > LARGEST) throw new Error(`The log is too long for the browser. On the command line: planck session export ${session.name}`);
    from = page.next;
  }
  return events;
}

/** Returns the conversation of a session as Markdown. What a rewind hid is left out. */
export function markdownOf(session, events) {
  const state = emptyState();
  nameAgents(state, session.agents);
  for (const event of events) apply(state, event);
  const name = (id) => state.agents.get(id)?.name || "agent";
  const parts = state.items.map((item) => WRITTEN[item.kind]?.(item, name)).filter(Boolean);
  return `# ${session.name}\n\n${parts.join("\n\n")}\n`;
}

const WRITTEN = {
  user: (item, name) => `## ${item.by ?? "You"} to ${name(item.agent)}\n\n${texts(item.parts)}`,
  custom: (item, name) => `## ${item.from?.name ?? item.custom} to ${name(item.agent)}\n\n${texts(item.parts)}`,
  assistant: (item, name) => `## ${name(item.agent)}\n\n${texts(item.parts)}`,
  output: (item, name) => `## ${name(item.agent)} answers in ${item.shape ? `the shape ${item.shape}` : "a shape"}\n\n${fenced(text(item.value), "json")}`,
  notice: (item, name) => `*${item.isOfSession ? "" : `${name(item.agent)}: `}${text(item.text).replace(/\s+/g, " ")}*`,
  tool: (item, name) => {
    const took = item.durationMs === undefined ? "" : `, ${duration(item.durationMs)}`;
    const result = item.result === undefined ? "" : `\n\n${fenced(text(item.result))}`;
    return `### ${name(item.agent)} calls \`${item.name}\` (${item.status}${took})\n\n${fenced(text(item.invalid ?? item.args), "json")}${result}`;
  },
};

function texts(parts) {
  return parts.map((part) => (part.type === "text" ? text(part.text) : part.type === "thinking" ? quoted(text(part.text)) : `*${part.type}*`)).filter(Boolean).join("\n\n");
}

function quoted(value) {
  return value && value.split("\n").map((each) => `> ${each}`).join("\n");
}

/** Returns a text as a block of code, with a fence that is longer than every one in the text. */
function fenced(value, language = "") {
  const longest = Math.max(2, ...(value.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${value}\n${fence}`;
}
