// Which requests are answered: those whose reply goes to an inbox. A sidecar may publish more than those who ask it, and its
// answers can be another program's commands.

/** First words of the cluster's own subjects. */
const OWN = new Set(["agent", "session", "node", "cluster", "sidecar", "cancel", "tool", "compact", "cmd"]);
const LONGEST = 1024;
/** A flood of refused requests is logged once in this time. */
const QUIET_MS = 60_000;

/** Whether a reply may go to a subject, in a cluster with a subject prefix and further inbox prefixes. */
export function admits(subject: string, prefix = "", more: readonly string[] = []): boolean {
  const words = subject.split(".");
  if (subject.length > LONGEST || words.length < 2 || !words.every((word) => /^[!-~]+$/.test(word) && !/[*>]/.test(word))) return false;
  const within = prefix === "" || subject.startsWith(`${prefix}.`);
  const rest = prefix === "" ? subject : subject.slice(prefix.length + 1);
  if (within && OWN.has(rest.split(".")[0] ?? "")) return false;
  // The server takes the first three words off again: what is behind them is where the reply goes.
  if (words[0] === "_GR_") return admits(words.slice(3).join("."), prefix, more);
  return words[0] === "_R_" || words[0]!.startsWith("_INBOX") || more.some((inbox) => subject.startsWith(`${inbox}.`));
}

/** Refuses requests whose reply would go elsewhere, counts them, and logs some of them. */
export class ReplyGuard {
  #refused = 0;
  #logged = -Infinity;

  constructor(
    private readonly prefix: string,
    private readonly more: readonly string[],
    private readonly log: (line: string) => void,
  ) {}

  /** A request without a reply subject, or whose reply would go to no inbox, is not done. */
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
