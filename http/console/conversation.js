// The conversation of a session: a window over its items that begins near the end and grows
// upwards, so that a long session opens as fast as a short one.

import { html, memo, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { api } from "./api.js";
import { laneStyle } from "./colour.js";
import { clock, text } from "./format.js";
import { useAction } from "./live.js";
import { Markdown } from "./markdown.js";
import { ProblemNote } from "./parts.js";
import { ToolCall } from "./tool.js";
import { Tree } from "./tree.js";

/** How many items are shown at first, and how many more each step shows. */
const WINDOW = 120;
/** The reader is at the end if the rest is not higher than this, in pixels. */
const NEAR_END = 80;

export function Conversation({ store, agent, target, onRewind, openTools }) {
  const { state } = store;
  const box = useRef(null);
  const isAtEnd = useRef(true);
  const [shown, setShown] = useState(WINDOW);
  const items = agent ? state.items.filter((item) => item.agent === agent) : state.items;
  const start = Math.max(0, items.length - shown);
  const isMore = start > 0 || store.hasEarlier;

  useEffect(() => {
    if (!target) return;
    const place = placeOf(items, target);
    if (place < 0) return;
    if (place < start) setShown(items.length - place + 20);
    isAtEnd.current = false;
    // The item is there after the next frame.
    requestAnimationFrame(() => requestAnimationFrame(() => show(box.current, items[place].key)));
  }, [target]);

  useLayoutEffect(() => {
    if (isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  });

  const more = async () => {
    isAtEnd.current = false;
    const { scrollHeight, scrollTop } = box.current;
    if (start === 0) await store.loadEarlier();
    setShown((count) => count + WINDOW);
    // The text that was read stays in its place.
    requestAnimationFrame(() => {
      if (box.current && box.current.scrollTop === scrollTop) box.current.scrollTop += box.current.scrollHeight - scrollHeight;
    });
  };
  // A browser may send the event after the page has been left, when `box` is empty.
  const scrolled = ({ currentTarget }) => {
    const { scrollHeight, scrollTop, clientHeight } = currentTarget;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < NEAR_END;
    currentTarget.classList.toggle("away", !isAtEnd.current);
  };
  const toEnd = () => {
    setShown(WINDOW);
    isAtEnd.current = true;
    box.current.scrollTop = box.current.scrollHeight;
  };
  const canAnswer = store.status !== "failed";
  const failed = failures(state);
  return html`<div class="conversation" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-live="off" aria-label="Conversation">
    ${isMore && html`<button class="earlier" disabled=${store.isLoadingEarlier} onClick=${more}>${store.isLoadingEarlier ? "Loading…" : "Show earlier"}</button>`}
    ${items.slice(start).map((item) => html`<${Item} key=${item.key} item=${item} name=${nameOf(state, item.agent)} index=${indexOf(state, item.agent)} session=${store.info?.id} onRewind=${onRewind} openTools=${openTools} canAnswer=${canAnswer} canRetry=${canAnswer && !store.isClosed && failed.has(item)} />`)}
    ${[...state.agents.values()].filter((each) => each.live && (!agent || each.id === agent)).map((each) => html`<${LiveReply} key=${each.id} live=${each.live} name=${each.name} index=${each.index} />`)}
    ${[...state.agents.values()].filter((each) => each.state !== "idle" && each.state !== "stopped" && !each.live && (!agent || each.id === agent)).map((each) => html`<p key=${`w${each.id}`} class="working" style=${laneStyle(each.index)}><span class="who">${each.name || "agent"}</span> <span class="dots" aria-hidden="true"></span><span class="muted">${activityOf(state, each)}</span></p>`)}
    ${store.prompts.map((prompt) => html`<${PendingPrompt} key=${prompt.id} prompt=${prompt} store=${store} />`)}
    <button class="to-end" onClick=${toEnd}>To the end ↓</button>
  </div>`;
}

function activityOf(state, agent) {
  if (agent.state === "compacting") return "compacts its context";
  if (agent.state === "waiting") return "waits for an answer";
  const [call] = agent.running;
  return call ? `runs ${state.items[state.places.get(call)]?.name ?? "a tool"}` : "thinks";
}

function placeOf(items, target) {
  const exact = items.findIndex((item) => (target.call ? item.key === target.call : item.seq === target.seq));
  if (exact >= 0) return exact;
  const later = items.findIndex((item) => item.seq >= target.seq && item.agent === target.agent);
  return later >= 0 ? later : items.findIndex((item) => item.seq >= target.seq);
}

function show(box, key) {
  const node = box?.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (!node) return;
  node.scrollIntoView({ block: "center" });
  node.classList.remove("flash");
  requestAnimationFrame(() => node.classList.add("flash"));
}

export function nameOf(state, id) {
  return state.agents.get(id)?.name || "agent";
}

function indexOf(state, id) {
  return state.agents.get(id)?.index ?? 0;
}

/** Returns the notices of failed turns after which their agents did nothing else. */
function failures(state) {
  const found = new Set();
  for (const agent of state.agents.values()) {
    if (agent.state !== "idle") continue;
    const last = state.items.findLast((item) => item.agent === agent.id);
    if (last?.isFailure) found.add(last);
  }
  return found;
}

/** One item. Without `onRewind` nothing can be changed. */
export const Item = memo(function Item({ item, name, index, session, onRewind, openTools, canAnswer, canRetry }) {
  const content = {
    user: () => html`<${UserMessage} item=${item} onRewind=${onRewind} to=${name} />`,
    custom: () => html`<${CustomMessage} item=${item} name=${name} />`,
    assistant: () => html`<${Who} name=${name} at=${item.at} />
      <${Parts} parts=${item.parts} />${item.isPartial && html`<p class="muted">This reply was interrupted.</p>`}`,
    output: () => html`<header class="by"><span class="who">${name}</span><span class="muted">answers in ${item.shape ? `the shape ${item.shape}` : "a shape"}</span><time datetime=${item.at}>${clock(item.at)}</time></header>
      <div class="tree"><${Tree} name=${item.shape ?? "answer"} value=${item.value} /></div>`,
    tool: () => html`<${ToolCall} item=${item} session=${session} isOpen=${openTools} canAnswer=${canAnswer} />`,
    notice: () => html`<p class=${`notice ${item.tone}`}>${!item.isOfSession && html`<span class="who">${name}</span> `}${item.text}</p>
      ${canRetry && html`<${Retry} agent=${item.agent} />`}`,
  }[item.kind];
  return html`<article class=${`item ${item.kind}`} style=${laneStyle(index)} data-key=${item.key} data-seq=${item.seq}>${content?.()}</article>`;
});

/** Opens a turn with the same messages, so that the prompt is not there twice. */
function Retry({ agent }) {
  const action = useAction();
  return html`<div class="row"><button disabled=${action.isRunning} onClick=${() => action.run(() => api.nudge(agent))}>Try again</button></div>
    <${ProblemNote} problem=${action.problem} onClose=${action.clear} />`;
}

function Who({ name, at }) {
  return html`<header class="by"><span class="who">${name}</span><time datetime=${at}>${clock(at)}</time></header>`;
}

function UserMessage({ item, onRewind, to }) {
  return html`<header class="by"><span class="who person">${item.by ?? "You"}</span><span class="muted">to ${to}</span><time datetime=${item.at}>${clock(item.at)}</time>
      ${onRewind && html`<button class="quiet rewind" onClick=${() => onRewind(item.seq)} aria-label=${`Rewind to before message ${item.seq}`}>Rewind here</button>`}
    </header><${Parts} parts=${item.parts} isPlain=${true} />`;
}

/** What an agent does with a message to another one. The words of the protocol stand in the head of the message. */
const DOES = { question: "asks", task: "gives a task to", response: "answers", note: "tells" };

/** What a message is that no person and no agent sent. */
const NOTES = { summary: "Summary of earlier messages", runtime: "Message of the runtime" };

function CustomMessage({ item, name }) {
  if (item.custom !== "agent_message") {
    return html`<details class="custom-message"><summary>${NOTES[item.custom] ?? text(item.custom)}</summary><${Parts} parts=${item.parts} /></details>`;
  }
  const { kind, parts } = withoutHead(item.parts);
  return html`<header class="by"><span class="who person">${item.from?.name ?? "Another agent"}</span><span class="muted">${DOES[kind] ?? "to"}</span><span class="who">${name}</span><time datetime=${item.at}>${clock(item.at)}</time></header>
    <${Parts} parts=${parts} />`;
}

/** Splits off the line in brackets that tells the model where a message comes from, which the page says in its own words. */
export function withoutHead(parts) {
  const [first, ...rest] = parts;
  const match = first?.type === "text" ? /^\[(\w+)[^\]\n]{1,300}\]\n\s*([^]*)$/.exec(first.text) : null;
  if (!match) return { kind: undefined, parts };
  return { kind: match[1], parts: [{ ...first, text: match[2] }, ...rest] };
}

export function Parts({ parts, isPlain }) {
  return parts.map((part, at) => {
    if (part.type === "text") return isPlain ? html`<p class="plain" key=${at}>${text(part.text)}</p>` : html`<${Markdown} key=${at} text=${text(part.text)} />`;
    if (part.type === "thinking") return html`<${Thinking} key=${at} part=${part} />`;
    const name = part.name ?? part.mime ?? part.type;
    return html`<p key=${at} class="attachment">${part.type}: ${text(name)}</p>`;
  });
}

function Thinking({ part, isLive }) {
  const value = text(part.text);
  if (!value) return html`<p class="muted">${part.redacted ? "Reasoning, not shown by the provider" : ""}</p>`;
  return html`<details class="thinking" open=${isLive}><summary>Reasoning</summary><p class="plain">${value}</p></details>`;
}

const LiveReply = memo(function LiveReply({ live, name, index }) {
  return html`<article class="item assistant live" style=${laneStyle(index)}>
    <header class="by"><span class="who">${name || "agent"}</span><span class="dots" aria-hidden="true"></span><span class="muted">writes</span></header>
    ${live.parts.map((part, at) => part && (part.type === "thinking" ? html`<${Thinking} key=${at} part=${part} isLive=${true} />` : html`<${Markdown} key=${at} text=${part.text} isGrowing=${true} />`))}
  </article>`;
});

function PendingPrompt({ prompt, store }) {
  const states = { sending: "sending…", queued: prompt.mode === "steer" ? "joins the running turn" : "queued" };
  return html`<article class="item user pending">
    <header class="by"><span class="who person">You</span><span class="muted">${states[prompt.status] ?? "not sent"}</span></header>
    <p class="plain">${prompt.text}</p>
    ${prompt.status === "failed" && html`<p class="bad-text">${prompt.problem.message}</p>
      <div class="row"><button onClick=${() => store.send(prompt)}>Send again</button><button onClick=${() => store.drop(prompt)}>Discard</button></div>`}
  </article>`;
}
