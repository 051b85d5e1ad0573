// A sidecar on the bare NATS client, with a tool and everything the protocol requires.
import { setTimeout as sleep } from "node:timers/promises";
import { connect, type ServiceMsg } from "nats";

const name = "text-typescript";
const nc = await connect({ servers: process.env.NATS_URL, maxReconnectAttempts: -1 });
const running = new Map<string, AbortController>();
const epochs = new Map<string, number>();
const tasks = new Set<Promise<void>>();

// Throws if the message is too large for NATS.
function send(subject: string, said: object) {
  nc.publish(subject, JSON.stringify({ v: 1, ...said }));
}

async function repeat(reply: string, args: any, signal: AbortSignal): Promise<string> {
  if (typeof args?.text !== "string" || !(args.times >= 0)) throw new Error("expected a text, and how often");
  for (let step = 0; step < 10 && args.seconds; step++) {
    send(reply, { progress: { message: `${10 - step} to go`, percent: step * 10 } });
    await sleep(args.seconds * 100, undefined, { signal });
  }
  return args.text.repeat(args.times);
}

async function answer(message: ServiceMsg) {
  let mine: string | undefined;
  try {
    const call = message.json<any>();
    if (!call?.call_id || !call.agent_id) throw new Error("malformed request");
    if (call.epoch < (epochs.get(call.agent_id) ?? 0)) throw new Error("stale epoch: another node has taken over this agent");
    epochs.set(call.agent_id, call.epoch);
    if (running.has(call.call_id)) throw new Error("in progress");
    running.set((mine = call.call_id as string), new AbortController());
    const signal = AbortSignal.any([running.get(mine)!.signal, AbortSignal.timeout(call.deadline_ms)]);
    send(message.reply!, { ok: await repeat(message.reply!, call.args, signal) });
  } catch (error) {
    send(message.reply!, { error: String(error instanceof Error ? error.message : error) });
  }
  if (mine) running.delete(mine);
}

nc.subscribe(`cancel.${name}`, { callback: (_, message) => running.get(message.json<any>().call_id)?.abort() });
const service = await nc.services.add({ name, version: "1.0.0", queue: name, metadata: { planck: "1" } });
const properties = { text: { type: "string" }, times: { type: "integer" }, seconds: { type: "number" } };
const parameters = JSON.stringify({ type: "object", required: ["text", "times"], properties });
service.addEndpoint("repeat", {
  subject: `tool.${name}.repeat`,
  metadata: { kind: "tool", description: "Repeats a text.", parameters, effect: "pure" },
  handler: (_, message) => {
    if (!message.reply) return;
    const task = answer(message).finally(() => tasks.delete(task));
    tasks.add(task);
  },
});
const tell = (type: string) => send(`sidecar.${name}`, { type, sidecar: name, instance: service.info().id });
tell("hello");
process.once("SIGTERM", () => { tell("bye"); service.stop().then(() => Promise.all(tasks)).then(() => nc.drain()); });
