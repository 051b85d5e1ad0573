// The head of a session's page: what the session is, and what can be done with it.

import { html, useState } from "./html.js";
import { api } from "./api.js";
import { download } from "./export.js";
import { count, modeOf, money, teamOf, tokens } from "./format.js";
import { useAction } from "./live.js";
import { modelName } from "./reducer.js";
import { Badge, ConfirmButton, ProblemNote } from "./parts.js";

/** The connection to the front. */
const CONNECTION = {
  connecting: ["quiet", "connecting…"],
  open: ["good", "live"],
  reconnecting: ["wait", "reconnecting…"],
  failed: ["bad", "disconnected"],
};

const STATE = {
  closed: ["quiet", "closed"],
  waiting: ["wait", "waits for you"],
  working: ["work", "working"],
  failed: ["bad", "failed"],
  idle: ["quiet", "idle"],
};

/** Returns what a session does: a wait is named before work, because a person must act. */
export function stateOf(store) {
  const agents = [...store.state.agents.values()];
  if (store.isClosed) return "closed";
  if (agents.some((each) => each.waits.size) || store.info.waits?.length) return "waiting";
  if (agents.some((each) => each.state !== "idle" && each.state !== "stopped")) return "working";
  const lead = store.state.items.findLast((item) => item.agent === store.lead?.id);
  return lead?.isFailure ? "failed" : "idle";
}

export function Head({ store, agent, setAgent, pane, setPane }) {
  const { info, lead, status } = store;
  const action = useAction();
  const agents = [...store.state.agents.values()];
  const isWorking = agents.some((each) => each.state !== "idle" && each.state !== "stopped");
  const [tone, label] = status === "open" && !store.isCaughtUp ? ["quiet", "loading…"] : CONNECTION[status];
  const [stateTone, stateLabel] = STATE[stateOf(store)];
  const { usage } = info;
  return html`<header class="session-head">
    <h1>${info.title ?? info.name}</h1>
    <${Badge} tone=${stateTone}>${stateLabel}<//>
    <span class="status" role="status" data-status=${status}><${Badge} tone=${tone} title=${store.problem?.message}>${label}<//></span>
    <span class="muted totals">${count(agents.length, "agent")} · ${tokens(usage.input_tokens + usage.output_tokens)} tokens · ${money(usage.cost_usd)}</span>
    <span class="grow"></span>
    <label class="inline-field"><span class="sr">Show the messages of</span>
      <select value=${agent} onChange=${(event) => setAgent(event.target.value)}>
        <option value="">All agents</option>
        ${agents.map((each) => html`<option value=${each.id}>${each.name || each.id}</option>`)}
      </select></label>
    <span class="pane-switch" role="group" aria-label="What is shown">
      ${["conversation", "lanes"].map((name) => html`<button aria-pressed=${pane === name} onClick=${() => setPane(name)}>${name === "lanes" ? "Lanes" : "Conversation"}</button>`)}
    </span>
    ${isWorking && html`<button class="danger" disabled=${action.isRunning} onClick=${() => action.run(() => api.abort(info.id))}>Abort</button>`}
    ${store.isClosed
      ? html`<button disabled=${action.isRunning} onClick=${() => action.run(async () => { await api.resume(info.id); await store.readInfo(); })}>Resume</button>`
      : html`<${ConfirmButton} label="Close" question="End all agents of this session?" busy=${action.isRunning} onConfirm=${() => action.run(async () => { await api.close(info.id); await store.readInfo(); })} />`}
    <${More} store=${store} action=${action} />
    <p class="about muted">${info.title && html`<code title="The name of the session">${info.name}</code>`}<span title="The team">${info.team ?? teamOf(info.agents)}</span><span title="Which calls of the orchestrator run at once">${modeOf(info.permissions)}</span>
      ${lead && html`<code title="The model of the orchestrator">${modelName(lead.model)}</code>`}<code title="The folder in which the agents work">${info.dir}</code></p>
    <${ProblemNote} problem=${action.problem} onClose=${action.clear} />
    ${status === "failed" && html`<${ProblemNote} problem=${store.problem} />`}
  </header>`;
}

/** What is done seldom with a session: another title, its log as a file, and its end for good. */
function More({ store, action }) {
  const { info } = store;
  const [isOpen, setOpen] = useState(false);
  const save = (kind) => action.run(() => download(info, kind));
  const rename = (event) => {
    event.preventDefault();
    const title = new FormData(event.target).get("title");
    action.run(async () => { await api.rename(info.id, title); await store.readInfo(); });
  };
  const remove = () => action.run(async () => {
    await api.remove(info.id);
    location.hash = "#/sessions";
  });
  return html`<button aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>More</button>
    ${isOpen && html`<div class="more" role="group" aria-label="More about this session">
      <form class="rename" onSubmit=${rename}>
        <label class="inline-field grow">Title <input name="title" maxlength="200" placeholder=${info.name} defaultValue=${info.title ?? ""} /></label>
        <button disabled=${action.isRunning}>Rename</button>
      </form>
      <button disabled=${action.isRunning} onClick=${() => save("markdown")}>Export as Markdown</button>
      <button disabled=${action.isRunning} onClick=${() => save("json")}>Export the log as JSON</button>
      <${ConfirmButton} className="danger" label="Delete" question="Delete this session and its whole log? Files in its folder stay." busy=${action.isRunning} onConfirm=${remove} />
    </div>`}`;
}
