// The list of all sessions.

import { html, useState } from "./html.js";
import { api } from "./api.js";
import { ago, count, line, money, plain } from "./format.js";
import { useKept, useNow, usePoll } from "./live.js";
import { Badge, Commands, Empty, ProblemNote } from "./parts.js";
import { ORDERS, pick } from "./pick.js";

const PERIOD_MS = 2_000;
/** A list that is searched is longer, and is read less often. */
const SEARCH_PERIOD_MS = 5_000;
const PAGE = 50;
/** The newest sessions that are searched and sorted, which is the longest page of the front. */
const SEARCHED = 1_000;

const ACTIVITY = {
  working: ["work", "working"],
  interrupted: ["bad", "interrupted"],
  waiting: ["quiet", "queued"],
  failed: ["bad", "failed"],
  idle: ["quiet", "idle"],
  waits: ["wait", "waits for you"],
  closed: ["quiet", "closed"],
};

const NOTHING = { text: "", state: "", team: "", order: "created" };

export function SessionsPage({ onStart }) {
  const [most, setMost] = useState(PAGE);
  const [wanted, setWanted] = useKept("sessions", NOTHING);
  const isPicked = Object.keys(NOTHING).some((name) => wanted[name] !== NOTHING[name]);
  const list = usePoll(async () => {
    const [page, waits] = await Promise.all([api.sessions({ limit: isPicked ? SEARCHED : most }), api.waits({ limit: 500 })]);
    return { ...page, waits: Map.groupBy(waits.waits, (wait) => wait.session_id) };
  }, isPicked ? SEARCH_PERIOD_MS : PERIOD_MS, [most, isPicked]);
  const now = useNow(5_000);
  const rows = (list.value?.sessions ?? []).map((row) => describedRow(row, list.value.waits.get(row.id) ?? []));
  const picked = pick(rows, wanted);
  const shown = picked.slice(0, most);
  return html`<div class="page">
    <header class="page-head"><h1>Sessions</h1><span class="muted" role="status">${isPicked && list.value ? `${picked.length} of ${count(rows.length, "session")}${list.value.next ? ", the newest" : ""}` : ""}</span><span class="grow"></span>
      <button class="primary" onClick=${onStart}>New session</button></header>
    ${(rows.length > 1 || isPicked) && html`<${Choice} wanted=${wanted} setWanted=${setWanted} rows=${rows} isPicked=${isPicked} />`}
    <${ProblemNote} problem=${list.problem} />
    ${list.value && !rows.length && html`<${Empty} title="No session yet"><p>A session is a team of agents that works in a folder.</p><button class="primary" onClick=${onStart}>Start the first one</button><//>`}
    ${rows.length > 0 && !picked.length && html`<${Empty} title="No session fits"><button onClick=${() => setWanted(NOTHING)}>Show all</button><//>`}
    <ul class="cards">${shown.map((each) => html`<${SessionRow} key=${each.row.id} ...${each} now=${now} />`)}</ul>
    ${(picked.length > shown.length || (!isPicked && list.value?.next)) && html`<button class="earlier" onClick=${() => setMost((before) => Math.min(before + PAGE, SEARCHED))} disabled=${most >= SEARCHED}>Show more</button>`}
    <${Commands} commands=${["planck session ls", "nats req --raw cmd.sessions.list ''"]} />
  </div>`;
}

function describedRow(row, waits) {
  const activity = row.state === "closed" ? "closed" : waits.length ? "waits" : row.activity;
  const detail = {
    team: row.team ?? "",
    cost: row.cost_usd,
    prompt: line(row.title ?? row.first_prompt, 200),
    line: line(plain(row.last_line ?? ""), 200),
    failure: row.failure && line(row.failure, 200),
  };
  return { row, detail, waits, activity };
}

/** The fields with which sessions are searched, filtered and sorted. */
function Choice({ wanted, setWanted, rows, isPicked }) {
  const teams = [...new Set(rows.map(({ detail }) => detail.team).filter(Boolean))].sort();
  if (wanted.team && !teams.includes(wanted.team)) teams.push(wanted.team);
  const set = (name) => (event) => setWanted({ ...wanted, [name]: event.target.value });
  return html`<form class="choice" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label class="field grow"><span>Search</span><input id="search" type="search" placeholder="Name, title, first prompt or last line" value=${wanted.text} onInput=${set("text")} /></label>
    <label class="field"><span>State</span><select value=${wanted.state} onChange=${set("state")}><option value="">Every state</option>
      ${Object.entries(ACTIVITY).map(([name, [, label]]) => html`<option value=${name}>${label}</option>`)}</select></label>
    <label class="field"><span>Team</span><select value=${wanted.team} onChange=${set("team")}><option value="">Every team</option>
      ${teams.map((team) => html`<option value=${team}>${team}</option>`)}</select></label>
    <label class="field"><span>Sorted by</span><select value=${wanted.order} onChange=${set("order")}>
      ${Object.entries(ORDERS).map(([name, { label }]) => html`<option value=${name}>${label}</option>`)}</select></label>
    ${isPicked && html`<button type="button" onClick=${() => setWanted(NOTHING)}>Show all</button>`}
  </form>`;
}

function SessionRow({ row, detail, waits, activity, now }) {
  const [tone, label] = ACTIVITY[activity] ?? ["quiet", activity];
  const last = waits.length ? `Waits: ${waits.map((wait) => wait.title).join(" · ")}` : (detail.failure ?? detail.line);
  return html`<li class="card">
    <a class="card-link" href=${`#/sessions/${row.name}`}>
      <span class="card-title">${row.name}</span>
      <${Badge} tone=${tone}>${label}<//>
      <span class="card-team muted">${detail.team || (row.agents > 1 ? count(row.agents, "agent") : "")}</span>
      <span class="card-cost">${detail.cost === undefined ? "" : money(detail.cost)}</span>
      <time class="muted" datetime=${row.updated_at}>${ago(row.updated_at, now)}</time>
      ${detail.prompt && html`<span class="card-prompt">${detail.prompt}</span>`}
      <span class=${`card-line ${!waits.length && detail.failure ? "bad-text" : ""}`}>${last}</span>
    </a>
  </li>`;
}
