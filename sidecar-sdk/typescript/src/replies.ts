// Decides which requests are answered: those whose reply subject is an inbox. A sidecar may publish to more subjects than its
// callers, and its answers could be commands of another program.

/** The first words of the cluster's own subjects. */
const OWN = new Set(["agent", "session", "node", "cluster", "sidecar", "cancel", "tool", "compact", "cmd"]);
const LONGEST = 1024;
/** The minimum time between two log lines about refused requests, in milliseconds. */
const QUIET_MS = 60_000;

/** Whether a reply may go to a subject, in a cluster with a subject prefix and further inbox prefixes. */
export function admits(subject: string, prefix = "", more: readonly string[] = []): boolean {
  const words = subject.split(".");
  if (subject.length > LONGEST || words.length < 2 || !words.every((word) => /^[!-~]+$/.test(word) && !/[*>]/.test(word))) return false;
  const within = prefix === "" || subject.startsWith(`${prefix}.`);
  const rest = prefix === "" ? subject : subject.slice(prefix.length + 1);
  if (within && OWN.has(rest.split(".")[0] ?? "")) return false;
  // The server removes the first three words, and the reply goes to the rest.
  if (words[0] === "_GR_") return admits(words.slice(3).join("."), prefix, more);
  return words[0] === "_R_" || words[0]!.startsWith("_INBOX") || more.some((inbox) => subject.startsWith(`${inbox}.`));
}

/** Refuses requests whose reply would go to another subject, counts them, and logs some of them. */
export class ReplyGuard {
  #refused = 0;
  #logged = -Infinity;

  constructor(
    private readonly prefix: string,
    private readonly more: readonly string[],
    private readonly log: (line: string) => void,
  ) {}

  /** Whether a request is performed. One without a reply subject, or with one that is not an inbox, is not. */
  admits(request: string, to: string | undefined): to is string {
    if (!to) return false;
    if (admits(to, this.prefix, this.more)) return true;
    this.#refused += 1;
    if (performance.now() - this.#logged >= QUIET_MS) {
      this.#logged = performance.now();
      this.log(`refused a request on ${JSON.stringify(request)}: its reply would go to ${JSON.stringify(to)}, which is no inbox (${this.#refused} so far)`);
    }
    return false;
  }
}
