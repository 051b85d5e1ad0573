// The store of one session: loads the end of its log, follows it, and tells the views when the
// state has changed. Earlier events are loaded on demand.

import { api, newId } from "./api.js";
import { follow } from "./sse.js";
import { apply, emptyState, nameAgents } from "./reducer.js";
import { applyToTimeline, emptyTimeline } from "./timeline.js";

/** How many of the latest events are loaded at first. */
const TAIL = 400;
/** The number of events in one page. */
const PAGE = 500;
/** How many earlier events one step back loads. */
const STEP = 2_000;
/** The events after which the description of the session is read again. */
const CHANGE_INFO = new Set(["agent_started", "agent_stopped", "session_closed", "session_resumed", "turn_end", "error", "model_changed", "wait_opened", "wait_closed"]);

export class SessionStore {
  constructor(session) {
    this.asked = session;
    this.info = undefined;
    /** The description of the orchestrator, which has the model. */
    this.lead = undefined;
    this.status = "connecting";
    this.problem = undefined;
    this.isCaughtUp = false;
    this.isLoadingEarlier = false;
    /** Prompts that no turn has taken yet: `{id, text, mode, agent, status, problem}`. */
    this.prompts = [];
    this.listeners = new Set();
    this.isDue = false;
    this.reset(1);
  }

  reset(from) {
    this.first = from;
    /** The durable events, in order. They are kept to make the state again. */
    this.events = [];
    this.rebuild();
  }

  /** Makes the state again from all loaded events. */
  rebuild() {
    this.state = emptyState();
    this.timeline = emptyTimeline();
    if (this.info) nameAgents(this.state, this.info.agents);
    for (const event of this.events) this.applyToBoth(event);
  }

  applyToBoth(event) {
    apply(this.state, event);
    applyToTimeline(this.timeline, event);
  }

  async start() {
    try {
      await this.readInfo();
    } catch (problem) {
      if (this.isStopped) return;
      if (problem.status === 0 || problem.retryable) {
        this.setStatus("reconnecting", problem);
        this.retry = setTimeout(() => this.start(), 1_000);
      } else this.setStatus("failed", problem);
      return;
    }
    if (this.isStopped) return;
    this.reset(Math.max(1, this.info.head - TAIL + 1));
    const path = `/v1/sessions/${encodeURIComponent(this.info.id)}/events`;
    this.stream = follow({
      path: () => `${path}?from=${this.first}`,
      lastId: () => (this.events.length ? String(this.state.lastSeq) : undefined),
      onFrame: (frame) => this.take(frame),
      onStatus: (status, problem) => this.setStatus(status, problem),
    });
  }

  stop() {
    this.isStopped = true;
    clearTimeout(this.retry);
    clearTimeout(this.infoTimer);
    this.stream?.stop();
    this.listeners.clear();
  }

  /** Reads the description of the session, for the names and hosts of agents and the totals. */
  async readInfo() {
    this.info = await api.session(this.asked);
    nameAgents(this.state, this.info.agents);
    this.changed();
    const lead = this.info.agents.find((agent) => agent.role === "orchestrator") ?? this.info.agents[0];
    // A session opens without it, because the node of the agent may just be replaced.
    if (lead) api.agent(lead.id).then((info) => {
      this.lead = info;
      this.changed();
    }, () => {});
  }

  setStatus(status, problem) {
    this.status = status;
    this.problem = problem;
    if (status !== "open") this.isCaughtUp = false;
    // The place is beyond the log: another store has this session now, or a rewritten one.
    if (status === "failed" && problem?.status === 400 && this.events.length) {
      this.reset(1);
      this.start();
    }
    this.changed();
  }

  take(frame) {
    const data = JSON.parse(frame.data);
    switch (frame.name) {
      case undefined:
        this.takeEvent(data);
        break;
      case "retracted":
        this.events = this.events.filter((event) => event.seq !== data.seq);
        this.rebuild();
        break;
      case "caught_up":
        this.isCaughtUp = true;
        break;
      case "head":
        break;
      case "error":
        if (data.status >= 400 && data.status < 500) {
          this.stream.stop();
          this.setStatus("failed", Object.assign(new Error(data.detail), data));
        }
        break;
    }
    this.changed();
  }

  takeEvent(event) {
    if (event.seq !== undefined) {
      if (event.seq <= this.state.lastSeq) return;
      this.events.push(event);
      if (CHANGE_INFO.has(event.type)) this.readInfoSoon();
    }
    this.applyToBoth(event);
    if (event.type === "turn_start" || event.type === "message") this.forgetTakenPrompts();
  }

  readInfoSoon() {
    clearTimeout(this.infoTimer);
    this.infoTimer = setTimeout(() => !this.isStopped && this.readInfo().catch(() => {}), 150);
  }

  get isClosed() {
    return this.state.isClosed || this.info?.state === "closed";
  }

  forgetTakenPrompts() {
    this.prompts = this.prompts.filter((prompt) => !this.state.inputs.has(prompt.id));
  }

  get hasEarlier() {
    return this.first > 1;
  }

  /** Loads a step of events before the first loaded one. */
  async loadEarlier() {
    if (!this.hasEarlier || this.isLoadingEarlier) return;
    this.isLoadingEarlier = true;
    this.changed();
    try {
      const end = this.first;
      const from = Math.max(1, end - STEP);
      const earlier = [];
      for (let next = from; next < end; ) {
        const page = await api.events(this.info.id, { from: next, limit: Math.min(PAGE, end - next) });
        if (!page.events.length) break;
        earlier.push(...page.events.filter((event) => event.seq < end));
        next = page.next;
      }
      const live = new Map([...this.state.agents].map(([id, agent]) => [id, agent.live]));
      this.events = earlier.concat(this.events);
      this.first = from;
      this.rebuild();
      for (const [id, text] of live) {
        const agent = this.state.agents.get(id);
        if (agent && text) Object.assign(agent, { live: text, state: "working" });
      }
    } finally {
      this.isLoadingEarlier = false;
      this.changed();
    }
  }

  /** Sends a prompt. If the front does not answer, the same prompt can be sent again. */
  async prompt(text, mode, agent) {
    const prompt = { id: newId(), text, mode, agent, status: "sending" };
    this.prompts = [...this.prompts, prompt];
    await this.send(prompt);
  }

  async send(prompt) {
    this.update(prompt, { status: "sending", problem: undefined });
    try {
      const { text, mode, agent, id } = prompt;
      await api.prompt(this.asked, { text, mode, agent, prompt_id: id });
      this.update(prompt, { status: "queued" });
    } catch (problem) {
      this.update(prompt, { status: "failed", problem });
    }
    this.forgetTakenPrompts();
    this.changed();
  }

  drop(prompt) {
    this.prompts = this.prompts.filter((other) => other.id !== prompt.id);
    this.changed();
  }

  update(prompt, changes) {
    Object.assign(prompt, changes);
    this.prompts = this.prompts.map((other) => (other.id === prompt.id ? { ...prompt } : other));
    this.changed();
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Tells the views once per frame that something has changed. */
  changed() {
    if (this.isDue) return;
    this.isDue = true;
    const tell = () => {
      this.isDue = false;
      for (const listener of this.listeners) listener();
    };
    // A hidden tab draws no frames, and its title should still be current.
    if (document.hidden) setTimeout(tell, 250);
    else requestAnimationFrame(tell);
  }
}
