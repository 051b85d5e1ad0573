// Shows the Markdown that models write. The vendored parser makes tokens, and this module makes nodes and texts
// of them, never markup: HTML in the text stays text, only web and mail addresses become links, and no image is loaded.

import { html, memo, useRef } from "./html.js";
import MarkdownIt from "./vendor/markdown-it.js";
import { CopyButton } from "./parts.js";
import { visible } from "./visible.js";

/** A longer text is shown as it is, because parsing it would take too long. */
const LONGEST = 200_000;
/** The most characters of a growing text that are parsed again for each piece, except those of a block of code. */
const LONGEST_REST = 20_000;
const ADDRESS = /^(?:https?:\/\/|mailto:)/i;
const FENCE = /^ {0,3}(?:```|~~~)/;
const TASK = /^\[([ xX])\]\s+/;

// `html: false` makes markup in the text a text. `maxNesting` bounds the depth of the nodes.
const parser = new MarkdownIt({ html: false, linkify: true, maxNesting: 40 });
// Only a whole address becomes a link. A word with a dot, such as `main.rs`, is mostly the name of a file.
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });

/** Shows a text. While it `isGrowing`, only its last block is parsed again. */
export const Markdown = memo(function Markdown({ text, isGrowing }) {
  const growing = useRef(undefined);
  if (text.length > LONGEST) return html`<div class="prose"><pre>${visible(text)}</pre></div>`;
  if (!isGrowing) return html`<div class="prose">${blocks(text)}</div>`;
  growing.current ??= new GrowingText();
  return html`<div class="prose">${growing.current.grow(text)}</div>`;
});

/** Returns the blocks of a whole text as nodes. */
export function blocks(text) {
  return parse(text, {}).map(({ node }) => node);
}

/**
 * The blocks of a text to which pieces are added. A block is settled when the next one has begun: its nodes are kept and
 * neither parsed nor compared again, so that a piece costs as much as the last block is long, and not as the text is.
 */
export class GrowingText {
  #settled = "";
  #nodes = [];
  #references = {};
  /** How many characters have been parsed. A test looks at it. */
  parsed = 0;

  grow(text) {
    if (!text.startsWith(this.#settled)) {
      this.#settled = "";
      this.#nodes = [];
      this.#references = {};
    }
    const rest = text.slice(this.#settled.length);
    if (rest.length > LONGEST_REST && !FENCE.test(rest)) return [...this.#nodes, html`<p>${visible(rest)}</p>`];
    const found = this.#parse(rest);
    const { end, count } = settledPart(rest, found);
    if (end) this.#keepReferences(rest.slice(0, end));
    this.#settled += rest.slice(0, end);
    const nodes = found.map(({ node }) => node);
    this.#nodes = [...this.#nodes, ...nodes.slice(0, count)];
    return [...this.#nodes, ...nodes.slice(count)];
  }

  #parse(text) {
    this.parsed += text.length;
    return parse(text, { references: { ...this.#references } });
  }

  /** Keeps the addresses that a settled part defines. One that still grows is not kept. */
  #keepReferences(text) {
    if (!/^ {0,3}\[/m.test(text)) return;
    const env = { references: this.#references };
    parser.parse(text, env);
  }
}

/**
 * Returns how many blocks of a text are settled, and where they `end`. A block whose first line is not complete may still
 * join the one before.
 */
function settledPart(text, found) {
  const starts = [];
  let at = 0;
  let line = 0;
  for (const block of found) {
    for (; line < block.line; line++) at = text.indexOf("\n", at) + 1;
    starts.push(at);
  }
  const isWhole = (start) => text.indexOf("\n", start) >= 0;
  const count = Math.max(starts.findLastIndex(isWhole), 0);
  return { count, end: count ? starts[count] : 0 };
}

/** Returns the blocks of a text, each with its first `line` and its `node`. */
function parse(text, env) {
  const found = [];
  let open = 0;
  const tokens = parser.parse(text, env);
  tokens.forEach((token, at) => {
    if (token.level !== 0 || token.nesting === 1) return;
    found.push({ line: tokens[open].map[0], node: nodesOf(tokens.slice(open, at + 1))[0] });
    open = at + 1;
  });
  return found;
}

function nodesOf(tokens) {
  const stack = [[]];
  const opened = [];
  for (const token of tokens) {
    if (token.nesting === 1) {
      stack.push([]);
      opened.push(token);
    } else if (token.nesting === -1) {
      const children = stack.pop();
      const open = opened.pop();
      if (open.hidden) stack.at(-1).push(...children);
      else stack.at(-1).push((ELEMENTS[open.type] ?? plain)(children, open));
    } else stack.at(-1).push(...[(LEAVES[token.type] ?? content)(token)].flat());
  }
  return stack[0];
}

const plain = (children, token) => html`<${token.tag}>${children}<//>`;
const content = (token) => visible(token.content);

const ELEMENTS = {
  heading_open: (children, token) => html`<p class=${`heading ${token.tag}`}>${children}</p>`,
  ordered_list_open: (children, token) => html`<ol start=${token.attrGet("start") ?? 1}>${children}</ol>`,
  list_item_open: listItem,
  table_open: (children) => html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>${children}</table></div>`,
  th_open: (children, token) => html`<th scope="col" class=${alignment(token)}>${children}</th>`,
  td_open: (children, token) => html`<td class=${alignment(token)}>${children}</td>`,
  link_open: (children, token) => link(token.attrGet("href"), children),
};

const LEAVES = {
  inline: (token) => nodesOf(token.children),
  code_inline: (token) => html`<code>${visible(token.content)}</code>`,
  softbreak: () => "\n",
  hardbreak: () => html`<br />`,
  hr: () => html`<hr />`,
  fence: (token) => code(token, token.info.trim().split(/\s/)[0]),
  code_block: (token) => code(token, ""),
  image: (token) => link(token.attrGet("src"), `image: ${visible(token.content || token.attrGet("src"))}`),
};

/** An item of a list. Those of a list of tasks begin with a box, and the box is no control, because nothing would happen. */
function listItem(children) {
  const [first, ...rest] = children;
  const task = typeof first === "string" ? TASK.exec(first) : null;
  if (!task) return html`<li>${children}</li>`;
  const isDone = task[1] !== " ";
  return html`<li class="task"><span role="img" aria-label=${isDone ? "done" : "to do"}>${isDone ? "☑" : "☐"}</span> ${first.slice(task[0].length)}${rest}</li>`;
}

function alignment(token) {
  return /text-align:(center|right)/.exec(token.attrGet("style") ?? "")?.[1];
}

function code(token, language) {
  const text = visible(token.content.replace(/\n$/, ""));
  return html`<div class="code"><div class="code-head"><span>${visible(language)}</span><${CopyButton} text=${text} what="the code" /></div>
    <pre tabindex="0" role="group" aria-label=${`Code${language ? ` (${language})` : ""}`}><code>${text}</code></pre></div>`;
}

function link(address, children) {
  if (!ADDRESS.test(address)) return html`<span>${children}</span>`;
  return html`<a href=${address} target="_blank" rel="noopener noreferrer">${children}</a>`;
}
