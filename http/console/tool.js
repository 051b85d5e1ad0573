// A tool call in the conversation: folded to one line, with its arguments, result and changes.

import { html, memo, useEffect, useState } from "./html.js";
import { duration, line, text } from "./format.js";
import { WaitCard } from "./answer.js";
import { Arguments } from "./arguments.js";
import { Badge, Pre } from "./parts.js";

/** A longer result is cut until the reader wants all of it. */
const SHOWN = 4_000;

const STATES = {
  called: ["quiet", "called"],
  running: ["work", "running"],
  waiting: ["wait", "waits for you"],
  answered: ["work", "answered"],
  done: ["good", "done"],
  failed: ["bad", "failed"],
};

/** Returns the argument that says most about a call. */
export function summary(args) {
  if (!args || typeof args !== "object") return line(args);
  for (const name of ["command", "path", "question", "task", "response", "pattern", "query", "url", "name"]) {
    if (typeof args[name] === "string") return line(args[name]);
  }
  const first = Object.values(args).find((value) => typeof value === "string");
  return first === undefined ? line(JSON.stringify(args)) : line(first);
}

export const ToolCall = memo(function ToolCall({ item, session, isOpen, canAnswer }) {
  const [opened, setOpened] = useState(undefined);
  const isWaiting = item.status === "waiting";
  const isShown = opened ?? (isOpen || isWaiting);
  useEffect(() => setOpened(undefined), [isOpen]);
  // An answered call stays open, because its result is what the person waits for next.
  useEffect(() => isWaiting && setOpened(true), [isWaiting]);
  // The event also comes after a change by the page itself.
  const toggled = ({ currentTarget }) => currentTarget.open !== isShown && setOpened(currentTarget.open);
  const [tone, label] = STATES[item.status] ?? ["quiet", item.status];
  return html`<details class=${`tool ${tone}`} open=${isShown} onToggle=${toggled}>
    <summary>
      <span class="tool-name">${text(item.name)}</span>
      <span class="tool-about">${item.invalid ? "arguments that are not valid JSON" : summary(item.args)}</span>
      <span class="tool-end">${item.durationMs === undefined ? "" : duration(item.durationMs)}
        ${item.status === "done" ? html`<span class="tool-done">✓<span class="sr">done</span></span>` : html`<${Badge} tone=${tone}>${label}<//>`}
      </span>
    </summary>
    ${isShown && html`<div class="tool-body">
      ${item.invalid
        ? html`<${Pre} label="Arguments as the model sent them" value=${text(item.invalid)} />`
        : html`<${Arguments} name=${item.name} args=${item.args} />`}
      ${item.decision && html`<${Decision} decision=${item.decision} />`}
      ${item.wait && html`<${WaitCard} wait=${item.wait} session=${session} isInline=${true} readOnly=${!canAnswer} />`}
      ${item.progress && html`<p class="muted">${text(item.progress)}</p>`}
      ${item.result !== undefined && html`<${Result} result=${item.result} isError=${item.status === "failed"} />`}
    </div>`}
  </details>`;
});

function Decision({ decision }) {
  const by = decision.by ? ` by ${decision.by}` : "";
  const reason = decision.reason ? `: ${decision.reason}` : "";
  const scope = decision.scope === "session" ? " for this session" : "";
  return html`<p class="decision">${`Decided: ${decision.decision}${scope}${by}${reason}`}</p>`;
}

function Result({ result, isError }) {
  const [isWhole, setWhole] = useState(false);
  const value = text(result);
  const shown = isWhole ? value : value.slice(0, SHOWN);
  return html`<${Pre} label=${isError ? "Error" : "Result"} value=${shown || "(empty)"} isError=${isError} />
    ${value.length > shown.length && html`<button class="quiet" onClick=${() => setWhole(true)}>Show all ${value.length} characters</button>`}`;
}
