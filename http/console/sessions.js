// The list of all sessions.

import { html, useRef, useState } from "./html.js";
import { api } from "./api.js";
import { ago, line, money } from "./format.js";
import { useNow, usePoll } from "./live.js";
import { Badge, Commands, Empty, ProblemNote } from "./parts.js";

const PERIOD_MS = 2_000;
const PAGE = 50;
/** How many sessions are described at once. */
const AT_ONCE = 4;

const ACTIVITY = {
  working: ["work", "working"],
  waiting: ["quiet", "queued"],
  failed: ["bad", "failed"],
  idle: ["quiet", "idle"],
  waits: ["wait", "waits for you"],
  closed: ["quiet", "closed"],
};

export function SessionsPage({ onStart }) {
  const [limit, setLimit] = useState(PAGE);
  const details = useRef(new Map());
  const [, setVersion] = useState(0);
  const list = usePoll(async () => {
    const [page, waits] = await Promise.all([api.sessions({ limit }), api.waits({ limit: 500 })]);
    describe(page.sessions, details.current, () => setVersion((version) => version + 1));
    return { ...page, waits: waits.waits };
  }, PERIOD_MS, [limit]);
  const now = useNow(5_000);
  const rows = list.value?.sessions ?? [];
  return html`<div class="page">
    <header class="page-head"><h1>Sessions</h1><span class="grow"></span>
      <button class="primary" onClick=${onStart}>New session</button></header>
    <${ProblemNote} problem=${list.problem} />
    ${list.value && !rows.length && html`<${Empty} title="No session yet"><p>A session is a team of agents that works in a folder.</p><button class="primary" onClick=${onStart}>Start the first one</button><//>`}
    <ul class="cards">${rows.map((row) => html`<${SessionRow} key=${row.id} row=${row} detail=${details.current.get(row.id)} waits=${list.value.waits.filter((wait) => wait.session_id === row.id)} now=${now} />`)}</ul>
    ${list.value?.next && html`<button class="earlier" onClick=${() => setLimit((most) => most + PAGE)}>Show more</button>`}
    <${Commands} commands=${["planck session ls", "nats req --raw cmd.sessions.list ''"]} />
  </div>`;
}

function SessionRow({ row, detail, waits, now }) {
  const activity = row.state === "closed" ? "closed" : waits.length ? "waits" : (row.activity ?? "idle");
  const [tone, label] = ACTIVITY[activity] ?? ["quiet", activity];
  return html`<li class="card">
    <a class="card-link" href=${`#/sessions/${row.name}`}>
      <span class="card-title">${row.name}</span>
      <${Badge} tone=${tone}>${label}<//>
      <span class="card-team muted">${detail ? team(detail.info.agents) : ""}</span>
      <span class="card-cost">${detail ? money(detail.info.usage.cost_usd) : ""}</span>
      <time class="muted" datetime=${row.updated_at}>${ago(row.updated_at, now)}</time>
      <span class="card-line">${waits.length ? `Waits: ${waits.map((wait) => wait.title).join(" · ")}` : (detail?.line ?? "")}</span>
    </a>
  </li>`;
}

/** Returns the members of a team: `lead, coder ×2`. */
function team(agents) {
  const counts = new Map();
  for (const agent of agents) counts.set(agent.type, (counts.get(agent.type) ?? 0) + 1);
  return [...counts].slice(0, 6).map(([type, number]) => (number > 1 ? `${type} ×${number}` : type)).join(", ");
}

/** Reads the cost and the last line of the sessions that have changed. */
async function describe(rows, details, changed) {
  const stale = rows.filter((row) => {
    const known = details.get(row.id);
    return known?.updatedAt !== row.updated_at || known?.activity !== row.activity;
  });
  const work = async () => {
    for (let row; (row = stale.shift()); ) {
      try {
        const [info, page] = await Promise.all([api.session(row.id), api.messages(row.id, { limit: 3 })]);
        details.set(row.id, { updatedAt: row.updated_at, activity: row.activity, info, line: lastLine(page.messages) });
        changed();
      } catch {
        // The next read of the list tries again.
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
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
  return text.replace(/```\w*|`|\*\*|^#+ |\|[-| :]+\||\|/gm, " ");
}
