// The lanes of a session, made from its events: who worked when, and who asked whom. Nothing here
// does I/O or reads a clock.

import { short } from "./reducer.js";

const PIXELS_PER_SECOND = 24;
/** The least and the greatest distance between two instants at which something begins or ends. */
const LEAST = 2;
const GREATEST = 72;
/** The least height of a bar with a label, in pixels. */
const BAR = 17;
/** A pause in which no agent works is shown as a break if it is longer. */
const PAUSE_MS = 5_000;

export function emptyTimeline() {
  return { lastSeq: 0, agents: new Map(), bars: [], marks: [], arrows: [], open: new Map(), busy: new Map() };
}

/** Applies one event, and returns the timeline. */
export function applyToTimeline(timeline, event) {
  if (event.seq === undefined || event.seq <= timeline.lastSeq) return timeline;
  timeline.lastSeq = event.seq;
  const id = event.agent_id;
  const at = Date.parse(event.at);
  const known = timeline.agents.get(id);
  if (known && known.node !== event.node_id && event.node_id) {
    const text = `moved to node ${short(event.node_id)}`;
    timeline.marks.push({ kind: "failover", agent: id, at, seq: event.seq, text });
  }
  timeline.agents.set(id, { node: event.node_id ?? known?.node });
  HANDLERS[event.type]?.(timeline, event, at);
  return timeline;
}

const HANDLERS = {
  turn_start(timeline, event, at) {
    begin(timeline, "turn", event.agent_id, event, at, `turn ${event.turn}`);
    begin(timeline, "model", event.agent_id, event, at, "model");
    for (const input of event.data.inputs) {
      if (input.from) timeline.arrows.push({ ...origin(timeline, input.from, at), to: event.agent_id, at, seq: event.seq, text: input.kind });
    }
  },
  turn_end(timeline, event, at) {
    finishAll(timeline, event.agent_id, at, event.data.outcome === "completed" ? undefined : event.data.outcome);
  },
  error(timeline, event, at) {
    finishAll(timeline, event.agent_id, at, "error");
    timeline.marks.push({ kind: "error", agent: event.agent_id, at, seq: event.seq, text: event.data.reason });
  },
  message(timeline, event, at) {
    const { role } = event.data.message;
    if (role === "assistant") finish(timeline, `model ${event.agent_id}`, at, undefined, event.seq);
    if (role === "tool_result") begin(timeline, "model", event.agent_id, event, at, "model");
  },
  retry(timeline, event, at) {
    finish(timeline, `model ${event.agent_id}`, at, "retry");
    timeline.marks.push({ kind: "retry", agent: event.agent_id, at, seq: event.seq, text: event.data.reason });
    begin(timeline, "model", event.agent_id, event, at + event.data.delay_ms, `model, try ${event.data.attempt}`);
  },
  tool_start(timeline, event, at) {
    begin(timeline, "tool", event.data.call_id, event, at, event.data.name);
  },
  tool_end(timeline, event, at) {
    finish(timeline, `tool ${event.data.call_id}`, at, event.data.error ? "error" : undefined);
  },
  wait_opened(timeline, event, at) {
    // The request that the limit holds back begins after the answer.
    if (event.data.kind === "budget") drop(timeline, `model ${event.agent_id}`);
    begin(timeline, "wait", event.data.id, event, at, `waits: ${event.data.kind}`);
  },
  wait_closed(timeline, event, at) {
    const isBudget = timeline.open.get(`wait ${event.data.id}`)?.label === "waits: budget";
    finish(timeline, `wait ${event.data.id}`, at, event.data.decision);
    if (isBudget) begin(timeline, "model", event.agent_id, event, at, "model");
  },
  agent_stopped(timeline, event, at) {
    finishAll(timeline, event.agent_id, at);
  },
};

function begin(timeline, kind, key, event, at, label) {
  const id = `${kind} ${key}`;
  if (kind === "model") finish(timeline, id, at);
  const bar = { id: `${kind}${event.seq}`, kind, agent: event.agent_id, from: at, to: undefined, seq: event.seq, label, call: kind === "tool" || kind === "wait" ? key : undefined };
  timeline.open.set(id, bar);
  timeline.bars.push(bar);
}

function finish(timeline, id, at, outcome, seq) {
  const bar = timeline.open.get(id);
  if (!bar) return;
  timeline.open.delete(id);
  bar.to = Math.max(at, bar.from);
  bar.outcome = outcome;
  if (seq !== undefined) bar.seq = seq;
}

function drop(timeline, id) {
  const bar = timeline.open.get(id);
  if (!bar) return;
  timeline.open.delete(id);
  timeline.bars.splice(timeline.bars.lastIndexOf(bar), 1);
}

function finishAll(timeline, agent, at, outcome) {
  for (const [id, bar] of timeline.open) {
    if (bar.agent === agent && bar.kind === "model" && !outcome) {
      // A request that was never answered did not happen: the turn ended without it.
      drop(timeline, id);
    } else if (bar.agent === agent) finish(timeline, id, at, outcome);
  }
}

/** Returns where an input comes from: the running call of its sender, or the sender's lane. */
function origin(timeline, sender, at) {
  for (const bar of [...timeline.open.values()].reverse()) {
    if (bar.agent === sender && bar.kind === "tool") return { from: sender, since: Math.min(bar.from, at) };
  }
  return { from: sender, since: at };
}

/**
 * Gives every instant a height. Time runs downwards. Pauses are shortened and short spans
 * lengthened, so that each bar can be read: heights are in the order of time, not in proportion.
 * Returns `height`, `bars`, `marks`, `arrows` with their places, and `breaks`.
 */
export function layout(timeline, now) {
  const ends = (bar) => bar.to ?? Math.max(now, bar.from);
  const instants = new Set();
  for (const bar of timeline.bars) instants.add(bar.from).add(ends(bar));
  for (const mark of timeline.marks) instants.add(mark.at);
  for (const arrow of timeline.arrows) instants.add(arrow.since).add(arrow.at);
  const times = [...instants].sort((a, b) => a - b);
  const turns = timeline.bars.filter((bar) => bar.kind === "turn");
  const { heights, breaks, height } = distances(times, turns, timeline.bars, ends);
  const y = (at) => heights.get(at) ?? 0;
  return {
    height: height + BAR,
    breaks,
    bars: timeline.bars.map((bar) => ({ ...bar, end: ends(bar), top: y(bar.from), bottom: Math.max(y(ends(bar)), y(bar.from) + (bar.kind === "turn" ? 4 : 15)), isOpen: bar.to === undefined })),
    marks: timeline.marks.map((mark) => ({ ...mark, top: y(mark.at) })),
    arrows: timeline.arrows.map((arrow) => ({ ...arrow, start: y(arrow.since), top: y(arrow.at) })),
  };
}

/** Walks through the instants and adds up their distances. A bar is at least as high as its label. */
function distances(times, turns, bars, ends) {
  const heights = new Map();
  const breaks = [];
  const ending = bars.filter((bar) => bar.kind !== "turn").sort((a, b) => ends(a) - ends(b));
  let height = 10;
  let turn = 0;
  let bar = 0;
  let busyUntil = -Infinity;
  times.forEach((time, index) => {
    const before = times[index - 1];
    if (before !== undefined) {
      for (; turn < turns.length && turns[turn].from <= before; turn++) busyUntil = Math.max(busyUntil, ends(turns[turn]));
      const span = time - before;
      const isPause = busyUntil <= before && span > PAUSE_MS;
      if (isPause) breaks.push({ top: height, ms: span, key: before });
      height += isPause ? 34 : Math.min(Math.max((span / 1000) * PIXELS_PER_SECOND, LEAST), GREATEST);
    }
    for (; bar < ending.length && ends(ending[bar]) <= time; bar++) {
      const { from } = ending[bar];
      if (from < time) height = Math.max(height, heights.get(from) + BAR);
    }
    heights.set(time, height);
  });
  return { heights, breaks, height };
}
