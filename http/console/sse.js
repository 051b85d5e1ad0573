// A stream of server-sent events over `fetch`, because `EventSource` cannot send a key. The stream
// connects again by itself, and continues after the last event that had an id.

import { authorization, problemOf } from "./api.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 5_000;
/** The front sends a comment every 15 s, so a longer silence means that the connection is lost. */
const SILENCE_MS = 40_000;
/** A tab that is hidden for longer gives its connection back, because a browser has only six. */
const HIDDEN_MS = 60_000;

/** Splits a stream of text into frames. Feed it with pieces of any size. */
export class FrameParser {
  #rest = "";

  /** Returns the frames that end in this piece, each with `id`, `name` and `data`. */
  push(piece) {
    const text = this.#rest + piece;
    const frames = [];
    let start = 0;
    for (let end; (end = text.indexOf("\n\n", start)) >= 0; start = end + 2) {
      frames.push(parse(text.slice(start, end)));
    }
    this.#rest = text.slice(start);
    return frames;
  }
}

function parse(text) {
  const frame = { id: undefined, name: undefined, data: "" };
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(colon + 1).replace(/^ /, "");
    const field = line.slice(0, colon);
    if (field === "id") frame.id = value;
    else if (field === "event") frame.name = value;
    else if (field === "data") frame.data += value;
  }
  return frame;
}

/** Returns the pause before the given attempt, which spreads the returns of many clients. */
export function pauseBefore(attempt, random) {
  const longest = Math.min(FIRST_PAUSE_MS * 2 ** attempt, LONGEST_PAUSE_MS);
  return longest * (0.5 + random / 2);
}

/**
 * Follows a stream until `stop` is called. `options` has `path()`, the path to open; `lastId()`,
 * the id of the last event or undefined; `onFrame(frame)`; and `onStatus(status, problem)`, which
 * gets `connecting`, `open`, `reconnecting`, or `failed` if the front refuses for good.
 */
export function follow(options) {
  let stopped = false;
  let attempt = 0;
  let abort = new AbortController();
  let wake = () => {};
  let isPaused = false;
  let hiding;
  const reconnect = () => wake();
  const seen = () => {
    clearTimeout(hiding);
    if (document.hidden) {
      hiding = setTimeout(() => {
        isPaused = true;
        abort.abort();
      }, HIDDEN_MS);
      return;
    }
    isPaused = false;
    wake();
  };

  async function run() {
    options.onStatus("connecting");
    while (!stopped) {
      try {
        await connect();
      } catch (problem) {
        if (stopped) return;
        if (problem.status >= 400 && problem.status < 500 && problem.status !== 429) {
          options.onStatus("failed", problem);
          return;
        }
      }
      if (stopped) return;
      options.onStatus("reconnecting");
      await new Promise((resolve) => {
        wake = resolve;
        if (!isPaused) setTimeout(resolve, pauseBefore(attempt++, Math.random()));
      });
    }
  }

  async function connect() {
    abort = new AbortController();
    let timer;
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    watch();
    try {
      const id = options.lastId();
      const headers = { ...authorization(), accept: "text/event-stream" };
      if (id !== undefined) headers["last-event-id"] = id;
      const response = await fetch(options.path(), { headers, signal: abort.signal });
      if (!response.ok) throw await problemOf(response, headers);
      attempt = 0;
      options.onStatus("open");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new FrameParser();
      for (;;) {
        const { value, done } = await reader.read();
        if (done || stopped) return;
        watch();
        for (const frame of parser.push(value)) {
          if (frame.data) options.onFrame(frame);
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }

  addEventListener("online", reconnect);
  document.addEventListener("visibilitychange", seen);
  run();
  return {
    stop() {
      stopped = true;
      clearTimeout(hiding);
      removeEventListener("online", reconnect);
      document.removeEventListener("visibilitychange", seen);
      abort.abort();
      wake();
    },
  };
}
