// Tests of the tools. They need neither a node nor NATS: the harness calls the tools through the code that answers a node.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Harness } from "planck-sidecar";

import { STEPS, sidecar } from "./sidecar.js";

test("it sorts and reports progress", async () => {
  const answer = await new Harness(sidecar).call("sort_words", { text: "to be or not" });
  assert.equal(answer.ok, "be not or to");
  assert.equal(answer.progress.length, STEPS);
});

test("what it cannot do is an error for the model", async () => {
  const harness = new Harness(sidecar);
  assert.match((await harness.call("sort_words", { text: " " })).error ?? "", /no words/);
  assert.match((await harness.call("sort_words", { text: 7 })).error ?? "", /`text` must be of type string/);
});

test("it stops when the answer is no longer wanted", async () => {
  const harness = new Harness(sidecar);
  const began = performance.now();
  const call = harness.call("sort_words", { text: "a", seconds: 60 }, { call_id: "slow" });
  await sleep(100);
  harness.cancel("slow");
  assert.match((await call).error ?? "", /aborted/);
  assert.ok(performance.now() - began < 5000);
});
