import assert from "node:assert/strict";
import { test } from "node:test";
import { blocks, GrowingText } from "../markdown.js";

/** Returns a node as markup without attributes, except the address of a link. A button of ours is left out. */
function shown(node) {
  if (Array.isArray(node)) return node.map(shown).join("");
  if (typeof node !== "object" || !node) return String(node ?? "");
  if (typeof node.type !== "string") return "";
  const { children, href } = node.props;
  const name = href ? `${node.type} ${href}` : node.type;
  return `<${name}>${shown(children)}</${node.type}>`;
}

const all = (text) => shown(blocks(text));
const paragraph = (text) => all(text).replace(/^<p>|<\/p>$/g, "");

test("parts of a line are found", () => {
  for (const [text, expected] of [
    ["a `b` c", "a <code>b</code> c"],
    ["``a ` b`` `c", "<code>a ` b</code> `c"],
    ["**a** and *b* and _c_ and ~~d~~", "<strong>a</strong> and <em>b</em> and <em>c</em> and <s>d</s>"],
    ["snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"],
    ["***a*** **b *c* d**", "<em><strong>a</strong></em> <strong>b <em>c</em> d</strong>"],
    ["a\nb", "a\nb"],
    ["a  \nb", "a<br></br>b"],
    ["a \\*b\\* &lt;c&gt; &amp;", "a *b* <c> &"],
    ["[a](https://b.c/d) e", "<a https://b.c/d>a</a> e"],
    ["[a *b*](mailto:c@d.e)", "<a mailto:c@d.e>a <em>b</em></a>"],
    ["<https://b.c> and see https://b.c/d, or (http://e.f).", "<a https://b.c>https://b.c</a> and see <a https://b.c/d>https://b.c/d</a>, or (<a http://e.f>http://e.f</a>)."],
    ["the file main.rs and a@b.c", "the file main.rs and a@b.c"],
    ["[`a`][x]\n\n[x]: https://b.c", "<a https://b.c><code>a</code></a>"],
  ]) assert.equal(paragraph(text), expected);
});

test("blocks are found", () => {
  for (const [text, expected] of [
    ["# a *b*\n\nc", "<p>a <em>b</em></p><p>c</p>"],
    ["a\n\n---\n\nb", "<p>a</p><hr></hr><p>b</p>"],
    ["- a\n  - b\n    1. c\n- d", "<ul><li>a<ul><li>b<ol><li>c</li></ol></li></ul></li><li>d</li></ul>"],
    ["1. a\n\n   b\n2. c", "<ol><li><p>a</p><p>b</p></li><li><p>c</p></li></ol>"],
    ["- [ ] a\n- [x] b **c**", "<ul><li><span>☐</span> a</li><li><span>☑</span> b <strong>c</strong></li></ul>"],
    ["> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"],
    ["| a | b |\n|---|--:|\n| `c` | d \\| e |", "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td><code>c</code></td><td>d | e</td></tr></tbody></table></div>"],
    ["```js\n<b>&amp;\n```\na", "<div><div><span>js</span></div><pre><code><b>&amp;</code></pre></div><p>a</p>"],
    ["```\nnot closed", "<div><div><span></span></div><pre><code>not closed</code></pre></div>"],
  ]) assert.equal(all(text), expected);
});

test("markup stays text, and no image or other address is used", () => {
  for (const [text, expected] of [
    ["<script>x</script> <b>y</b> <!-- z -->", "<script>x</script> <b>y</b> <!-- z -->"],
    ["[a](javascript:x) [b] [c](/d) [e](data:f) [g](//h.i)", "[a](javascript:x) [b] <span>c</span> [e](data:f) <span>g</span>"],
    ["![a](https://b.c/d.png) ![](e.png)", "<a https://b.c/d.png>image: a</a> <span>image: e.png</span>"],
    // A hidden character may come back from an entity, or from the escapes of an address.
    ["a &#8238; b `c`", "a \\u{202e} b <code>c</code>"],
    ["<https://b.c/%E2%80%AEd>", "<a https://b.c/%E2%80%AEd>https://b.c/\\u{202e}d</a>"],
  ]) assert.equal(paragraph(text), expected);
});

const TEXT = `# Title

A paragraph with **strong** text
and a [link][x] that is defined later.

- one
- two
  - three

  more of two
- [ ] four

1. a
2. b

Setext
======

| a | b |
|---|---|
| c | d |
| e | f |

\`\`\`rust
fn main() {

    # no heading
}
\`\`\`

> quote
continues

[x]: https://example.com/path

See [x] and [x][x].

***

last line`;

test("a growing text ends as the whole text", () => {
  for (const size of [1, 2, 7, 40]) {
    const growing = new GrowingText();
    let nodes;
    for (let end = size; end < TEXT.length + size; end += size) {
      const part = TEXT.slice(0, end);
      nodes = growing.grow(part);
      // A definition that follows its use counts only in the whole text.
      if (!part.includes("[link]")) assert.equal(shown(nodes), all(part));
    }
    assert.equal(shown(nodes), all(TEXT).replace("a <a https://example.com/path>link</a> that", "a [link][x] that"));
  }
});

test("a text that begins again is shown anew", () => {
  const growing = new GrowingText();
  growing.grow("a\n\nb\n\nc");
  assert.equal(shown(growing.grow("x\n\ny")), "<p>x</p><p>y</p>");
});

test("a piece costs as much as the last block", () => {
  const growing = new GrowingText();
  const text = "A line of *text* with `code`, as models write it.\n\n".repeat(2_000);
  let earlier;
  for (let end = 100; end <= text.length; end += 100) {
    const nodes = growing.grow(text.slice(0, end));
    // Settled blocks are the same nodes, which the renderer does not compare.
    if (earlier?.length > 3) assert.equal(nodes[0], earlier[0]);
    earlier = nodes;
  }
  assert.ok(growing.parsed < 4 * text.length, `${growing.parsed} of ${text.length}`);
  const list = "- an item\n".repeat(20_000);
  const before = growing.parsed;
  for (let end = 50_000; end <= list.length; end += 1_000) growing.grow(list.slice(0, end));
  assert.equal(growing.parsed, before, "a long block is parsed for each piece");
});

test("no text takes long to show", () => {
  const ladder = Array.from({ length: 198 }, (_, at) => "`".repeat(at + 1)).join(" ");
  const staircase = Array.from({ length: 200 }, (_, at) => `${"  ".repeat(at % 100)}- a`).join("\n");
  for (const piece of [
    "[".repeat(19_990),
    "[a](http://".repeat(1_800),
    "[a](http://b ".repeat(1_500),
    "**a".repeat(6_000),
    "** ".repeat(6_000),
    "*a _b ".repeat(3_000),
    "*".repeat(19_990),
    "~~a".repeat(6_000),
    "`".repeat(19_990),
    "`a ``b ".repeat(2_800),
    ladder,
    "http://".repeat(2_800),
    "http://,,,,".repeat(1_800),
    "a@".repeat(9_990),
    "h".repeat(19_990),
    "| ".repeat(9_990),
    "|a|b|\n|-|-|\n" + "|x|y|\n".repeat(3_300),
    " ".repeat(19_990),
    "1".repeat(19_990),
    "- ".repeat(9_990),
    "> ".repeat(9_990),
    "- a\n".repeat(4_900),
    staircase,
    "![".repeat(9_990),
    "<!--".repeat(4_990),
    "&".repeat(19_990),
    "[a]: b\n".repeat(2_800),
  ]) {
    const text = Array(9).fill(piece).join("\n\n");
    // The time of the processor counts, because other programs may keep it busy.
    const began = process.cpuUsage();
    blocks(text);
    const took = process.cpuUsage(began).user / 1_000;
    assert.ok(took < 4_000, `${piece.slice(0, 12)}: ${took} ms`);
  }
});
