// A sidecar with two tools and a compactor, on the SDK. The tests of the checker run it.

import { setTimeout as sleep } from "node:timers/promises";

import { Sidecar, integer, number, string } from "../src/index.js";

const sidecar = new Sidecar("text-typescript-sdk", "1.0.0");

sidecar.tool(
  "repeat",
  { description: "Repeats a text.", effect: "pure", args: { text: string("What to repeat"), times: integer("How often") } },
  ({ text, times }) => text.repeat(times),
);

sidecar.tool(
  "countdown",
  { description: "Counts down, and says how far it is.", effect: "pure", args: { seconds: number("How long it takes") } },
  async ({ seconds }, context) => {
    for (let step = 0; step < 10; step++) {
      context.progress(`${10 - step} to go`, step * 10);
      await sleep(seconds * 100, undefined, { signal: context.signal });
    }
    return "lift-off";
  },
);

sidecar.compactor("requests", (conversation) => {
  const keepFrom = conversation.cut(4);
  if (keepFrom === undefined) return undefined;
  const older = conversation.messages.filter((message) => message.id < keepFrom && message.role === "user");
  const said = older.flatMap((message) => message.content).map((part) => part.text ?? "");
  return { summary: `The user had asked: ${said.join(" ")}`, keepFrom };
});

await sidecar.run();
