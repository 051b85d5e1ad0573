// What the list of sessions does not say about a session: its team, its cost, its first prompt, its last line and why it
// failed. It is read once for each change of a session, for a few sessions at a time.

import { api } from "./api.js";
import { line, teamOf } from "./format.js";

/** How many sessions are described at once. */
const AT_ONCE = 4;
/** How many events at the end of a log are searched for the failure. */
const END = 12;

export class Descriptions {
  #known = new Map();
  #wanted = [];
  #working = 0;
  #changed;

  /** Calls `changed` after each description that is read. */
  constructor(changed) {
    this.#changed = changed;
  }

  /** Returns what is known of a session, which may be of an earlier time. */
  of(id) {
    return this.#known.get(id);
  }

  /** Reads what is not known of these sessions, the first ones first. It replaces what was wanted before. */
  want(rows) {
    this.#wanted = rows.filter((row) => {
      const known = this.#known.get(row.id);
      return known?.updatedAt !== row.updated_at || known?.activity !== row.activity;
    });
    while (this.#working < AT_ONCE && this.#working < this.#wanted.length) this.#work();
  }

  /** Forgets sessions that are not in the list any more. */
  keep(rows) {
    const listed = new Set(rows.map((row) => row.id));
    for (const id of this.#known.keys()) if (!listed.has(id)) this.#known.delete(id);
  }

  async #work() {
    this.#working++;
    for (let row; (row = this.#wanted.shift()); ) {
      try {
        this.#known.set(row.id, await describe(row, this.#known.get(row.id)));
        this.#changed();
      } catch {
        // The next read of the list tries again.
      }
    }
    this.#working--;
  }
}

async function describe(row, before) {
  const [info, page, prompt] = await Promise.all([
    api.session(row.id),
    api.messages(row.id, { limit: 3 }),
    before?.prompt ?? firstPrompt(row),
  ]);
  return {
    updatedAt: row.updated_at,
    activity: row.activity,
    team: teamOf(info.agents),
    cost: info.usage.cost_usd,
    prompt,
    line: lastLine(page.messages),
    failure: row.activity === "failed" ? await failure(row, info) : undefined,
  };
}

/** Returns the beginning of the first prompt. It follows the events that start the session and its agents. */
async function firstPrompt(row) {
  const { events } = await api.events(row.id, { from: 1, limit: Math.min(row.agents + 8, 60) });
  const first = events.find((event) => event.type === "message" && event.data.message?.role === "user" && !event.hidden_by);
  const part = first?.data.message.content.find((each) => each.type === "text" && each.text.trim());
  return part && line(part.text, 200);
}

async function failure(row, info) {
  const lead = info.agents.find((agent) => agent.role === "orchestrator");
  const { events } = await api.events(row.id, { from: Math.max(1, info.head - END + 1), limit: END });
  const last = events.findLast((event) => (event.type === "error" || event.type === "turn_end") && (!lead || event.agent_id === lead.id));
  if (last?.type === "error") return line(last.data.reason, 300);
  return { limit: "The turn ended at a limit", truncated: "The answer was cut off by the model's limit" }[last?.data.outcome];
}

function lastLine(messages) {
  for (const message of messages.toReversed()) {
    const part = message.content.findLast((each) => each.type === "text" && each.text.trim());
    if (part) return line(plain(part.text), 200);
    const call = message.content.findLast((each) => each.type === "tool_call");
    if (call) return `${call.name} …`;
  }
  return "";
}

/** Returns a text without the marks of Markdown. */
function plain(text) {
  return text.replace(/```\w*|`|\*\*|~~|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)|^\s*(?:#+|>|[-*+]|---+)\s|\[[ x]\]\s|\|[-| :]+\||\|/gm, " ");
}
