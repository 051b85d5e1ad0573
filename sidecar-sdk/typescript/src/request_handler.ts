// Answers requests, independently of how they arrive. Tracks the running calls, checks who may call, and handles calls that
// are repeated, cancelled, late or that fail.

import { Conversation, type Compactor, type Message, type Summary } from "./compactor.js";
import { Misfit, type Schema } from "./schema.js";

const IN_PROGRESS = "in progress";
/** The number of agents whose epoch is remembered. The agent whose last call is the longest ago is forgotten first. */
const AGENTS = 10_000;
/** How many calls may wait for each one that runs. */
const WAITING = 16;
/** How long a cancelled call has to end by itself, in milliseconds. */
const GRACE_MS = 1000;
/** The maximum duration of a call in milliseconds, whatever its deadline. */
const LONGEST_MS = 86_400_000;
/** The maximum length of a progress message, and how many reports of one call are sent within `REPORT_WINDOW_MS`. */
const LONGEST_REPORT = 4000;
const REPORTS = 64;
const REPORT_WINDOW_MS = 100;

export type Effect = "pure" | "idempotent" | "mutating";

/** The context of one call. */
export interface Context {
  /** The id of the call. It stays the same when the call is sent again, so an idempotent tool can use it. */
  readonly callId: string;
  readonly agentId: string;
  readonly sessionId: string;
  readonly teamId: string;
  /** The epoch of the caller's lease, which rises whenever another node takes the agent over. */
  readonly epoch: number;
  /** The W3C `traceparent` of the call, for spans of your own; `undefined` if the node records no traces. */
  readonly traceparent: string | undefined;
  /**
   * Aborted when the answer is no longer needed, or the deadline has passed. A cancelled call has one second to end by itself
   * before it is answered with an error. JavaScript cannot stop the function, so pass the signal on to everything it awaits.
   */
  readonly signal: AbortSignal;
  /** Returns how many milliseconds the caller still waits for the answer. */
  timeLeft(): number;
  /** Reports progress, which restarts the idle time-out. If there are too many reports, some are left out. */
  progress(message: string, percent?: number): void;
}

/** A progress report. */
export interface Progress {
  message: string;
  percent?: number;
}

export interface Tool {
  readonly name: string;
  readonly metadata: Record<string, string>;
  readonly args: Schema<any>;
  readonly run: (args: any, context: Context) => unknown;
}

export type Reply = { v: 1 } & Record<string, unknown>;

/** The transport of a request. */
export interface Arrival {
  traceparent?: string | undefined;
  report?: (progress: Progress) => void;
}

/** A request that is answered with an error. */
class Refused extends Error {}

interface Caller {
  call_id: string;
  agent_id: string;
  session_id: string;
  deadline_ms: number;
}

interface ToolRequest extends Caller {
  team_id: string;
  epoch: number;
  args: unknown;
}

interface CompactRequest extends Caller {
  model: { id: string; context_window: number };
  messages: Message[];
  tokens: number;
}

export class RequestHandler {
  readonly #running = new Map<string, AbortController>();
  readonly #epochs = new Map<string, number>();
  readonly #queue: (() => void)[] = [];
  #free: number;
  readonly #most: number;

  constructor(
    private readonly tools: ReadonlyMap<string, Tool>,
    private readonly compactors: ReadonlyMap<string, Compactor>,
    atOnce: number,
  ) {
    this.#free = atOnce;
    this.#most = atOnce * (WAITING + 1);
  }

  /** Cancels a call whose answer is no longer needed. */
  cancel(callId: unknown): void {
    if (typeof callId === "string") this.#running.get(callId)?.abort(new Error("cancelled: the answer was no longer wanted"));
  }

  /** Cancels all calls. */
  cancelAll(): void {
    for (const callId of this.#running.keys()) this.cancel(callId);
  }

  async tool(name: string, body: Uint8Array, { traceparent, report }: Arrival = {}): Promise<Reply> {
    return answered(async () => {
      const request = parse<ToolRequest>(body, { team_id: isText, epoch: Number.isInteger, args: isThere });
      const tool = this.tools.get(name);
      if (!tool) throw new Refused(`there is no tool \`${name}\` here`);
      this.#admit(request.agent_id, request.epoch);
      const said = await this.#perform(request, (signal, deadline) => {
        const context = contextOf(request, { signal, deadline, traceparent, report });
        return tool.run(tool.args.fit(request.args, "the arguments"), context);
      });
      return { v: 1, ok: typeof said === "string" ? said : (JSON.stringify(said) ?? "") };
    });
  }

  async compact(name: string, body: Uint8Array): Promise<Reply> {
    return answered(async () => {
      const request = parse<CompactRequest>(body, { model: isObject, messages: Array.isArray, tokens: Number.isInteger });
      const compactor = this.compactors.get(name);
      if (!compactor) throw new Refused(`there is no compactor \`${name}\` here`);
      const conversation = new Conversation(request.model, request.messages, request.tokens);
      const said = (await this.#perform(request, () => compactor(conversation))) as Summary | undefined;
      return said ? { v: 1, compact: { summary: said.summary, keep_from: said.keepFrom } } : { v: 1, skip: true };
    });
  }

  #admit(agent: string, epoch: number): void {
    const highest = this.#epochs.get(agent) ?? epoch;
    if (epoch < highest) throw new Refused(`stale epoch ${epoch}: agent ${agent} has called with ${highest}`);
    this.#epochs.delete(agent);
    this.#epochs.set(agent, epoch);
    if (this.#epochs.size > AGENTS) this.#epochs.delete(this.#epochs.keys().next().value!);
  }

  /** Runs the work when a slot is free, until it ends, is cancelled or runs out of time. */
  async #perform(request: Caller, work: (signal: AbortSignal, deadline: number) => unknown): Promise<unknown> {
    const { call_id: callId } = request;
    if (this.#running.has(callId)) throw new Refused(IN_PROGRESS);
    if (this.#running.size >= this.#most) throw new Refused(`busy: ${this.#running.size} calls run or wait here; try again later`);
    const controller = new AbortController();
    const { signal } = controller;
    this.#running.set(callId, controller);
    const left = Math.min(Math.max(request.deadline_ms, 0), LONGEST_MS);
    let late: NodeJS.Timeout | undefined;
    let grace: NodeJS.Timeout | undefined;
    const over = new Promise<never>((_, reject) => {
      signal.addEventListener("abort", () => (grace = setTimeout(() => reject(new Refused(signal.reason.message)), GRACE_MS)), { once: true });
      late = setTimeout(() => {
        const refused = new Refused("out of time: the call's deadline has passed");
        reject(refused);
        controller.abort(refused);
      }, left);
    });
    try {
      return await Promise.race([this.#inSlot(signal, () => work(signal, performance.now() + left)), over]);
    } finally {
      clearTimeout(late);
      clearTimeout(grace);
      this.#running.delete(callId);
    }
  }

  /** Runs the work in a slot, which is freed when the work ends. That may be after the call was given up. */
  async #inSlot(signal: AbortSignal, work: () => unknown): Promise<unknown> {
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => this.#queue.push(resolve));
    try {
      signal.throwIfAborted();
      return await work();
    } finally {
      const next = this.#queue.shift();
      if (next) next();
      else this.#free += 1;
    }
  }
}

function contextOf(request: ToolRequest, given: Arrival & { signal: AbortSignal; deadline: number }): Context {
  let began = -Infinity;
  let sent = 0;
  return {
    callId: request.call_id,
    agentId: request.agent_id,
    sessionId: request.session_id,
    teamId: request.team_id,
    epoch: request.epoch,
    traceparent: given.traceparent,
    signal: given.signal,
    timeLeft: () => Math.max(0, given.deadline - performance.now()),
    progress(message, percent) {
      const now = performance.now();
      if (now - began >= REPORT_WINDOW_MS) [began, sent] = [now, 0];
      if (++sent > REPORTS) return;
      const told: Progress = { message: String(message).slice(0, LONGEST_REPORT) };
      if (percent !== undefined && Number.isFinite(percent)) told.percent = Math.min(100, Math.max(0, percent));
      given.report?.(told);
    },
  };
}

/** Returns the reply with an `error` for an exception. */
async function answered(work: () => Promise<Reply>): Promise<Reply> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Misfit) return { v: 1, error: `the arguments do not fit: ${error.message}` };
    return { v: 1, error: (error instanceof Error ? error.message || error.name : String(error)) || "the tool failed" };
  }
}

const isText = (value: unknown) => typeof value === "string";
const isThere = (value: unknown) => value !== undefined;
const isObject = (value: unknown) => typeof value === "object" && value !== null && !Array.isArray(value);
const COMMON = { call_id: isText, agent_id: isText, session_id: isText, deadline_ms: Number.isFinite };

function parse<T extends Caller>(body: Uint8Array, more: Record<string, (value: unknown) => boolean>): T {
  let request: any;
  try {
    request = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch (error) {
    throw new Refused(`malformed request: ${(error as Error).message}`);
  }
  if (!isObject(request)) throw new Refused("malformed request: it is no object");
  for (const [key, is] of Object.entries({ ...COMMON, ...more })) {
    if (!is(request[key])) throw new Refused(`malformed request: \`${key}\` is missing or of the wrong type`);
  }
  if (request.v !== 1) throw new Refused("the request has another version of the protocol; this sidecar speaks 1");
  return request;
}
