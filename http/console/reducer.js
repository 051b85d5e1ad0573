// The state of a session, made from its events. Nothing here does I/O or reads a clock, so the same
// events always make the same state. An item that changes is replaced, never changed in place, so
// that a view can compare items by identity.

/** Returns the state before the first event. */
export function emptyState() {
  return {
    lastSeq: 0,
    isClosed: false,
    agents: new Map(),
    /** What the conversation shows, in order. */
    items: [],
    /** The place of each call's item in `items`. */
    places: new Map(),
    /** The ids of the inputs that turns have taken. */
    inputs: new Set(),
  };
}

/** Applies one event, durable or live, and returns the state. */
export function apply(state, event) {
  if (event.seq !== undefined) {
    if (event.seq <= state.lastSeq) return state;
    state.lastSeq = event.seq;
  }
  const agent = agentOf(state, event);
  if (event.seq === undefined && event.epoch < agent.epoch) return state;
  agent.epoch = Math.max(agent.epoch, event.epoch ?? 0);
  if (event.node_id) agent.node = event.node_id;
  if (event.hidden_by) return state;
  HANDLERS[event.type]?.(state, agent, event.data, event);
  return state;
}

/** Returns the agent of an event, which is created at its first event. */
function agentOf(state, event) {
  let agent = state.agents.get(event.agent_id);
  if (!agent) {
    agent = newAgent(event.agent_id, state.agents.size);
    state.agents.set(event.agent_id, agent);
  }
  return agent;
}

function newAgent(id, index) {
  return {
    id,
    index,
    name: "",
    type: "",
    state: "idle",
    node: undefined,
    epoch: 0,
    model: undefined,
    /** The name of the shape in which the turn answers, if it has one. */
    shape: undefined,
    contextTokens: 0,
    cost: 0,
    tokens: 0,
    /** The reply that streams: `turn`, `request` and `parts`. */
    live: undefined,
    /** The ids of the calls that run, and of the open waits. */
    running: new Set(),
    waits: new Set(),
  };
}

/** Takes the names of agents, which events do not carry, from the description of the session. */
export function nameAgents(state, rows) {
  for (const row of rows) {
    const agent = agentOf(state, { agent_id: row.id });
    Object.assign(agent, { name: row.name, type: row.type, role: row.role });
    agent.node ??= row.node_id ?? undefined;
    if (row.state === "stopped") agent.state = "stopped";
    else if (agent.state === "stopped") agent.state = "idle";
  }
}

const HANDLERS = {
  session_started: (state, agent, data, event) => notice(state, event, "start", `Session ${data.name} started`),
  session_resumed(state, agent, data, event) {
    state.isClosed = false;
    const from = data.from_node ? ` from node ${short(data.from_node)}` : "";
    notice(state, event, "move", `Resumed${from}: ${data.reason}`);
  },
  session_closed(state, agent, data, event) {
    state.isClosed = true;
    notice(state, event, "end", `Session closed: ${data.reason}`);
  },
  agent_started(state, agent, data) {
    Object.assign(agent, { role: data.role, model: data.model });
  },
  agent_stopped(state, agent, data, event) {
    begin(agent, "stopped");
    notice(state, event, "end", `Stopped: ${data.reason}`);
  },
  turn_start(state, agent, data) {
    begin(agent, "working");
    agent.shape = data.output?.shape?.name;
    for (const input of data.inputs) state.inputs.add(input.id);
  },
  turn_end(state, agent, data, event) {
    begin(agent, "idle");
    for (const id of data.inputs) state.inputs.add(id);
    if (data.output) {
      push(state, { key: `o${event.seq}`, kind: "output", seq: event.seq, agent: event.agent_id, at: event.at, shape: agent.shape, value: data.output });
    }
    if (data.refused) notice(state, event, "warn", "The model refused to answer, or a filter of its provider stopped the answer");
    if (data.outcome === "completed") return;
    const limit = data.limit ? ` (${data.limit})` : "";
    const reason = data.reason ? `: ${data.reason}` : "";
    const text = { aborted: `Turn aborted${reason}`, truncated: "Turn cut off by the model's limit", limit: `Turn ended at a limit${limit}` };
    const isFailure = data.outcome === "truncated" || data.outcome === "limit";
    notice(state, event, "warn", text[data.outcome] ?? `Turn ended: ${data.outcome}`, isFailure);
  },
  error(state, agent, data, event) {
    begin(agent, "idle");
    notice(state, event, "bad", `Turn failed (${data.code}): ${data.reason}`, true);
  },
  text_delta: (state, agent, data, event) => delta(agent, "text", data, event),
  thinking_delta: (state, agent, data, event) => delta(agent, "thinking", data, event),
  message(state, agent, data, event) {
    if (data.message.role === "assistant") agent.live = undefined;
    message(state, event, data.message);
  },
  usage_delta(state, agent, data) {
    agent.contextTokens = data.context_tokens;
    agent.cost = data.total.cost_usd;
    agent.tokens = data.total.input_tokens + data.total.output_tokens;
  },
  tool_start(state, agent, data, event) {
    agent.running.add(data.call_id);
    settle(agent);
    tool(state, event, data, { status: "running", startedAt: event.at, effect: data.effect, args: data.args });
  },
  tool_progress(state, agent, data, event) {
    if (state.places.has(data.call_id)) tool(state, event, data, { progress: data.message });
  },
  tool_end(state, agent, data, event) {
    agent.running.delete(data.call_id);
    if (isInTurn(agent)) settle(agent);
    tool(state, event, data, {
      status: data.error ? "failed" : "done",
      result: data.result,
      durationMs: data.duration_ms,
      progress: undefined,
    });
  },
  wait_opened(state, agent, data, event) {
    agent.waits.add(data.id);
    settle(agent);
    const call = { call_id: data.call_id ?? data.id, name: data.request?.tool ?? data.kind };
    tool(state, event, call, { status: "waiting", wait: { ...data, opened_at: event.at } });
  },
  wait_closed(state, agent, data, event) {
    agent.waits.delete(data.id);
    if (isInTurn(agent)) settle(agent);
    const call = { call_id: data.call_id ?? data.id };
    const item = state.items[state.places.get(call.call_id)];
    if (!item) return;
    const status = item.status === "waiting" ? "answered" : item.status;
    tool(state, event, call, { status, wait: undefined, decision: data });
  },
  retry(state, agent, data, event) {
    agent.live = undefined;
    notice(state, event, "warn", `Model request failed, try ${data.attempt} in ${data.delay_ms} ms: ${data.reason}`);
  },
  compacting(state, agent) {
    agent.state = "compacting";
  },
  compacted(state, agent, data, event) {
    if (isInTurn(agent)) settle(agent);
    notice(state, event, "info", `Context compacted from ${data.tokens_before} to ${data.tokens_after} tokens by ${data.by}`);
  },
  checkpoint: (state, agent, data, event) => notice(state, event, "info", "Earlier messages are replaced by a summary for the model"),
  worker_spawned(state, agent, data, event) {
    const worker = agentOf(state, { agent_id: data.id });
    Object.assign(worker, { name: data.name, type: data.type, node: data.node_id });
    notice(state, event, "spawn", `Started ${data.name} (${data.type}) on node ${short(data.node_id)}`);
  },
  worker_exit: (state, agent, data, event) => notice(state, event, "end", `${data.name} ended: ${data.reason}`),
  tools_changed(state, agent, data, event) {
    const changes = [...data.added.map((name) => `+${name}`), ...data.removed.map((name) => `−${name}`)];
    notice(state, event, "info", `Tools changed: ${changes.join(", ")}`);
  },
  model_changed(state, agent, data, event) {
    agent.model = data.model;
    notice(state, event, "info", `Model changed to ${modelName(data.model)}`);
  },
  rewound(state, agent, data, event) {
    hideFrom(state, data.to);
    notice(state, event, "info", `Rewound to before message ${data.to} by ${data.by}`);
  },
  warning: (state, agent, data, event) => notice(state, event, "warn", data.message),
};

/** Returns the end of an id, enough to recognise it. The beginning is a time, which many ids share. */
export function short(id) {
  const text = String(id ?? "");
  return text.length > 10 ? `…${text.slice(-6)}` : text;
}

export function modelName(model) {
  if (!model) return "";
  return [model.provider, model.model_id ?? model.id ?? model.model].filter(Boolean).join(":");
}

/** Sets the state of an agent that begins or ends a turn, in which nothing runs or waits. */
function begin(agent, state) {
  Object.assign(agent, { state, live: undefined });
  agent.running.clear();
  agent.waits.clear();
}

/** Returns whether the agent is in a turn, as far as the loaded events show. */
function isInTurn(agent) {
  return agent.state !== "idle" && agent.state !== "stopped";
}

/** An agent waits if nothing of it runs and something of it waits. */
function settle(agent) {
  agent.state = agent.waits.size && !agent.running.size ? "waiting" : "working";
}

function push(state, item) {
  state.items.push(item);
  return state.items.length - 1;
}

/** Adds a line about an event. A turn that `isFailure` can be tried again. */
function notice(state, event, tone, text, isFailure = false) {
  const isOfSession = event.type.startsWith("session_") || event.type === "rewound";
  push(state, { isOfSession, key: `n${event.seq}`, kind: "notice", seq: event.seq, agent: event.agent_id, at: event.at, tone, text, isFailure });
}

/** Appends a piece of a reply if it continues the text. A snapshot's piece may repeat the text. */
function delta(agent, type, data, event) {
  if (!isInTurn(agent) || agent.state === "compacting") agent.state = "working";
  const { live } = agent;
  const isNewer = !live || event.turn > live.turn || event.request > live.request;
  if (!isNewer && (event.turn < live.turn || event.request < live.request)) return;
  const parts = isNewer ? [] : live.parts.slice();
  const known = parts[data.part] ?? { type, text: "", length: 0 };
  if (data.offset > known.length) return;
  const size = Array.from(data.text).length;
  if (data.offset + size <= known.length) return;
  const kept = data.offset === known.length ? known.text : Array.from(known.text).slice(0, data.offset).join("");
  parts[data.part] = { type, text: kept + data.text, length: data.offset + size };
  agent.live = { turn: event.turn, request: event.request, parts };
}

function message(state, event, message) {
  const base = { seq: event.seq, agent: event.agent_id, at: message.at ?? event.at };
  switch (message.role) {
    case "assistant":
      return assistant(state, base, message);
    case "tool_result":
      return message.content.forEach((part) => result(state, event, part));
    case "user":
      if (!message.metadata?.inputs?.length) return push(state, { ...base, key: `m${base.seq}`, kind: "custom", custom: "runtime", parts: message.content });
      for (const id of message.metadata.inputs) state.inputs.add(id);
      return push(state, { ...base, key: `m${base.seq}`, kind: "user", by: message.metadata.by, parts: message.content });
    default:
      for (const id of message.metadata?.inputs ?? []) state.inputs.add(id);
      return push(state, {
        ...base,
        key: `m${base.seq}`,
        kind: "custom",
        custom: message.custom ?? "message",
        from: message.metadata?.from,
        to: event.agent_id,
        parts: message.content,
      });
  }
}

/** Adds one item for each run of texts of a reply, and one for each call. */
function assistant(state, base, message) {
  let parts = [];
  const flush = (at) => {
    if (parts.length) {
      push(state, { ...base, key: `m${base.seq}.${at}`, kind: "assistant", parts, isPartial: Boolean(message.metadata?.interrupted) });
    }
    parts = [];
  };
  message.content.forEach((part, at) => {
    if (part.type !== "tool_call") return parts.push(part);
    flush(at);
    const { call_id, name, invalid } = part;
    const place = push(state, { ...base, key: call_id, kind: "tool", call: call_id, name, args: part.args, invalid, status: "called" });
    state.places.set(call_id, place);
  });
  flush("end");
}

/** Takes the result of a call from the saved message, if the end of the call was not read. */
function result(state, event, part) {
  const item = state.items[state.places.get(part.call_id)];
  if (part.type !== "tool_result" || !item || item.result !== undefined) return;
  tool(state, event, part, { status: part.error ? "failed" : "done", result: part.text });
}

/** Changes the item of a call. A call whose message was not read gets an item of its own. */
function tool(state, event, call, changes) {
  let place = state.places.get(call.call_id);
  if (place === undefined) {
    place = push(state, { key: call.call_id, kind: "tool", call: call.call_id, seq: event.seq, agent: event.agent_id, at: event.at, name: call.name ?? "tool", args: {} });
    state.places.set(call.call_id, place);
  }
  state.items[place] = { ...state.items[place], ...changes };
}

function hideFrom(state, seq) {
  state.items = state.items.filter((item) => item.seq < seq);
  state.places = new Map();
  state.items.forEach((item, place) => {
    if (item.kind === "tool") state.places.set(item.call, place);
  });
}
