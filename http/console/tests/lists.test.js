import assert from "node:assert/strict";
import { test } from "node:test";
import { withoutHead } from "../conversation.js";
import { markdownOf } from "../export.js";
import { pick } from "../pick.js";

const row = (name, more = {}) => ({
  row: { name, created_at: more.created ?? "2026-01-01", updated_at: more.updated ?? "2026-01-01" },
  activity: more.activity ?? "idle",
  waits: (more.waits ?? []).map((title) => ({ title })),
  detail: more.detail ?? {},
});
const ROWS = [
  row("bold-oak", { created: "2026-01-03", detail: { team: "lead, coder", cost: 2, prompt: "Build a word counter", line: "Done." } }),
  row("calm-elm", { created: "2026-01-02", updated: "2026-01-09", activity: "failed", detail: { team: "agent", cost: 0, prompt: "Deploy", failure: "status 400" } }),
  row("dry-ash", { created: "2026-01-01", updated: "2026-01-05", activity: "waits", waits: ["bash: git push"], detail: { team: "agent", cost: 7 } }),
  row("new-fir", { created: "2026-01-04" }),
];
const picked = (wanted) => pick(ROWS, { text: "", state: "", team: "", order: "created", ...wanted }).map((each) => each.row.name);

test("sessions are found by their texts, states and teams", () => {
  assert.deepEqual(picked({}), ["new-fir", "bold-oak", "calm-elm", "dry-ash"]);
  assert.deepEqual(picked({ text: "COUNTER word" }), ["bold-oak"]);
  assert.deepEqual(picked({ text: "400" }), ["calm-elm"]);
  assert.deepEqual(picked({ text: "git push" }), ["dry-ash"]);
  assert.deepEqual(picked({ text: "elm" }), ["calm-elm"]);
  assert.deepEqual(picked({ text: "word elm" }), []);
  assert.deepEqual(picked({ state: "failed" }), ["calm-elm"]);
  assert.deepEqual(picked({ team: "agent" }), ["calm-elm", "dry-ash"]);
});

test("sessions are sorted, those of unknown cost last", () => {
  assert.deepEqual(picked({ order: "cost" }), ["dry-ash", "bold-oak", "calm-elm", "new-fir"]);
  assert.deepEqual(picked({ order: "activity" }), ["calm-elm", "dry-ash", "bold-oak", "new-fir"]);
});

test("a log becomes Markdown that no text of it can break", () => {
  let seq = 0;
  const event = (type, data, more = {}) => ({ type, seq: ++seq, agent_id: "a", at: "2026-01-01T12:00:00.000Z", data, ...more });
  const message = (role, content, more) => event("message", { message: { role, content, metadata: role === "user" ? { inputs: ["p"] } : {} } }, more);
  const text = markdownOf({ name: "oak", agents: [{ id: "a", name: "ann", type: "agent", state: "idle" }] }, [
    event("session_started", { name: "oak" }),
    message("user", [{ type: "text", text: "one" }]),
    message("user", [{ type: "text", text: "hidden" }], { hidden_by: 9 }),
    message("assistant", [{ type: "thinking", text: "hm\nhm" }, { type: "text", text: "two" }, { type: "tool_call", call_id: "c", name: "read", args: { path: "x" } }]),
    event("tool_end", { call_id: "c", name: "read", result: "```\n# no heading", error: false, duration_ms: 4 }),
    event("turn_end", { outcome: "completed", inputs: [], output: { n: 1 } }),
  ]);
  assert.equal(text, "# oak\n\n*Session oak started*\n\n## You to ann\n\none\n\n## ann\n\n> hm\n> hm\n\ntwo\n\n"
    + '### ann calls `read` (done, 4 ms)\n\n```json\n{\n  "path": "x"\n}\n```\n\n````\n```\n# no heading\n````\n\n'
    + '## ann answers in a shape\n\n```json\n{\n  "n": 1\n}\n```\n');
});

test("what the protocol tells the model about a message is not shown", () => {
  const said = (text) => {
    const { kind, parts } = withoutHead([{ type: "text", text }]);
    return [kind, parts[0].text];
  };
  assert.deepEqual(said("[question i1 from lead (agent a7); the text that ends your turn is the answer]\n\nhi"), ["question", "hi"]);
  assert.deepEqual(said("[response to task t1 from coder (agent a2)]\n\ndone"), ["response", "done"]);
  assert.deepEqual(said("plain [x]\ny"), [undefined, "plain [x]\ny"]);
});
