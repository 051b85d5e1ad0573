// Runs cases one after the other: `node run.js CASE,CASE… ADDRESS`. A case asks the test that started
// it for faults by a line `ASK what` on standard output, and goes on when a line comes back on
// standard input. The first failure ends the run.

import { createInterface } from "node:readline";
import { closeBrowser } from "./browser.js";
import * as basics from "./basics.js";
import * as cluster from "./cluster.js";
import * as faults from "./faults.js";
import * as keys from "./keys.js";
import * as looks from "./looks.js";
import * as turns from "./turns.js";
import * as waits from "./waits.js";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Asks the test to do something, and waits until it is done. Returns what the test answers. */
async function ask(what) {
  console.log(`ASK ${what}`);
  const { value, done } = await lines.next();
  if (done) throw new Error(`the test is gone before it could ${what}`);
  return value;
}

const known = { ...basics, ...cluster, ...faults, ...keys, ...looks, ...turns, ...waits };
const [names, address] = process.argv.slice(2);
let failure;
for (const name of names.split(",")) {
  const begun = performance.now();
  try {
    if (!known[name]) throw new Error(`there are ${Object.keys(known).join(", ")}`);
    await known[name]({ address, ask });
  } catch (error) {
    failure = error;
    console.log(`FAILED ${name}: ${error.stack}`);
    break;
  }
  console.log(`PASSED ${name} in ${((performance.now() - begun) / 1_000).toFixed(1)} s`);
}
await closeBrowser();
process.exit(failure ? 1 : 0);
