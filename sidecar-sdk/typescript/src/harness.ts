// Calls a sidecar's tools in a test, without a node and without NATS. The calls run through the same code that answers a node.

import type { Message } from "./compactor.js";
import type { RequestHandler, Progress } from "./request_handler.js";
import type { Sidecar } from "./sidecar.js";

/** The result of a call: either `ok` or `error` is set. */
export interface Answer {
  ok?: string;
  error?: string;
  progress: Progress[];
}

/** The fields of a call that a test can set. */
export interface Said {
  call_id?: string;
  agent_id?: string;
  epoch?: number;
  deadline_ms?: number;
}

/** A sidecar under test. */
export class Harness {
  readonly #handler: RequestHandler;
  #calls = 0;

  constructor(sidecar: Sidecar) {
    this.#handler = sidecar.handler();
  }

  /** Calls a tool. */
  call(tool: string, args: unknown, said: Said = {}): Promise<Answer> {
    const ids = { call_id: `call-${this.#calls++}`, agent_id: "agent", session_id: "session", team_id: "team" };
    return this.send(tool, JSON.stringify({ v: 1, ...ids, tool, args, epoch: 1, deadline_ms: 60_000, ...said }));
  }

  /** Sends a body unchanged. */
  async send(tool: string, body: string | Uint8Array): Promise<Answer> {
    const progress: Progress[] = [];
    const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
    const { v: _, ...reply } = await this.#handler.tool(tool, bytes, { report: (told) => void progress.push(told) });
    return { ...reply, progress };
  }

  /** Compacts a conversation, and returns the reply without `v`. */
  async compact(compactor: string, messages: Message[], window = 100_000): Promise<Record<string, unknown>> {
    const ids = { call_id: `call-${this.#calls++}`, agent_id: "agent", session_id: "session" };
    const model = { id: "model", context_window: window };
    const tokens = Math.floor(JSON.stringify(messages).length / 4);
    const request = { v: 1, ...ids, compactor, model, messages, tokens, deadline_ms: 60_000 };
    const { v: _, ...reply } = await this.#handler.compact(compactor, new TextEncoder().encode(JSON.stringify(request)));
    return reply;
  }

  /** Cancels a call. */
  cancel(callId: string): void {
    this.#handler.cancel(callId);
  }
}
