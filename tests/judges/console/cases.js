// Plays cases one after the other. A case asks the test that started the program for faults by a line
// `ASK what` on standard output, and goes on when a line comes back on standard input. The first
// failure ends the run.

import { createInterface } from "node:readline";
import { closeBrowser } from "./browser.js";

// Without the test that started it, the program ends, and the browser with it.
const input = createInterface({ input: process.stdin }).on("close", () => process.exit(1));
const lines = input[Symbol.asyncIterator]();

/** Asks the test to do something, and waits until it is done. Returns what the test answers. */
async function ask(what) {
  console.log(`ASK ${what}`);
  return (await lines.next()).value;
}

/** Plays each of `names` with `play`, and ends the program. */
export async function playCases(names, play) {
  let failure;
  for (const [at, name] of names.entries()) {
    const begun = performance.now();
    try {
      await play(name, ask, at);
    } catch (error) {
      failure = error;
      console.log(`FAILED ${name}: ${error.stack}`);
      break;
    }
    console.log(`PASSED ${name} in ${((performance.now() - begun) / 1_000).toFixed(1)} s`);
  }
  await closeBrowser();
  process.exit(failure ? 1 : 0);
}

/** Returns the case with this name. */
export function find(known, name) {
  if (!known[name]) throw new Error(`there are ${Object.keys(known).join(", ")}`);
  return known[name];
}
