import assert from "node:assert/strict";
import { test } from "node:test";
import { diff } from "../diff.js";
import { duration, money, quoted, tokens } from "../format.js";
import { FrameParser, pauseBefore } from "../sse.js";
import { visible, visibleJson } from "../visible.js";

test("frames are found in pieces of any size", () => {
  const stream = 'retry: 1000\n\nid: 7\ndata: {"a":1}\n\n:\n\nevent: head\ndata: {}\n\n';
  for (let size = 1; size < 20; size++) {
    const parser = new FrameParser();
    const frames = [];
    for (let at = 0; at < stream.length; at += size) frames.push(...parser.push(stream.slice(at, at + size)));
    assert.deepEqual(frames.filter((frame) => frame.data), [
      { id: "7", name: undefined, data: '{"a":1}' },
      { id: undefined, name: "head", data: "{}" },
    ]);
  }
});

test("pauses grow and are bounded", () => {
  assert.equal(pauseBefore(0, 1), 500);
  assert.equal(pauseBefore(0, 0), 250);
  assert.equal(pauseBefore(50, 1), 5_000);
});

test("difference has the old and the new lines in place", () => {
  const lines = diff("a\nb\nc", "a\nx\nc\nd").map(({ sign, text }) => sign + text);
  assert.deepEqual(lines, [" a", "-b", "+x", " c", "+d"]);
  assert.deepEqual(diff("", "a").map(({ sign }) => sign), ["+"]);
});

test("amounts are short", () => {
  assert.equal(duration(340), "340 ms");
  assert.equal(duration(65_000), "1 min 5 s");
  assert.equal(money(0.0012), "$0.0012");
  assert.equal(money(12.3), "$12.30");
  assert.equal(tokens(12_400), "12.4k");
});

test("words of a command are quoted if necessary", () => {
  assert.equal(quoted("bold-oak"), "bold-oak");
  assert.equal(quoted("it's"), "'it'\\''s'");
});

test("hidden characters are shown, and those that emoji need are kept", () => {
  assert.equal(visible("echo \u202e; dne\u200b\u2066"), "echo \\u{202e}; dne\\u{200b}\\u{2066}");
  assert.equal(visible("a\x1b[2K\rb\x7f\r\n\tc"), "a␛[2K␍b␡\n\tc");
  for (const kept of ["👩‍💻", "❤️‍🔥", "1️⃣", "नमस्ते", "plain\ttext\n"]) assert.equal(visible(kept), kept);
  assert.equal(visible("❤️️"), "❤️\\u{fe0f}");
  const call = { command: "a\u202eb\u{e0041}" };
  assert.match(visibleJson(call), /a\\u202eb\\udb40\\udc41/);
  assert.deepEqual(JSON.parse(visibleJson(call)), call);
});
