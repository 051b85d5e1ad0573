// One instance of a sidecar on NATS. It answers discovery itself, so that requests under way when it leaves are still
// answered.

import { randomUUID } from "node:crypto";
import type { Msg, NatsConnection, Subscription } from "@nats-io/transport-node";

import { shown, type Environment } from "./connection.js";
import type { Reply } from "./request_handler.js";
import { ReplyGuard } from "./replies.js";
import type { Sidecar } from "./sidecar.js";

/** How long the server may take for a confirmation, and how long calls have to end after they were cancelled at the stop. */
const CONFIRM_MS = 5000;
const LAST_MS = 3000;

interface Endpoint {
  name: string;
  subject: string;
  queue_group: string;
  metadata: Record<string, string>;
}

interface Counts {
  num_requests: number;
  num_errors: number;
  processing_time: number;
}

export class Serving {
  readonly #id = randomUUID().replaceAll("-", "");
  readonly #started = new Date().toISOString();
  readonly #prefix: string;
  readonly #replies: ReplyGuard;
  readonly #handler;
  readonly #tasks = new Set<Promise<void>>();
  readonly #endpoints: { info: Endpoint; counts: Counts }[] = [];

  constructor(
    private readonly sidecar: Sidecar,
    private readonly client: NatsConnection,
    environment: Environment,
    private readonly log: (line: string) => void,
  ) {
    this.#prefix = environment.PLANCK_NATS_SUBJECT_PREFIX ?? "";
    const inboxes = [...(environment.PLANCK_NATS_REPLY_PREFIXES ?? "").split(","), environment.PLANCK_NATS_INBOX_PREFIX ?? ""];
    this.#replies = new ReplyGuard(this.#prefix, inboxes.map((inbox) => inbox.trim()).filter(Boolean), log);
    this.#handler = sidecar.handler();
  }

  async until(stop: AbortSignal): Promise<void> {
    const { name, version } = this.sidecar;
    void this.#watch();
    this.#subscribe(this.#on(`cancel.${name}`), (message) => this.#handler.cancel(callId(message)));
    const requests = [...this.sidecar.tools.values()].map((tool) => this.#serve("tool", tool.name, tool.metadata));
    const compactor = { kind: "compactor", timeout_ms: "120000" };
    requests.push(...[...this.sidecar.compactors.keys()].map((made) => this.#serve("compact", made, compactor)));
    const subjects = ["PING", "INFO", "STATS"].flatMap((verb) => ["", `.${name}`, `.${name}.${this.#id}`].map((rest) => `$SRV.${verb}${rest}`));
    const discovery = subjects.map((subject) => this.#subscribe(subject, (message) => this.#discover(message)));
    await this.client.flush();
    this.#tell("hello");
    this.log(`serving ${name} ${version} at ${shown(this.client.getServer())}`);
    await new Promise<void>((resolve) => (stop.aborted ? resolve() : stop.addEventListener("abort", () => resolve(), { once: true })));
    await this.#leave(requests, discovery);
  }

  /** Takes no more calls, and finishes those that run. */
  async #leave(requests: Subscription[], discovery: Subscription[]): Promise<void> {
    this.log(`${this.sidecar.name} takes no more calls and finishes those that run`);
    for (const subscription of discovery) subscription.unsubscribe();
    this.#tell("bye");
    await within(CONFIRM_MS, Promise.all(requests.map((subscription) => subscription.drain())));
    if (!(await within(this.sidecar.drainTimeoutMs, Promise.all(this.#tasks)))) {
      this.log(`cancelling ${this.#tasks.size} calls that did not end in time`);
      this.#handler.cancelAll();
      await within(LAST_MS, Promise.all(this.#tasks));
    }
    await within(CONFIRM_MS, this.client.flush());
  }

  /** Publishes `hello` again after each reconnect, and logs the errors of the connection. */
  async #watch(): Promise<void> {
    for await (const status of this.client.status()) {
      if (status.type === "reconnect") this.#tell("hello");
      else if (status.type === "error") this.log(`NATS: ${status.error.message}`);
      else if (status.type === "disconnect") this.log("the connection to NATS is lost; trying again");
    }
  }

  #on(subject: string): string {
    return this.#prefix === "" ? subject : `${this.#prefix}.${subject}`;
  }

  #subscribe(subject: string, take: (message: Msg) => void, queue?: string): Subscription {
    const callback = (error: Error | null, message: Msg) => (error ? this.log(`NATS: ${error.message}`) : take(message));
    return this.client.subscribe(subject, { callback, ...(queue && { queue }) });
  }

  #serve(kind: "tool" | "compact", name: string, metadata: Record<string, string>): Subscription {
    const subject = this.#on(`${kind}.${this.sidecar.name}.${name}`);
    const info = { name, subject, queue_group: this.sidecar.name, metadata };
    const counts = { num_requests: 0, num_errors: 0, processing_time: 0 };
    this.#endpoints.push({ info, counts });
    const take = (message: Msg) => {
      const reply = message.reply;
      if (!this.#replies.admits(message.subject, reply)) return;
      const task: Promise<void> = this.#answer(kind, name, message, reply, counts).finally(() => this.#tasks.delete(task));
      this.#tasks.add(task);
    };
    return this.#subscribe(subject, take, this.sidecar.name);
  }

  async #answer(kind: "tool" | "compact", name: string, message: Msg, to: string, counts: Counts): Promise<void> {
    const began = process.hrtime.bigint();
    let open = true;
    const report = (progress: object) => void (open && this.#publish(to, { progress }));
    const traceparent = message.headers?.get("traceparent") || undefined;
    const said = kind === "tool" ? await this.#handler.tool(name, message.data, { traceparent, report }) : await this.#handler.compact(name, message.data);
    open = false;
    const reply = this.#carried(said);
    this.#publish(to, reply);
    counts.num_requests += 1;
    counts.num_errors += "error" in reply ? 1 : 0;
    counts.processing_time += Number(process.hrtime.bigint() - began);
  }

  /** Returns the reply, or an error instead if the reply is too large for NATS. */
  #carried(reply: Reply): Reply {
    const most = this.client.info?.max_payload ?? Infinity;
    const bytes = Buffer.byteLength(JSON.stringify(reply));
    return bytes <= most ? reply : { v: 1, error: `the answer has ${bytes} bytes, and NATS carries at most ${most}` };
  }

  #discover(message: Msg): void {
    const to = message.reply;
    if (!this.#replies.admits(message.subject, to)) return;
    const verb = message.subject.split(".")[1] ?? "";
    const { name, version, description } = this.sidecar;
    const metadata = { planck: "1", prefix: this.#prefix };
    const said: Record<string, unknown> = { type: `io.nats.micro.v1.${verb.toLowerCase()}_response`, name, id: this.#id, version, metadata };
    if (verb === "INFO") Object.assign(said, { description, endpoints: this.#endpoints.map(({ info }) => info) });
    if (verb === "STATS") Object.assign(said, { started: this.#started, endpoints: this.#endpoints.map(stats) });
    this.#send(to, said);
  }

  #tell(type: "hello" | "bye"): void {
    this.#publish(this.#on(`sidecar.${this.sidecar.name}`), { type, sidecar: this.sidecar.name, instance: this.#id });
  }

  #publish(subject: string, said: object): void {
    this.#send(subject, { v: 1, ...said });
  }

  #send(subject: string, said: object): void {
    try {
      this.client.publish(subject, JSON.stringify(said));
    } catch (error) {
      this.log(`cannot publish: ${(error as Error).message}`);
    }
  }
}

function stats({ info: { metadata: _, ...info }, counts }: { info: Endpoint; counts: Counts }): object {
  return { ...info, ...counts, average_processing_time: Math.floor(counts.processing_time / Math.max(1, counts.num_requests)), last_error: "" };
}

function callId(message: Msg): unknown {
  try {
    return message.json<{ call_id?: unknown } | null>()?.call_id;
  } catch {
    return undefined; // the cancel request is malformed
  }
}

/** Whether the work ended in time. */
async function within(milliseconds: number, work: Promise<unknown>): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => (timer = setTimeout(() => resolve(false), milliseconds)));
  try {
    return await Promise.race([work.then(() => true, () => true), late]);
  } finally {
    clearTimeout(timer);
  }
}
