import assert from "node:assert/strict";
import { test } from "node:test";
import { apply, emptyState, nameAgents } from "../reducer.js";

let seq = 0;
const event = (type, data, more = {}) => ({ type, agent_id: "a", epoch: 1, turn: 1, request: 1, at: "2026-01-01T12:00:00.000Z", node_id: "n1", data, ...more });
const durable = (type, data, more) => event(type, data, { seq: ++seq, ...more });
const delta = (text, offset, more) => event("text_delta", { text, part: 0, offset }, more);
const message = (role, content, more = {}) => durable("message", { message: { role, content, metadata: role === "user" ? { inputs: ["p"] } : {}, ...more } });
const after = (...events) => events.reduce(apply, emptyState());
const fresh = (body) => () => {
  seq = 0;
  body();
};
const text = (state) => state.agents.get("a").live?.parts[0]?.text;

test("deltas are joined if they continue the text", fresh(() => {
  const state = after(durable("turn_start", { inputs: [] }), delta("Hé", 0), delta("llo", 2), delta("lost", 9));
  assert.equal(text(state), "Héllo");
}));

test("offsets count characters, not the units of JavaScript", fresh(() => {
  assert.equal(text(after(delta("🦀🦀", 0), delta("!", 2))), "🦀🦀!");
}));

test("snapshot that repeats the text changes nothing", fresh(() => {
  assert.equal(text(after(delta("one two", 0), delta("one two", 0), delta(" three", 7))), "one two three");
  assert.equal(text(after(delta("one", 0), delta("one two", 0))), "one two");
}));

test("deltas of a new try replace those of the earlier one", fresh(() => {
  const second = { request: 2 };
  assert.equal(text(after(delta("wrong", 0), delta("right", 0, second), delta("late", 5))), "right");
}));

test("live events of a lower epoch are dropped", fresh(() => {
  assert.equal(text(after(delta("new", 0, { epoch: 2 }), delta("old text", 3))), "new");
}));

test("saved message replaces the deltas", fresh(() => {
  const state = after(delta("Hel", 0), message("assistant", [{ type: "text", text: "Hello" }]));
  assert.equal(text(state), undefined);
  assert.deepEqual(state.items.map((item) => [item.kind, item.parts[0].text]), [["assistant", "Hello"]]);
}));

test("event that was applied is dropped", fresh(() => {
  const said = message("assistant", [{ type: "text", text: "Hello" }]);
  assert.equal(after(said, said).items.length, 1);
}));

test("call goes from called to done", fresh(() => {
  const call = { type: "tool_call", id: "p", call_id: "c", name: "bash", args: { command: "ls" } };
  const state = after(message("assistant", [{ type: "text", text: "Look." }, call]));
  assert.deepEqual(state.items.map((item) => item.kind), ["assistant", "tool"]);
  apply(state, durable("tool_start", { call_id: "c", name: "bash", args: { command: "ls" }, effect: "mutating" }));
  assert.equal(state.items[1].status, "running");
  const before = state.items[1];
  apply(state, durable("tool_end", { call_id: "c", name: "bash", result: "a.txt", error: false, duration_ms: 4 }));
  assert.equal(state.items[1].status, "done");
  assert.equal(state.items[1].result, "a.txt");
  assert.notEqual(state.items[1], before, "a changed item is another object");
}));

test("call whose message is not loaded has an item", fresh(() => {
  const state = after(durable("tool_end", { call_id: "c", name: "bash", result: "", error: true, duration_ms: 1 }));
  assert.deepEqual(state.items.map(({ name, status }) => ({ name, status })), [{ name: "bash", status: "failed" }]);
}));

test("wait is shown until it is closed", fresh(() => {
  const state = after(durable("wait_opened", { id: "c", kind: "approval", title: "bash: ls", request: { tool: "bash" }, digest: "d" }));
  assert.equal(state.items[0].status, "waiting");
  assert.equal(state.items[0].wait.digest, "d");
  apply(state, durable("wait_closed", { id: "c", decision: "allow", by: "ann" }));
  assert.equal(state.items[0].wait, undefined);
  assert.equal(state.items[0].decision.by, "ann");
}));

test("wait with an id of its own is shown at its call", fresh(() => {
  const start = durable("tool_start", { call_id: "c", name: "bash", effect: "mutating", args: {} });
  const wait = durable("wait_opened", { id: "w", call_id: "c", kind: "change", title: "bash changed", request: { tool: "bash" }, digest: "d" });
  const state = after(start, wait);
  assert.equal(state.items.length, 1);
  assert.equal(state.items[0].wait.id, "w");
  apply(state, durable("wait_closed", { id: "w", call_id: "c", decision: "allow" }));
  assert.equal(state.items[0].wait, undefined);
}));

test("prompt and abort name who sent them", fresh(() => {
  const prompt = message("user", [{ type: "text", text: "one" }], { metadata: { inputs: ["p"], by: "ann" } });
  const state = after(prompt, durable("turn_end", { outcome: "aborted", reason: "by bob", inputs: [] }));
  assert.equal(state.items[0].by, "ann");
  assert.equal(state.items[1].text, "Turn aborted: by bob");
}));

test("answer in a shape is an item with the name of the shape", fresh(() => {
  const start = durable("turn_start", { inputs: [], output: { shape: { name: "rivers", schema: { type: "object" } } } });
  const end = (more) => durable("turn_end", { outcome: "completed", inputs: [], ...more });
  const state = after(start, end({ output: { rivers: ["Rhine"] } }), durable("turn_start", { inputs: [] }), end({}));
  assert.deepEqual(state.items.map(({ kind, shape, value }) => ({ kind, shape, value })), [{ kind: "output", shape: "rivers", value: { rivers: ["Rhine"] } }]);
  const later = after(end({ output: {} }));
  assert.equal(later.items[0].shape, undefined, "the start of the turn is not loaded");
}));

test("message of the runtime is not one of a person", fresh(() => {
  const state = after(message("user", [{ type: "text", text: "one" }]), message("user", [{ type: "text", text: "Call submit_output now." }], { metadata: {} }));
  assert.deepEqual(state.items.map(({ kind, custom }) => [kind, custom]), [["user", undefined], ["custom", "runtime"]]);
}));

test("rewind hides messages and keeps the places of earlier calls", fresh(() => {
  const call = { type: "tool_call", id: "p", call_id: "c", name: "bash", args: {} };
  const state = after(message("user", [{ type: "text", text: "one" }]), message("assistant", [call]), message("user", [{ type: "text", text: "two" }]));
  apply(state, durable("rewound", { to: 3, by: "ann" }));
  assert.deepEqual(state.items.map((item) => item.kind), ["user", "tool", "notice"]);
  apply(state, durable("tool_end", { call_id: "c", name: "bash", result: "late", error: false, duration_ms: 1 }));
  assert.equal(state.items[1].result, "late");
}));

test("hidden event counts and is not shown", fresh(() => {
  const hidden = { ...message("user", [{ type: "text", text: "one" }]), hidden_by: 9 };
  const state = after(hidden);
  assert.equal(state.lastSeq, 1);
  assert.equal(state.items.length, 0);
}));

test("inputs of turns and messages are remembered", fresh(() => {
  const state = after(durable("turn_start", { inputs: [{ id: "i1" }] }), message("user", [], { metadata: { inputs: ["i2"] } }));
  assert.deepEqual([...state.inputs], ["i1", "i2"]);
}));

test("names come from the description of the session", fresh(() => {
  const state = after(delta("x", 0));
  nameAgents(state, [{ id: "a", name: "lead", type: "lead", role: "orchestrator", node_id: "n2", state: "idle" }]);
  assert.equal(state.agents.get("a").name, "lead");
  assert.equal(state.agents.get("a").node, "n1", "an event knows the node better");
}));

test("unknown event is ignored", fresh(() => {
  const state = after(durable("from_a_later_version", { anything: 1 }));
  assert.equal(state.lastSeq, 1);
  assert.equal(state.items.length, 0);
}));

test("agent waits only if nothing of it runs", fresh(() => {
  const state = after(durable("turn_start", { inputs: [] }));
  const agent = state.agents.get("a");
  const start = (call) => durable("tool_start", { call_id: call, name: "bash", args: {}, effect: "mutating" });
  const end = (call) => durable("tool_end", { call_id: call, name: "bash", result: "", error: false, duration_ms: 1 });
  const opened = (call) => durable("wait_opened", { id: call, kind: "approval", title: "bash", request: { tool: "bash" }, digest: "d" });
  const closed = (call) => durable("wait_closed", { id: call, decision: "allow" });
  for (const [step, expected] of [
    [opened("one"), "waiting"],
    [start("two"), "working"],
    [end("two"), "waiting"],
    [opened("three"), "waiting"],
    [closed("one"), "waiting"],
    [start("one"), "working"],
    [closed("three"), "working"],
    [event("compacting", {}), "compacting"],
    [durable("compacted", { tokens_before: 2, tokens_after: 1, by: "model" }), "working"],
    [durable("turn_end", { outcome: "aborted", inputs: [] }), "idle"],
    [closed("three"), "idle"],
    [durable("agent_stopped", { reason: "closed" }), "stopped"],
  ]) {
    apply(state, step);
    assert.equal(agent.state, expected, step.type);
  }
  nameAgents(state, [{ id: "a", name: "ann", type: "agent", state: "idle" }]);
  assert.equal(agent.state, "idle", "a resumed agent");
}));
