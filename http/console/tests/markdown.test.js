import assert from "node:assert/strict";
import { test } from "node:test";
import { blocks } from "../markdown.js";

/** Returns a node as markup without attributes, except the address of a link. */
function shown(node) {
  if (Array.isArray(node)) return node.map(shown).join("");
  if (typeof node !== "object" || !node) return String(node ?? "");
  const { children, href } = node.props;
  const name = href ? `${node.type} ${href}` : node.type;
  return `<${name}>${shown(children)}</${node.type}>`;
}

const paragraph = (text) => shown(blocks(text)).replace(/^<p>|<\/p>$/g, "");

test("code, strong text and links are found", () => {
  for (const [text, expected] of [
    ["a `b` c", "a <code>b</code> c"],
    ["``a ` b`` `c", "<code>a ` b</code> `c"],
    ["`a\nb`", "`a\nb`"],
    ["**a** and **b*c**", "<strong>a</strong> and **b*c**"],
    ["**a\nb**", "**a\nb**"],
    ["[a](https://b.c/d) e", "<a https://b.c/d>a</a> e"],
    ["[a](javascript:x) [b] [c](/d)", "[a](javascript:x) [b] [c](/d)"],
    ["see https://b.c/d, or (http://e.f).", "see <a https://b.c/d>https://b.c/d</a>, or (<a http://e.f>http://e.f</a>)."],
    ["https:// http://.", "https:// http://."],
    ["the https and h", "the https and h"],
    ["[`a`](https://b.c) `[d](https://e.f)`", "<a https://b.c>`a`</a> <code>[d](https://e.f)</code>"],
  ]) assert.equal(paragraph(text), expected);
});

test("no text takes long to show", () => {
  const ladder = Array.from({ length: 198 }, (_, at) => "`".repeat(at + 1)).join(" ");
  for (const piece of [
    "[".repeat(19_990),
    "[a](http://".repeat(1_800),
    "[a](http://b ".repeat(1_500),
    "**a".repeat(6_000),
    "** ".repeat(6_000),
    "*".repeat(19_990),
    "`".repeat(19_990),
    "`a ``b ".repeat(2_800),
    ladder,
    "http://".repeat(2_800),
    "http://,,,,".repeat(1_800),
    "h".repeat(19_990),
    "| ".repeat(9_990),
    " ".repeat(19_990),
    "1".repeat(19_990),
    "- ".repeat(9_990),
  ]) {
    const text = Array(9).fill(piece).join("\n\n");
    // The time of the processor counts, because other programs may keep it busy.
    const began = process.cpuUsage();
    blocks(text);
    const took = process.cpuUsage(began).user / 1_000;
    assert.ok(took < 2_000, `${piece.slice(0, 12)}: ${took} ms`);
  }
});
