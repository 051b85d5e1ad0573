// Compactors replace the older part of a conversation by a summary.

/** A part of a message, as the protocol has it. */
export interface Part {
  type: string;
  text?: string;
  call_id?: string;
  [more: string]: unknown;
}

/** A message, as the protocol has it. */
export interface Message {
  id: number;
  role: string;
  content: Part[];
  [more: string]: unknown;
}

/** What is to be compacted. */
export class Conversation {
  constructor(
    readonly model: { id: string; context_window: number },
    /** In order; an earlier summary is the first. */
    readonly messages: readonly Message[],
    /** An estimate for all of it. */
    readonly tokens: number,
  ) {}

  /**
   * The id from which on at least the last `keep` messages stay, and every tool's result with its call. `undefined` when
   * nothing would be cut off.
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

/** Stands for every message before `keepFrom`, the id of the first that stays. */
export interface Summary {
  summary: string;
  keepFrom: number;
}

/** `undefined` leaves the conversation as it is. */
export type Compactor = (conversation: Conversation) => Summary | undefined | Promise<Summary | undefined>;
