// The sidecar SIDECAR_NAME. Each `sidecar.tool` offers a function as a tool: `args` defines the schema that the model sees, and
// the types of the function's arguments.

import { setTimeout as sleep } from "node:timers/promises";
import { Sidecar, number, optional, string } from "planck-sidecar";

export const sidecar = new Sidecar("SIDECAR_NAME", "0.1.0");

export const STEPS = 10;

sidecar.tool(
  "sort_words",
  {
    description: "Sorts the words of a text.",
    effect: "pure",
    args: {
      text: string("The text whose words to sort"),
      seconds: optional(number("How long to take over it"), 0),
    },
  },
  async ({ text, seconds }, context) => {
    for (let step = 0; step < STEPS; step++) {
      // A progress report also extends the time for which the node waits.
      context.progress(`step ${step + 1} of ${STEPS}`, (100 * step) / STEPS);
      // The signal is aborted when the answer is no longer wanted, which ends the wait. Pass it on to every slow operation.
      await sleep((1000 * Math.max(0, seconds)) / STEPS, undefined, { signal: context.signal });
    }
    // An exception becomes the error that the model reads.
    const words = text.split(/\s+/).filter(Boolean);
    if (words.length === 0) throw new Error("the text has no words; give one that has");
    return words.sort().join(" ");
  },
);
