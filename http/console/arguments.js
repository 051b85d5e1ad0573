// The arguments of a call, all of them. A person who allows a call must see what it would do.

import { html } from "./html.js";
import { Diff } from "./changes.js";
import { text } from "./format.js";
import { Pre } from "./parts.js";

/** The arguments that the built-in tools show in a form of their own. */
const OWN = {
  bash: { needs: ["command"], Shown: ({ args }) => html`<${Pre} label="Command" value=${text(args.command)} />` },
  edit: {
    needs: ["path", "old_string", "new_string"],
    Shown: ({ args }) => html`<p class="path">${text(args.path)}</p><${Diff} before=${text(args.old_string)} after=${text(args.new_string)} />`,
  },
  write: {
    needs: ["path", "content"],
    Shown: ({ args }) => html`<p class="path">${text(args.path)}</p><${Diff} before="" after=${text(args.content)} />`,
  },
};

export function Arguments({ name, args }) {
  if (args === null || typeof args !== "object") return args === undefined ? null : html`<${Pre} label="Arguments" value=${text(args)} />`;
  const own = OWN[name];
  const isOwn = own?.needs.every((each) => typeof args[each] === "string");
  const rest = Object.entries(args).filter(([key]) => !(isOwn && own.needs.includes(key)));
  return html`${isOwn && html`<${own.Shown} args=${args} />`}
    ${rest.length > 0 && html`<dl class="args">${rest.map(([key, value]) => html`<div><dt>${text(key)}</dt><dd>${text(value)}</dd></div>`)}</dl>`}`;
}
