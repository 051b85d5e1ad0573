// Runs cases one after the other: `node run.js KIND/CASE,KIND/CASE… FRONT PORT`. The kind is the page
// on which the case is played, and the pages are served on the port. A case asks the test that
// started it for faults by a line `ASK what` on standard output, and goes on when a line comes back on
// standard input. The first failure ends the run.

import { createInterface } from "node:readline";
import { closeBrowser } from "../console/browser.js";
import * as faults from "./faults.js";
import * as guide from "./guide.js";
import { serve } from "./pages.js";
import * as talk from "./talk.js";

// Without the test that started it, the program ends, and the browser with it.
const input = createInterface({ input: process.stdin }).on("close", () => process.exit(1));
const lines = input[Symbol.asyncIterator]();

/** Asks the test to do something, and waits until it is done. Returns what the test answers. */
async function ask(what) {
  console.log(`ASK ${what}`);
  return (await lines.next()).value;
}

const known = { ...faults, ...guide, ...talk };
const [cases, front, port] = process.argv.slice(2);
const server = await serve(front, Number(port));
let failure;
for (const [at, chosen] of cases.split(",").entries()) {
  const [kind, name] = chosen.split("/");
  const begun = performance.now();
  try {
    if (!known[name]) throw new Error(`there are ${Object.keys(known).join(", ")}`);
    await known[name]({ front, pages: `http://127.0.0.1:${port}`, kind, chat: `${kind}-${at}`, ask });
  } catch (error) {
    failure = error;
    console.log(`FAILED ${chosen}: ${error.stack}`);
    break;
  }
  console.log(`PASSED ${chosen} in ${((performance.now() - begun) / 1_000).toFixed(1)} s`);
}
await closeBrowser();
server.close();
process.exit(failure ? 1 : 0);
