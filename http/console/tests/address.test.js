import assert from "node:assert/strict";
import { test } from "node:test";
import { keyOf, pageOf } from "../address.js";

test("an address names a page", () => {
  assert.deepEqual(pageOf(""), { name: "sessions", title: "Sessions" });
  assert.equal(pageOf("#/waits").name, "waits");
  assert.deepEqual(pageOf("#/sessions/bold%2Doak"), { name: "session", title: "bold-oak", session: "bold-oak" });
  assert.deepEqual(pageOf("#/sessions/one/agents/two"), { name: "agent", title: "Agent", session: "one", agent: "two" });
});

test("a part that cannot be decoded names nothing that exists", () => {
  assert.deepEqual(pageOf("#/sessions/%"), { name: "session", title: "%", session: "%" });
  assert.equal(pageOf("#/%E0%A4%A").name, "sessions");
});

test("a key stands before the page", () => {
  assert.deepEqual(keyOf("#key=pk_1"), { key: "pk_1", rest: "" });
  assert.deepEqual(keyOf("#key=pk_1/sessions/bold-oak"), { key: "pk_1", rest: "#/sessions/bold-oak" });
  for (const hash of ["", "#/waits", "#/sessions/key=pk_1"]) assert.deepEqual(keyOf(hash), { key: undefined, rest: hash });
});
