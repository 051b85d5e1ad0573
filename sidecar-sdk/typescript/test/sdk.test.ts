// Run with `npm test`. Tests that need a server run only if NATS_URL is set.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { connect, headers } from "@nats-io/transport-node";

import * as planck from "../src/index.js";
import { Harness, Misfit, Sidecar } from "../src/index.js";
import { optionsOf } from "../src/connection.js";
import { admits } from "../src/replies.js";

const encoded = (text: string) => new TextEncoder().encode(text);

function make(): Sidecar {
  const sidecar = new Sidecar("test", "1.0.0", { atOnce: 2 });
  const numbers = planck.array(planck.number(), "What to add");
  sidecar.tool("add", { description: "Adds.", effect: "pure", args: { numbers, note: planck.optional(planck.string(), "") } }, (args) =>
    args.numbers.reduce((sum, one) => sum + one, 0) + args.note,
  );
  sidecar.tool("wait", { description: "Waits.", effect: "pure", args: { seconds: planck.number() } }, async ({ seconds }, context) => {
    context.progress("waiting", 250);
    await sleep(seconds * 1000, undefined, { signal: context.signal });
    return `${context.agentId} ${context.epoch}`;
  });
  sidecar.tool("trace", { description: "Says which trace it is in.", effect: "pure", args: {} }, (_, context) => context.traceparent ?? "none");
  sidecar.tool("deaf", { description: "Heeds nothing.", args: {} }, () => sleep(5000, "late", { ref: false }));
  sidecar.tool("fail", { description: "Fails.", args: { unit: planck.oneOf(["m", "mi"]) } }, ({ unit }) => {
    if (unit === "mi") throw new Error("no miles");
    return { unit };
  });
  sidecar.compactor("head", (conversation) => {
    const keepFrom = conversation.cut(2);
    return keepFrom === undefined ? undefined : { summary: "short", keepFrom };
  });
  return sidecar;
}

test("schemas describe and check", () => {
  const place = planck.object({ name: planck.string("Where"), far: planck.optional(planck.boolean(), false), level: planck.optional(planck.integer()) });
  assert.deepEqual(place.json.required, ["name"]);
  assert.deepEqual((place.json.properties as Record<string, unknown>).name, { type: "string", description: "Where" });
  assert.equal(place.json.additionalProperties, false);
  assert.deepEqual(place.fit({ name: "here" }, "it"), { name: "here", far: false, level: undefined });
  assert.deepEqual(planck.array(planck.oneOf([1, "b"])).json, { type: "array", items: { enum: [1, "b"] } });
  const wrong: [planck.Schema<any>, unknown, RegExp][] = [
    [place, {}, /`name` is missing in it/],
    [place, { name: "a", more: 1 }, /`more` is not known in it; known are: name, far, level/],
    [place, { name: 1 }, /`name` must be of type string/],
    [place, [], /it must be an object/],
    [place, JSON.parse('{"name":"a","__proto__":1}'), /`__proto__` is not known in it/],
    [planck.integer(), 1.5, /must be of type integer/],
    [planck.number(), NaN, /must be of type number/],
    [planck.oneOf(["a"]), "b", /must be one of "a"/],
    [planck.array(planck.number()), [1, "b"], /it\[1\] must be of type number/],
  ];
  for (const [schema, value, told] of wrong) {
    assert.throws(() => schema.fit(value, "it"), (error: Error) => error instanceof Misfit && told.test(error.message));
  }
});

test("replies go to inboxes only", () => {
  const cases: [string, string, boolean][] = [
    ["", "_INBOX.abc.1", true],
    ["", "_INBOX_client.abc", true],
    ["", "_R_.abc", true],
    ["", "_GR_.abcdef.ghijkl._INBOX.abc", true],
    ["", "_GR_.abcdef.ghijkl.cmd.session.vic.delete", false],
    ["", "cmd.session.vic.delete", false],
    ["", "$KV.planck_registry.store", false],
    ["", "_INBOX", false],
    ["", "_INBOX.*", false],
    ["", "_INBOX.a b", false],
    ["", "", false],
    ["p2", "p2.agent.a1", false],
    ["p2", "replies.team.x", true],
    ["p2", "replies.teams.x", false],
    ["_INBOX", "_INBOX.cmd.session.vic.delete", false],
  ];
  for (const [prefix, subject, admitted] of cases) assert.equal(admits(subject, prefix, ["replies.team"]), admitted, subject);
});

test("the environment says how to connect", () => {
  const environment = { NATS_URL: "nats://ann:p%40ss@one:4222,two", PLANCK_NATS_INBOX_PREFIX: "_INBOX_ann" };
  const options = optionsOf(environment, "test");
  assert.deepEqual([options.servers, options.user, options.pass], [["nats://one:4222", "two"], "ann", "p@ss"]);
  assert.equal(options.inboxPrefix, "_INBOX_ann");
  assert.equal(optionsOf({ NATS_URL: "nats://secret@one" }, "test").token, "secret");
  for (const [said, told] of [
    [{ PLANCK_NATS_TLS_CERT: "a.pem" }, /set PLANCK_NATS_TLS_CERT and PLANCK_NATS_TLS_KEY, or neither/],
    [{ PLANCK_NATS_TLS_CA: "/no/ca.pem" }, /cannot read PLANCK_NATS_TLS_CA=\/no\/ca.pem/],
    [{ NATS_URL: "nats://user:secret@one:42x" }, /cannot read NATS_URL \(nats:\/\/one:42x\); expected/],
    [{ NATS_NKEY: "/no/seed" }, /cannot read NATS_NKEY=\/no\/seed/],
  ] as const) {
    assert.throws(() => optionsOf(said, "test"), told);
  }
});

test("calls are answered", async () => {
  const harness = new Harness(make());
  assert.equal((await harness.call("add", { numbers: [1, 2] })).ok, "3");
  assert.match((await harness.call("add", { numbers: [1, "b"] })).error ?? "", /`numbers`\[1\] must be of type number/);
  assert.equal((await harness.call("fail", { unit: "m" })).ok, '{"unit":"m"}');
  assert.equal((await harness.call("fail", { unit: "mi" })).error, "no miles");
  assert.match((await harness.call("none", {})).error ?? "", /there is no tool `none` here/);
  const answer = await harness.call("wait", { seconds: 0 }, { epoch: 3 });
  assert.deepEqual(answer, { ok: "agent 3", progress: [{ message: "waiting", percent: 100 }] });
});

test("wrong requests are errors", async () => {
  const harness = new Harness(make());
  for (const body of ["{", "[]", "{}", '{"v":1,"call_id":"c"}', new Uint8Array([0xff])]) {
    assert.match((await harness.send("add", body)).error ?? "", /malformed/);
  }
  await harness.call("add", { numbers: [] }, { epoch: 5 });
  assert.match((await harness.call("add", { numbers: [] }, { epoch: 4 })).error ?? "", /stale epoch/);
  assert.equal((await harness.call("add", { numbers: [] }, { epoch: 4, agent_id: "other" })).ok, "0");
});

test("an agent that calls is not forgotten", async () => {
  const harness = new Harness(make());
  const call = (agent: string, epoch: number) => harness.call("add", { numbers: [] }, { epoch, agent_id: agent });
  const others = (from: number, to: number) => Promise.all(Array.from({ length: to - from }, (_, at) => call(`b${from + at}`, 1)));
  await call("a", 3);
  for (let from = 0; from < 9_990; from += 10) await others(from, from + 10);
  await call("a", 3);
  for (let from = 9_990; from < 10_050; from += 10) await others(from, from + 10);
  assert.match((await call("a", 2)).error ?? "", /stale epoch/);
});

test("a running call is not run twice, and ends when it is cancelled or late", async () => {
  const harness = new Harness(make());
  const first = harness.call("wait", { seconds: 60 }, { call_id: "c" });
  assert.equal((await harness.call("wait", { seconds: 60 }, { call_id: "c" })).error, "in progress");
  harness.cancel("c");
  assert.match((await first).error ?? "", /abort/);
  assert.match((await harness.call("wait", { seconds: 60 }, { call_id: "c", deadline_ms: 20 })).error ?? "", /out of time/);
  const deaf = harness.call("deaf", {}, { call_id: "d" });
  harness.cancel("d");
  assert.match((await deaf).error ?? "", /cancelled: the answer was no longer wanted/);
});

test("the number of running and waiting calls is bounded", async () => {
  const harness = new Harness(make());
  const ids = Array.from({ length: 35 }, (_, at) => `c${at}`);
  const calls = ids.map((call_id) => harness.call("wait", { seconds: 60 }, { call_id }));
  assert.match((await Promise.race(calls)).error ?? "", /busy/);
  for (const id of ids) harness.cancel(id);
  await Promise.all(calls);
  assert.equal((await harness.call("wait", { seconds: 0 })).ok, "agent 1", "the slots are free again");
});

test("compactors keep calls with their results", async () => {
  const harness = new Harness(make());
  const parts = [[{ type: "text", text: "a" }], [{ type: "tool_call", call_id: "x" }], [{ type: "tool_result", call_id: "x" }]];
  const messages = [...parts, parts[0]!].map((content, at) => ({ id: 7 + at, role: "user", content }));
  assert.deepEqual(await harness.compact("head", messages), { compact: { summary: "short", keep_from: 8 } });
  assert.deepEqual(await harness.compact("head", messages.slice(0, 2)), { skip: true });
});

test("names are checked", () => {
  assert.throws(() => new Sidecar("a b", "1.0.0"), /malformed sidecar name/);
  assert.throws(() => new Sidecar("a", "1.0"), /malformed version/);
  assert.throws(() => make().compactor("head", () => undefined), /is taken/);
});

test("a sidecar without a server stops at once, and logs the cause once", async () => {
  const stop = new AbortController();
  const lines: string[] = [];
  const environment = { NATS_URL: "nats://user:secret@127.0.0.1:1" };
  const serving = make().serve({ stop: stop.signal, environment, log: (line) => void lines.push(line) });
  await sleep(1500);
  stop.abort();
  const began = performance.now();
  await serving;
  assert.ok(performance.now() - began < 1000);
  assert.equal(lines.length, 1, lines.join("\n"));
  assert.match(lines[0]!, /^NATS at nats:\/\/127.0.0.1:1: .*; trying again$/);
});

const url = process.env.NATS_URL;
test("a sidecar serves and leaves cleanly", { skip: url ? false : "NATS_URL names no server" }, async () => {
  const client = await connect({ servers: url!, timeout: 20_000 });
  const news = client.subscribe("sidecar.test")[Symbol.asyncIterator]();
  await client.flush();
  const next = async () => (await news.next()).value.json();
  const stop = new AbortController();
  const serving = make().serve({ stop: stop.signal });
  const hello = await next();
  const info = (await client.request("$SRV.INFO.test", "", { timeout: 20_000 })).json<any>();
  assert.deepEqual([hello.type, hello.instance, info.metadata.planck], ["hello", info.id, "1"]);
  assert.deepEqual(new Set(info.endpoints.map((endpoint: any) => endpoint.queue_group)), new Set(["test"]));

  const ids = { call_id: "c", agent_id: "a", session_id: "s", team_id: "t", epoch: 1 };
  const body = encoded(JSON.stringify({ v: 1, ...ids, args: { seconds: 1 }, deadline_ms: 20_000 }));
  const traced = headers();
  traced.set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  const trace = async (more: object) => {
    const call = JSON.stringify({ v: 1, ...ids, call_id: "t", args: {}, deadline_ms: 20_000 });
    return (await client.request("tool.test.trace", encoded(call), { timeout: 20_000, ...more })).json<any>().ok;
  };
  assert.deepEqual([await trace({ headers: traced }), await trace({})], [traced.get("traceparent"), "none"]);
  const replies = client.subscribe("_INBOX.here")[Symbol.asyncIterator]();
  client.publish("tool.test.wait", body, { reply: "_INBOX.here" });
  assert.ok("progress" in (await replies.next()).value.json());
  stop.abort();
  assert.equal((await next()).type, "bye");
  assert.equal((await replies.next()).value.json().ok, "a 1");
  await serving;
  await assert.rejects(client.request("tool.test.wait", body), /no responders/);
  await client.close();
});
