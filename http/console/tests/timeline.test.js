import assert from "node:assert/strict";
import { test } from "node:test";
import { applyToTimeline, emptyTimeline, layout } from "../timeline.js";

const START = Date.parse("2026-01-01T12:00:00.000Z");
/** Makes events of agents from `[type, seconds, data, agent, node]`. */
function timelineOf(...rows) {
  return rows.reduce((timeline, [type, seconds, data, agent = "a", node = "n1"], index) => applyToTimeline(timeline, {
    type, seq: index + 1, agent_id: agent, node_id: node, turn: 1, data, at: new Date(START + seconds * 1000).toISOString(),
  }), emptyTimeline());
}
const said = { message: { role: "assistant" } };
const results = { message: { role: "tool_result" } };
const started = { inputs: [] };
const ended = { outcome: "completed" };
const spans = (timeline) => timeline.bars.map((bar) => [bar.kind, (bar.from - START) / 1000, bar.to === undefined ? undefined : (bar.to - START) / 1000]);

test("turn has bars for its requests and calls", () => {
  const timeline = timelineOf(["turn_start", 0, started], ["message", 2, said], ["tool_start", 2, { call_id: "c", name: "bash" }], ["tool_end", 5, { call_id: "c" }], ["message", 5, results], ["message", 6, said], ["turn_end", 6, ended]);
  assert.deepEqual(spans(timeline), [["turn", 0, 6], ["model", 0, 2], ["tool", 2, 5], ["model", 5, 6]]);
});

test("retry ends a request and begins the next", () => {
  const timeline = timelineOf(["turn_start", 0, started], ["retry", 1, { attempt: 2, delay_ms: 500, reason: "529" }], ["message", 4, said], ["turn_end", 4, ended]);
  assert.deepEqual(spans(timeline), [["turn", 0, 4], ["model", 0, 1], ["model", 1.5, 4]]);
  assert.deepEqual(timeline.marks.map((mark) => mark.kind), ["retry"]);
});

test("agent on another node is marked as a failover", () => {
  const timeline = timelineOf(["turn_start", 0, started], ["message", 9, said, "a", "n2"]);
  assert.deepEqual(timeline.marks.map((mark) => mark.kind), ["failover"]);
});

test("question is an arrow from the call of its sender", () => {
  const timeline = timelineOf(["turn_start", 0, started], ["tool_start", 1, { call_id: "c", name: "ask_agent" }], ["turn_start", 2, { inputs: [{ kind: "question", from: "a" }] }, "b"]);
  assert.deepEqual(timeline.arrows.map((arrow) => [arrow.from, arrow.to, (arrow.since - START) / 1000, (arrow.at - START) / 1000]), [["a", "b", 1, 2]]);
});

test("heights are in the order of time and pauses are short", () => {
  const timeline = timelineOf(["turn_start", 0, started], ["message", 1, said], ["turn_end", 1, ended], ["turn_start", 3600, started], ["message", 3601, said], ["turn_end", 3601, ended]);
  const plan = layout(timeline, START + 3_601_000);
  assert.equal(plan.breaks.length, 1);
  assert.equal(plan.breaks[0].ms, 3_599_000);
  const tops = plan.bars.map((bar) => bar.top);
  assert.deepEqual(tops, tops.toSorted((a, b) => a - b));
  assert.ok(plan.height < 300, `${plan.height}`);
});

test("running bar reaches to now", () => {
  const timeline = timelineOf(["turn_start", 0, started]);
  const plan = layout(timeline, START + 2_000);
  assert.deepEqual(plan.bars.map((bar) => [bar.isOpen, bar.end - bar.from]), [[true, 2000], [true, 2000]]);
});

test("request that a budget holds back begins after the answer", () => {
  const timeline = timelineOf(["turn_start", 0, started], ["message", 1, said], ["message", 2, results], ["wait_opened", 2, { id: "w", kind: "budget" }], ["wait_closed", 9, { id: "w", decision: "allow" }], ["message", 10, said], ["turn_end", 10, ended]);
  assert.deepEqual(spans(timeline), [["turn", 0, 10], ["model", 0, 1], ["wait", 2, 9], ["model", 9, 10]]);
});
