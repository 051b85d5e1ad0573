// What an agent's model gets with its next request, as the log has it.

import { html, useMemo, useState } from "./html.js";
import { api } from "./api.js";
import { Item } from "./conversation.js";
import { count, text } from "./format.js";
import { useAction } from "./live.js";
import { ProblemNote } from "./parts.js";
import { apply, emptyState } from "./reducer.js";

const PAGE = 100;

/**
 * The messages since the latest summary, which replaces all earlier ones for the model. They are read when a person asks,
 * because a long context has megabytes.
 */
export function Sent({ session, agent }) {
  const action = useAction();
  const [read, setRead] = useState(undefined);
  const load = (before, later) => action.run(async () => {
    const page = await api.messages(session, { agent: agent.id, limit: PAGE, before });
    setRead({ messages: [...page.messages, ...later], before: page.before });
  });
  const items = useMemo(() => itemsOf(read?.messages ?? [], agent), [read]);
  return html`<section class="sent" aria-label="Messages of the model"><h2>Messages of the model</h2>
    <p class="muted">What the model gets with each request: the system prompt, the messages since the latest summary, and the tools above.</p>
    ${agent.system_prompt && html`<details><summary>System prompt</summary><pre>${text(agent.system_prompt)}</pre></details>`}
    <${ProblemNote} problem=${action.problem} onClose=${action.clear} />
    ${read && html`<p class="muted" role="status">${count(read.messages.length, "message")}</p>`}
    <div class="row">
      <button disabled=${action.isRunning} onClick=${() => load(undefined, [])}>${read ? "Read again" : "Show the messages"}</button>
      ${read?.before && html`<button disabled=${action.isRunning} onClick=${() => load(read.before, read.messages)}>Show earlier</button>`}
    </div>
    ${items.length > 0 && html`<div class="sent-items">${items.map((item) => html`<${Item} key=${item.key} item=${item} name=${agent.name} index=${0} session=${session} openTools=${false} canAnswer=${false} />`)}</div>`}
  </section>`;
}

/** Makes the items of a conversation from saved messages, as the page of the session does from events. */
function itemsOf(messages, agent) {
  const state = emptyState();
  for (const message of messages) {
    apply(state, { type: "message", seq: message.id, agent_id: agent.id, at: message.at, data: { message } });
  }
  return state.items;
}
