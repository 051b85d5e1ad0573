// Runs one case: `node run.js CASE ADDRESS`. A case asks the test that started it for faults by a
// line `ASK what` on standard output, and goes on when a line comes back on standard input.

import { createInterface } from "node:readline";
import * as basics from "./basics.js";
import * as faults from "./faults.js";
import * as looks from "./looks.js";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Asks the test to do something, and waits until it is done. Returns what the test answers. */
async function ask(what) {
  console.log(`ASK ${what}`);
  const { value, done } = await lines.next();
  if (done) throw new Error(`the test is gone before it could ${what}`);
  return value;
}

const cases = { ...basics, ...faults, ...looks };
const [name, address] = process.argv.slice(2);
const run = cases[name];
if (!run) throw new Error(`no case ${name}; there are ${Object.keys(cases).join(", ")}`);
await run({ address, ask });
console.log("PASSED");
process.exit(0);
