// The page of one agent.

import { html, useState } from "./html.js";
import { api } from "./api.js";
import { Sent } from "./sent.js";
import { count, money, tokens } from "./format.js";
import { useAction, usePoll } from "./live.js";
import { short } from "./reducer.js";
import { Badge, Commands, ProblemNote } from "./parts.js";

const PERIOD_MS = 1_500;

const TONES = { idle: "quiet", streaming: "work", executing_tools: "work", waiting: "wait", compacting: "work", stopped: "quiet" };

export function AgentPage({ session, agent }) {
  const read = usePoll(() => api.agent(agent), PERIOD_MS, [agent]);
  const info = read.value;
  const abort = useAction();
  if (!info) return html`<div class="page narrow"><h1>Agent</h1>${read.problem ? html`<${ProblemNote} problem=${read.problem} />` : html`<p class="muted">…</p>`}</div>`;
  const isWorking = info.state !== "idle" && info.state !== "stopped";
  return html`<div class="page narrow">
    <header class="page-head"><h1>${info.name}</h1><${Badge} tone=${TONES[info.state] ?? "quiet"}>${info.state.replaceAll("_", " ")}<//>
      <span class="grow"></span><a class="button" href=${`#/sessions/${session}`}>Open the session</a>
      ${isWorking && html`<button class="danger" disabled=${abort.isRunning} onClick=${() => abort.run(() => api.abortAgent(agent))}>Abort</button>`}</header>
    <${ProblemNote} problem=${read.problem ?? abort.problem} />
    <${Context} info=${info} />
    <dl class="facts wide">
      <div><dt>Type</dt><dd>${info.type}</dd></div>
      <div><dt>Role</dt><dd>${info.role}</dd></div>
      <div><dt>Node</dt><dd>${info.node_id ? short(info.node_id) : "none: the agent is unloaded until it gets an input"}</dd></div>
      <div><dt>Turn</dt><dd>${info.turn}</dd></div>
      <div><dt>Queued</dt><dd>${count(info.queued, "input")}</dd></div>
      <div><dt>Cost</dt><dd>${money(info.usage.cost_usd)}</dd></div>
      <div><dt>Input</dt><dd>${tokens(info.usage.input_tokens)} tokens</dd></div>
      <div><dt>Output</dt><dd>${tokens(info.usage.output_tokens)} tokens</dd></div>
      <div><dt>Cache</dt><dd>${tokens(info.usage.cache_read_tokens)} read, ${tokens(info.usage.cache_write_tokens)} written</dd></div>
      <div><dt>Epoch</dt><dd>${info.epoch}</dd></div>
    </dl>
    <${Model} info=${info} again=${read.again} />
    <section><h2>Tools</h2><${Names} names=${info.tools} none="This agent has no tools." /></section>
    <section><h2>Skills</h2><${Names} names=${info.skills} none="This agent has no skills." /></section>
    <${Sent} session=${session} agent=${info} />
    <${Commands} commands=${[`planck agent show ${agent}`, `nats req --raw cmd.agent.${agent}.info ''`]} />
  </div>`;
}

function Context({ info }) {
  const share = info.context_window ? Math.min(info.context_tokens / info.context_window, 1) : 0;
  const label = `${tokens(info.context_tokens)} of ${tokens(info.context_window)} tokens`;
  return html`<div class="context"><div class="row"><strong>Context</strong><span class="grow"></span><span>${label}</span></div>
    <meter min="0" max="1" high="0.8" value=${share} aria-label="Used context">${label}</meter></div>`;
}

function Model({ info, again }) {
  const [value, setValue] = useState(undefined);
  const change = useAction();
  const models = usePoll(api.models, 60_000);
  const submit = async (event) => {
    event.preventDefault();
    const [provider, ...rest] = value.split(":");
    const done = await change.run(() => api.changeModel(info.id, rest.length ? { provider, model_id: rest.join(":") } : { model_id: value }));
    if (!done) return;
    setValue(undefined);
    again();
  };
  return html`<section><h2>Model</h2>
    <div class="row"><code>${info.model.provider}:${info.model.id}</code>${value === undefined && html`<button class="quiet" onClick=${() => setValue("")}>Change…</button>`}</div>
    ${value !== undefined && html`<form class="row" onSubmit=${submit}><label class="field grow"><span>New model, as provider:model</span>
      <input list="models" class="mono" value=${value} onInput=${(event) => setValue(event.target.value)} /></label>
      <datalist id="models">${models.value?.models.map((row) => html`<option value=${row.id}></option>`)}</datalist>
      <button class="primary" disabled=${!value || change.isRunning}>Change</button><button type="button" onClick=${() => setValue(undefined)}>Cancel</button></form>`}
    <${ProblemNote} problem=${change.problem} onClose=${change.clear} /></section>`;
}

function Names({ names, none }) {
  if (!names.length) return html`<p class="muted">${none}</p>`;
  return html`<ul class="chips">${names.map((name) => html`<li key=${name}><code>${name}</code></li>`)}</ul>`;
}
