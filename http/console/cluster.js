// The nodes of the cluster, what they host, and what they decide.

import { html, useEffect, useState } from "./html.js";
import { api } from "./api.js";
import { clock, count, duration, money, tokens } from "./format.js";
import { useAction, useNow, usePoll } from "./live.js";
import { short } from "./reducer.js";
import { follow } from "./sse.js";
import { Badge, Commands, ConfirmButton, ProblemNote } from "./parts.js";

const PERIOD_MS = 2_000;
/** How many decisions are shown. */
const KEPT = 200;
/** How many nodes that are gone are shown before the others are folded. */
const GONE = 3;
/** How many open sessions are read for the list of who hosts what. */
const SESSIONS = 50;

const DRAIN = "Move its agents away and end this node?";
const DRAIN_ONLY = "End this node? It is the only one: all work stops until another node starts.";

const STATES = {
  alive: "good",
  suspended: "wait",
  suspect: "wait",
  draining: "wait",
  left: "quiet",
  dead: "bad",
};

export function ClusterPage() {
  const nodes = usePoll(api.nodes, PERIOD_MS);
  const hosted = usePoll(readHosted, 5_000);
  const sidecars = usePoll(api.sidecars, 5_000);
  const models = usePoll(api.models, 60_000);
  const decisions = useDecisions();
  const now = useNow(1_000);
  const rows = (nodes.value?.nodes ?? []).toSorted((a, b) => order(a) - order(b) || a.name.localeCompare(b.name));
  const alive = rows.filter((node) => node.state === "alive").length;
  const isGone = (node) => node.state === "dead" || node.state === "left";
  const present = rows.filter((node) => !isGone(node));
  const gone = rows.filter(isGone).sort((a, b) => a.silent_ms - b.silent_ms);
  return html`<div class="page">
    <header class="page-head"><h1>Cluster</h1><span class="muted">${nodes.value ? count(alive, "node") : "…"} in service</span></header>
    <${ProblemNote} problem=${nodes.problem} />
    <section aria-label="Nodes" class="nodes">${present.map((node) => html`<${Node} key=${node.id} node=${node} hosted=${hosted.value?.get(node.id) ?? []} now=${now} isOnly=${alive === 1} again=${nodes.again} />`)}</section>
    ${gone.length > 0 && html`<section aria-label="Nodes that are gone" class="gone-nodes">
      <ul class="plain-list">${gone.slice(0, GONE).map((node) => html`<${GoneNode} key=${node.id} node=${node} />`)}</ul>
      ${gone.length > GONE && html`<details><summary>${count(gone.length - GONE, "earlier node")} of the last day</summary><ul class="plain-list">${gone.slice(GONE).map((node) => html`<${GoneNode} key=${node.id} node=${node} />`)}</ul></details>`}
    </section>`}
    <div class="columns">
      <section><h2>Decisions</h2><${Decisions} decisions=${decisions} /></section>
      <section><h2>Sidecars</h2><${SidecarList} sidecars=${sidecars.value?.sidecars} /><h2>Models</h2><${ModelList} models=${models.value?.models} /></section>
    </div>
    <${Commands} commands=${["planck nodes ls", "planck nodes drain NODE", "nats sub 'cluster.*'"]} />
  </div>`;
}

function order(node) {
  return Object.keys(STATES).indexOf(node.state);
}

function Node({ node, hosted, now, isOnly, again }) {
  const drain = useAction();
  const load = node.capacity ? Math.min(node.agents / node.capacity, 1) : 0;
  return html`<article class="node">
    <header><h2>${node.name}</h2><${Badge} tone=${STATES[node.state] ?? "quiet"}>${node.state}<//><span class="grow"></span><code class="muted">${short(node.id)}</code></header>
    <dl class="facts">
      <div><dt>Agents</dt><dd>${node.agents} of ${node.capacity}, ${node.running} working</dd></div>
      <div><dt>Version</dt><dd>${node.version}</dd></div>
      <div><dt>Up</dt><dd>${duration(now - Date.parse(node.started_at))}</dd></div>
      ${node.workspaces.length > 0 && html`<div><dt>Workspaces</dt><dd>${node.workspaces.join(", ")}</dd></div>`}
      ${node.providers.length > 0 && html`<div><dt>Providers</dt><dd>${node.providers.join(", ")}</dd></div>`}
    </dl>
    <meter min="0" max="1" value=${load} aria-label=${`Load of ${node.name}`}>${Math.round(load * 100)} %</meter>
    ${hosted.length > 0 && html`<ul class="hosted">${hosted.slice(0, 12).map((agent) => html`<li key=${agent.id}><a href=${`#/sessions/${agent.session}/agents/${agent.id}`}>${agent.name}</a> <span class="muted">${agent.session} · ${agent.state}</span></li>`)}${hosted.length > 12 && html`<li class="muted">and ${hosted.length - 12} more</li>`}</ul>`}
    ${node.state === "alive" && html`<${ConfirmButton} label="Drain" question=${isOnly ? DRAIN_ONLY : DRAIN} busy=${drain.isRunning} onConfirm=${() => drain.run(async () => { await api.drain(node.id); again(); })} />`}
    <${ProblemNote} problem=${drain.problem} onClose=${drain.clear} />
  </article>`;
}

/** A node that left or died, on one line: it hosts nothing, and nothing can be done with it. */
function GoneNode({ node }) {
  return html`<li class="node-gone node-line"><strong>${node.name}</strong> <${Badge} tone=${STATES[node.state]}>${node.state}<//>
    <code class="muted">${short(node.id)}</code> <span class="muted">${node.version} · silent for ${duration(node.silent_ms)}</span></li>`;
}

/** Returns the agents that each node hosts, of the open sessions that were used last. */
async function readHosted() {
  const { sessions } = await api.sessions({ state: "open", limit: SESSIONS });
  const infos = await Promise.all(sessions.filter((row) => row.owner).map((row) => api.session(row.id).catch(() => undefined)));
  const hosted = new Map();
  for (const info of infos.filter(Boolean)) {
    for (const agent of info.agents) {
      if (!agent.node_id || agent.state === "stopped") continue;
      const list = hosted.get(agent.node_id) ?? [];
      list.push({ ...agent, session: info.name });
      hosted.set(agent.node_id, list);
    }
  }
  return hosted;
}

function useDecisions() {
  const [state, setState] = useState({ list: [], status: "connecting" });
  useEffect(() => {
    let stream;
    const start = () => {
      stream?.stop();
      stream = follow({
        path: () => "/v1/decisions",
        lastId: () => undefined,
        onStatus: (status, problem) => setState((old) => ({ ...old, status, problem })),
        onFrame: (frame) => {
          const decision = { ...JSON.parse(frame.data), key: crypto.getRandomValues(new Uint32Array(2)).join() };
          setState((old) => ({ ...old, list: [decision, ...old.list].slice(0, KEPT) }));
        },
      });
    };
    start();
    // A front that refused the stream for want of a key serves it with the key.
    addEventListener("planck-key", start);
    return () => {
      removeEventListener("planck-key", start);
      stream.stop();
    };
  }, []);
  return state;
}

function Decisions({ decisions }) {
  const { list, status, problem } = decisions;
  if (status === "failed") return html`<${ProblemNote} problem=${problem} />`;
  if (!list.length) return html`<p class="muted">${status === "open" ? "What the cluster decides from now on appears here: which nodes join, leave or die, where agents are placed, and why." : status === "reconnecting" ? "Reconnecting…" : "Connecting…"}</p>`;
  return html`<ol class="decisions">${list.map((each) => html`<li key=${each.key}>
    <time datetime=${each.at}>${clock(each.at)}</time> <strong>${String(each.type).replaceAll("_", " ")}</strong> ${subject(each.data)}
    <p class="muted">${each.data.reason} (by ${short(each.node_id)})</p></li>`)}</ol>`;
}

function subject(data) {
  const parts = ["node", "session", "agent", "team"].filter((name) => data[name]).map((name) => `${name} ${short(data[name])}`);
  if (data.silent_ms) parts.push(`silent for ${duration(data.silent_ms)}`);
  return parts.join(", ");
}

function SidecarList({ sidecars }) {
  if (!sidecars?.length) return html`<p class="muted">${sidecars ? "No sidecar is connected." : "…"}</p>`;
  return html`<ul class="plain-list">${sidecars.map((sidecar) => html`<li key=${sidecar.name}><strong>${sidecar.name}</strong> <span class="muted">${sidecar.version} · ${count(sidecar.instances, "instance")}</span><br /><code>${[...sidecar.tools, ...sidecar.compactors].join(", ")}</code>${sidecar.problem && html`<span class="problem">${sidecar.problem}</span>`}</li>`)}</ul>`;
}

function ModelList({ models }) {
  if (!models) return html`<p class="muted">…</p>`;
  const prices = (row) => (row.prices ? `${money(row.prices.input)} / ${money(row.prices.output)}` : "");
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Models"><table><thead><tr><th scope="col">Model</th><th scope="col">Context</th><th scope="col">$ per M tokens</th></tr></thead>
    <tbody>${models.map((row) => html`<tr key=${row.id}><td><code>${row.id}</code>${row.standard ? " ★" : ""}</td><td>${tokens(row.context_window)}</td><td>${prices(row)}</td></tr>`)}</tbody></table></div>`;
}

