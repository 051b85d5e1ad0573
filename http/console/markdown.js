// Shows the Markdown that models write. The result is made of nodes and texts, so markup in the
// text stays text, and only web addresses become links.

import { html, memo } from "./html.js";

const INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|\*\*([^*\n]+)\*\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])/g;
/** A longer text is shown as it is, because parsing it would take too long. */
const LONGEST = 200_000;
const LONGEST_INLINE = 20_000;

export const Markdown = memo(function Markdown({ text }) {
  if (text.length > LONGEST) return html`<div class="prose"><pre>${text}</pre></div>`;
  return html`<div class="prose">${blocks(text)}</div>`;
});

/** Splits a text into fenced code and the rest, and the rest into blocks. */
function blocks(text) {
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
  for (const match of text.matchAll(INLINE)) {
    if (match.index > last) result.push(text.slice(last, match.index));
    const [all, , code, strong, label, address, bare] = match;
    if (code !== undefined) result.push(html`<code>${code}</code>`);
    else if (strong !== undefined) result.push(html`<strong>${strong}</strong>`);
    else result.push(html`<a href=${address ?? bare} target="_blank" rel="noopener noreferrer">${label ?? bare}</a>`);
    last = match.index + all.length;
  }
  if (last < text.length) result.push(text.slice(last));
  return result;
}
