// Shows the Markdown that models write. The result is made of nodes and texts, so markup in the
// text stays text, and only web addresses become links.

import { html, memo } from "./html.js";

/** The longest address and label of a link. */
const LONGEST_LINK = 2_000;
const ADDRESS = new RegExp(`\\((https?://[^\\s)]{1,${LONGEST_LINK}})\\)`, "y");
const BARE = new RegExp(`https?://[^\\s<>()]{1,${LONGEST_LINK}}`, "y");
/** A longer text is shown as it is, because parsing it would take too long. */
const LONGEST = 200_000;
const LONGEST_INLINE = 20_000;

export const Markdown = memo(function Markdown({ text }) {
  if (text.length > LONGEST) return html`<div class="prose"><pre>${text}</pre></div>`;
  return html`<div class="prose">${blocks(text)}</div>`;
});

/** Splits a text into fenced code and the rest, and the rest into blocks. */
export function blocks(text) {
  const result = [];
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; ) {
    const fence = /^\s*(```+|~~~+)\s*(\S*)/.exec(lines[at]);
    if (fence) at = code(lines, at, fence, result);
    else if (!lines[at].trim()) at++;
    else at = block(lines, at, result);
  }
  return result;
}

function code(lines, start, [, mark, language], result) {
  let end = start + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end++;
  const body = lines.slice(start + 1, end).join("\n");
  result.push(html`<pre class="code" tabindex="0" aria-label=${`Code${language ? ` (${language})` : ""}`}><code>${body}</code></pre>`);
  return end + 1;
}

function block(lines, start, result) {
  const heading = /^(#{1,6})\s+(.*)/.exec(lines[start]);
  if (heading) {
    result.push(html`<p class="heading">${inline(heading[2])}</p>`);
    return start + 1;
  }
  if (/^\s*([-*+]|\d+[.)])\s+/.test(lines[start])) return list(lines, start, result);
  if (/^\s*\|.*\|\s*$/.test(lines[start])) return table(lines, start, result);
  if (/^\s*>/.test(lines[start])) return quote(lines, start, result);
  let end = start;
  while (end < lines.length && lines[end].trim() && !/^\s*(```|~~~|#{1,6}\s|[-*+]\s|\d+[.)]\s|>|\|)/.test(lines[end])) end++;
  end = Math.max(end, start + 1);
  result.push(html`<p>${inline(lines.slice(start, end).join("\n"))}</p>`);
  return end;
}

function list(lines, start, result) {
  const items = [];
  let end = start;
  for (; end < lines.length && lines[end].trim(); end++) {
    const item = /^(\s*)([-*+]|\d+[.)])\s+(.*)/.exec(lines[end]);
    if (item) items.push({ depth: Math.min(Math.floor(item[1].length / 2), 4), mark: item[2], text: item[3] });
    else if (/^\s*(```|#)/.test(lines[end])) break;
    else items.at(-1).text += `\n${lines[end].trim()}`;
  }
  const isNumbered = /\d/.test(items[0].mark);
  const rows = items.map((item) => html`<li class=${`depth${item.depth}`}>${inline(item.text)}</li>`);
  result.push(isNumbered ? html`<ol start=${parseInt(items[0].mark, 10)}>${rows}</ol>` : html`<ul>${rows}</ul>`);
  return end;
}

function table(lines, start, result) {
  let end = start;
  while (end < lines.length && /^\s*\|/.test(lines[end])) end++;
  const rows = lines.slice(start, end).map((line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim()));
  const [head, ...body] = rows.filter((row) => !row.every((cell) => /^:?-+:?$/.test(cell)));
  result.push(html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
    <thead><tr>${head.map((cell) => html`<th scope="col">${inline(cell)}</th>`)}</tr></thead>
    <tbody>${body.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell)}</td>`)}</tr>`)}</tbody>
  </table></div>`);
  return end;
}

function quote(lines, start, result) {
  let end = start;
  while (end < lines.length && /^\s*>/.test(lines[end])) end++;
  const text = lines.slice(start, end).map((line) => line.replace(/^\s*>\s?/, "")).join("\n");
  result.push(html`<blockquote>${inline(text)}</blockquote>`);
  return end;
}

function inline(text) {
  if (text.length > LONGEST_INLINE) return text;
  const result = [];
  let last = 0;
  for (const { start, end, node } of spans(text)) {
    if (start > last) result.push(text.slice(last, start));
    result.push(node);
    last = end;
  }
  if (last < text.length) result.push(text.slice(last));
  return result;
}

/** Finds code, strong text and links, in time that grows with the length of the text. */
function* spans(text) {
  const next = { "]": nextOf(text, "]"), "*": nextOf(text, "*"), "\n": nextOf(text, "\n") };
  const closing = closingTicks(text);
  for (let at = 0; at < text.length; ) {
    const span = spanAt(text, at, next, closing);
    if (span.node) yield span;
    at = span.end;
  }
}

/** Returns the span that begins here. Without a node, nothing begins before its end. */
function spanAt(text, at, next, closing) {
  const plain = { end: at + 1 };
  const isOneLine = (end) => end >= 0 && (next["\n"](at) < 0 || end < next["\n"](at));
  switch (text[at]) {
    case "`": {
      const length = ticks(text, at);
      const close = closing(at, length);
      if (close === undefined || !isOneLine(close)) return { end: at + length };
      const node = html`<code>${text.slice(at + length, close)}</code>`;
      return { start: at, end: close + length, node };
    }
    case "*": {
      if (text[at + 1] !== "*") return plain;
      const close = next["*"](at + 2);
      if (close <= at + 2 || text[close + 1] !== "*" || !isOneLine(close)) return plain;
      return { start: at, end: close + 2, node: html`<strong>${text.slice(at + 2, close)}</strong>` };
    }
    case "[": {
      const close = next["]"](at);
      if (close <= at + 1 || close - at > LONGEST_LINK || !isOneLine(close)) return plain;
      const address = matchAt(ADDRESS, text, close + 1);
      if (!address) return plain;
      const end = close + 1 + address[0].length;
      return { start: at, end, node: link(address[1], text.slice(at + 1, close)) };
    }
    case "h": {
      const address = matchAt(BARE, text, at)?.[0].replace(/[.,;:!?'"]+$/, "");
      if (!address || address.endsWith("://")) return plain;
      return { start: at, end: at + address.length, node: link(address, address) };
    }
    default:
      return plain;
  }
}

function link(address, label) {
  return html`<a href=${address} target="_blank" rel="noopener noreferrer">${label}</a>`;
}

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/** Returns a function that finds the next place of a letter, for places that only grow. */
function nextOf(text, letter) {
  let found = -1;
  let isNone = false;
  return (from) => {
    if (found < from && !isNone) found = text.indexOf(letter, from);
    isNone ||= found < 0;
    return isNone ? -1 : found;
  };
}

function ticks(text, at) {
  let end = at;
  while (text[end] === "`") end++;
  return end - at;
}

/** Returns a function that finds the run of backticks which closes the one at a place. */
function closingTicks(text) {
  const runs = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) runs.set(run.length, []);
    runs.get(run.length).push(index);
  }
  const passed = new Map();
  return (at, length) => {
    const places = runs.get(length) ?? [];
    let next = passed.get(length) ?? 0;
    while (places[next] <= at) next++;
    passed.set(length, next);
    return places[next];
  };
}
