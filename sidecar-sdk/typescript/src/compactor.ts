// Compactors, which replace the older part of a conversation by a summary.

/** A part of a message, in the form of the protocol. */
export interface Part {
  type: string;
  text?: string;
  call_id?: string;
  [more: string]: unknown;
}

/** A message, in the form of the protocol. */
export interface Message {
  id: number;
  role: string;
  content: Part[];
  [more: string]: unknown;
}

/** The conversation to compact. */
export class Conversation {
  constructor(
    readonly model: { id: string; context_window: number },
    /** The messages in order. An earlier summary comes first. */
    readonly messages: readonly Message[],
    /** An estimate for all messages. */
    readonly tokens: number,
  ) {}

  /**
   * Returns the id at which to cut, so that at least the last `keep` messages are kept, and every tool's result with its
   * call. Returns `undefined` if the cut would remove nothing.
   */
  cut(keep: number): number | undefined {
    for (let at = this.messages.length - Math.max(keep, 1); at > 0; at--) {
      const parts = this.messages.slice(at).flatMap((message) => message.content);
      const calls = new Set(parts.filter((part) => part.type === "tool_call").map((part) => part.call_id));
      if (parts.every((part) => part.type !== "tool_result" || calls.has(part.call_id))) return this.messages[at]?.id;
    }
    return undefined;
  }
}

/** Replaces every message before `keepFrom`, which is the id of the first message that is kept. */
export interface Summary {
  summary: string;
  keepFrom: number;
}

/** Makes a summary, or returns `undefined` to leave the conversation as it is. */
export type Compactor = (conversation: Conversation) => Summary | undefined | Promise<Summary | undefined>;
