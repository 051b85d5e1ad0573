// A JSON value as a tree of branches that a person opens and folds. A folded branch has no nodes, so
// that a large value costs little.

import { html, useState } from "./html.js";
import { count, text } from "./format.js";

/** How many parts of a list or an object are shown at first. */
const SHOWN = 100;
/** The number of levels that are open at first. */
const OPEN = 2;

export function Tree({ name, value, depth = 0 }) {
  const isList = Array.isArray(value);
  const parts = value !== null && typeof value === "object" ? Object.entries(value) : [];
  if (parts.length === 0) return html`<p class="leaf"><span class="tree-name">${text(name)}</span> <span>${leaf(value)}</span></p>`;
  return html`<${Branch} name=${name} about=${count(parts.length, isList ? "item" : "field")} parts=${parts} depth=${depth} />`;
}

/** Returns a value without parts as JSON. The lines of a text stay lines. */
function leaf(value) {
  return typeof value === "string" ? `"${text(value)}"` : JSON.stringify(value);
}

function Branch({ name, about, parts, depth }) {
  const [isOpen, setOpen] = useState(depth < OPEN);
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? parts : parts.slice(0, SHOWN);
  const toggled = ({ currentTarget }) => setOpen(currentTarget.open);
  return html`<details class="branch" open=${isOpen} onToggle=${toggled}>
    <summary><span class="tree-name">${text(name)}</span> <span class="muted">${about}</span></summary>
    ${isOpen && html`<ul>${shown.map(([key, part]) => html`<li key=${key}><${Tree} name=${key} value=${part} depth=${depth + 1} /></li>`)}</ul>
      ${parts.length > shown.length && html`<button class="quiet" onClick=${() => setWhole(true)}>Show all ${parts.length}</button>`}`}
  </details>`;
}
