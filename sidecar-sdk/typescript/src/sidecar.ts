// A sidecar: its tools and compactors, and how it is run.

import type { Compactor } from "./compactor.js";
import { ConnectionError, open, optionsOf, type Environment } from "./connection.js";
import { RequestHandler, type Context, type Effect, type Tool } from "./request_handler.js";
import { object, type ArgsOf, type Fields } from "./schema.js";
import { Serving } from "./serve.js";

const ID = /^[A-Za-z0-9_-]{1,64}$/;
const TOOL_TIMEOUT_MS = 300_000;

export interface SidecarOptions {
  /** The description that `nats service info` shows. */
  description?: string;
  /** How many calls run at once, 64 by default. Up to sixteen times as many wait, and further calls are refused. */
  atOnce?: number;
  /** How long running calls may take to end when the sidecar is stopped, 25 s by default. */
  drainTimeoutMs?: number;
}

export interface ToolOptions<F extends Fields> {
  /** The description for the model. */
  description: string;
  /** The arguments by their names. */
  args: F;
  /** What happens if the tool is run again; `mutating` by default. */
  effect?: Effect;
  /** How long the tool may be silent, 5 minutes by default. Every progress report restarts this time. */
  timeoutMs?: number;
}

export interface ServeOptions {
  /** Stops the service when it is aborted. */
  stop: AbortSignal;
  /** The variables with the settings for NATS; those of the process by default. */
  environment?: Environment;
  /** Gets the log lines; without it nothing is logged. */
  log?: (line: string) => void;
}

/** The tools and compactors that a program offers. All instances of one sidecar have the same name, and share its calls. */
export class Sidecar {
  readonly description: string;
  readonly drainTimeoutMs: number;
  readonly tools = new Map<string, Tool>();
  readonly compactors = new Map<string, Compactor>();
  readonly #atOnce: number;

  constructor(
    readonly name: string,
    readonly version: string,
    options: SidecarOptions = {},
  ) {
    if (!ID.test(name)) throw new TypeError(`malformed sidecar name ${JSON.stringify(name)}: expected 1 to 64 of A-Z a-z 0-9 _ -`);
    if (!/^\d+\.\d+\.\d+$/.test(version)) throw new TypeError(`malformed version ${JSON.stringify(version)}: expected three numbers as in 1.0.0`);
    this.description = options.description ?? "";
    this.drainTimeoutMs = options.drainTimeoutMs ?? 25_000;
    this.#atOnce = Math.max(1, options.atOnce ?? 64);
  }

  /**
   * Adds a function as a tool. Arguments that do not fit never reach it. Its result is the answer (as JSON if it is not a
   * string), and an exception becomes an error for the model.
   */
  tool<F extends Fields>(name: string, options: ToolOptions<F>, run: (args: ArgsOf<F>, context: Context) => unknown): this {
    checkName(name, this.tools);
    const args = object(options.args);
    const metadata = {
      kind: "tool",
      description: options.description,
      parameters: JSON.stringify(args.json),
      effect: options.effect ?? "mutating",
      timeout_ms: String(Math.floor(options.timeoutMs ?? TOOL_TIMEOUT_MS)),
    };
    this.tools.set(name, { name, metadata, args, run });
    return this;
  }

  /** Adds a compactor. Agents refer to it as `<sidecar>.<name>`. */
  compactor(name: string, compact: Compactor): this {
    checkName(name, this.compactors);
    this.compactors.set(name, compact);
    return this;
  }

  /** Creates a request handler. Each one knows only its own calls. */
  handler(): RequestHandler {
    return new RequestHandler(this.tools, this.compactors, this.#atOnce);
  }

  /**
   * Connects with the settings from the environment (`NATS_URL`, `NATS_CREDS`, `NATS_NKEY`, and with the prefix `PLANCK_NATS_`
   * the variables `TLS_CA`, `TLS_CERT`, `TLS_KEY`, `SUBJECT_PREFIX`, `INBOX_PREFIX`, `REPLY_PREFIXES`) and serves until SIGTERM
   * or ctrl-c. A second signal ends it at once. Log lines go to standard error. If it cannot connect, the exit code is 1.
   */
  async run(): Promise<void> {
    const stop = new AbortController();
    const told = () => (stop.signal.aborted ? process.exit(1) : stop.abort());
    const signals = ["SIGTERM", "SIGINT"] as const;
    for (const signal of signals) process.on(signal, told);
    try {
      await this.serve({ stop: stop.signal, log: (line) => console.error(line) });
    } catch (error) {
      if (!(error instanceof ConnectionError)) throw error;
      console.error(error.message);
      process.exitCode = 1;
    } finally {
      for (const signal of signals) process.off(signal, told);
    }
  }

  /** Serves until `stop` is aborted, then takes no more calls and finishes those that run. */
  async serve({ stop, environment = process.env, log = () => undefined }: ServeOptions): Promise<void> {
    if (this.tools.size + this.compactors.size === 0) throw new TypeError("nothing to offer: add a tool or a compactor");
    const client = await open(optionsOf(environment, this.name), stop, log);
    if (!client) return;
    try {
      await new Serving(this, client, environment, log).until(stop);
    } finally {
      await client.close();
    }
  }
}

function checkName(name: string, taken: ReadonlyMap<string, unknown>): void {
  if (!ID.test(name) || taken.has(name)) throw new TypeError(`the name ${JSON.stringify(name)} is taken, or not 1 to 64 of A-Z a-z 0-9 _ -`);
}
