// The keys of the console.

import { html, useEffect } from "./html.js";
import { Dialog } from "./parts.js";

const KEYS = [
  ["?", "Show these keys"],
  ["g s", "Go to the sessions"],
  ["g w", "Go to the waits"],
  ["g c", "Go to the cluster"],
  ["n", "Start a session"],
  ["/", "Write a prompt, or search the sessions"],
  ["t", "Open or fold all tools of a session"],
  ["Enter", "Send the prompt"],
  ["Ctrl Enter", "Send it into the running turn"],
  ["↑ ↓", "Move between the bars of the lanes"],
  ["Esc", "Close a dialog, leave a field"],
];

/** Runs the action of a key that is pressed outside of fields and dialogs. */
export function useKeys(actions) {
  useEffect(() => {
    let isAfterG = false;
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const isField = event.target.closest("input, textarea, select");
      if (event.key === "Escape" && isField && !document.querySelector("dialog[open]")) event.target.blur();
      if (isField || document.querySelector("dialog[open]")) return;
      const name = isAfterG ? `g ${event.key}` : event.key;
      isAfterG = event.key === "g";
      if (!actions[name]) return;
      event.preventDefault();
      actions[name]();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [actions]);
}

export function KeysDialog({ onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <dl class="keys">${KEYS.map(([key, about]) => html`<div><dt>${key.split(" ").map((each) => html`<kbd>${each}</kbd>`)}</dt><dd>${about}</dd></div>`)}</dl>
  <//>`;
}
