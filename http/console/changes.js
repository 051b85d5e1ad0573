// Shows the lines that a call changes.

import { html, useState } from "./html.js";
import { diff } from "./diff.js";

export function Diff({ before, after }) {
  const [isWhole, setWhole] = useState(false);
  const lines = diff(before, after);
  const shown = isWhole ? lines : lines.slice(0, 60);
  const words = { "-": "removed", "+": "added", " ": "same" };
  return html`<div class="diff" role="group" aria-label="Changed lines" tabindex="0">
    ${shown.map((each) => html`<div class=${`line ${words[each.sign]}`}><span class="sign">${each.sign}</span><span>${each.text}</span></div>`)}
    ${lines.length > shown.length && html`<button class="quiet" onClick=${() => setWhole(true)}>Show all ${lines.length} lines</button>`}
  </div>`;
}
