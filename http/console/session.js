// The page of one session: its conversation, the lanes of its agents, and the prompt box.

import { html, useEffect, useRef, useState } from "./html.js";
import { api } from "./api.js";
import { useBorder } from "./border.js";
import { quoted } from "./format.js";
import { Head } from "./head.js";
import { useAction } from "./live.js";
import { SessionStore } from "./store.js";
import { Conversation } from "./conversation.js";
import { Lanes } from "./lanes.js";
import { Commands, Dialog, ProblemNote } from "./parts.js";

/** Returns the store of a session, and renders again when its state changes. */
export function useSession(session) {
  const [store, setStore] = useState(undefined);
  const [, setVersion] = useState(0);
  useEffect(() => {
    const made = new SessionStore(session);
    const restart = () => made.status === "failed" && made.start();
    made.subscribe(() => setVersion((version) => version + 1));
    addEventListener("planck-key", restart);
    made.start();
    setStore(made);
    return () => {
      removeEventListener("planck-key", restart);
      made.stop();
    };
  }, [session]);
  return store?.asked === session ? store : undefined;
}

export function SessionPage({ session }) {
  const store = useSession(session);
  const [agent, setAgent] = useState("");
  const [target, setTarget] = useState(undefined);
  const [pane, setPane] = useState("conversation");
  const [openTools, setOpenTools] = useState(false);
  const [rewindTo, setRewindTo] = useState(undefined);
  const [share, border] = useBorder("lanes", 34);
  useEffect(() => {
    const toggle = () => setOpenTools((isOpen) => !isOpen);
    addEventListener("planck-open-tools", toggle);
    return () => removeEventListener("planck-open-tools", toggle);
  }, []);
  if (!store?.info) {
    return html`<div class="page">${store?.problem && store.status === "failed" ? html`<h1>${session}</h1><${ProblemNote} problem=${store.problem} />` : html`<p class="muted" role="status">${store?.status === "reconnecting" ? "The front does not answer. Reconnecting…" : "Opening the session…"}</p>`}</div>`;
  }
  const go = (place) => {
    setPane("conversation");
    setAgent("");
    setTarget({ ...place });
  };
  const { info } = store;
  return html`<div class="session">
    <${Head} store=${store} agent=${agent} setAgent=${setAgent} pane=${pane} setPane=${setPane} />
    <div class=${`panes show-${pane}`} style=${{ "--lanes": `${share}%` }}>
      <section class="pane talk" aria-label="Conversation and prompt">
        <${Conversation} store=${store} agent=${agent} target=${target} openTools=${openTools} onRewind=${setRewindTo} />
        <${PromptBox} store=${store} agent=${agent} />
      </section>
      ${border}
      <section class="pane side" aria-label="Lanes"><${Lanes} store=${store} onGo=${go} /></section>
    </div>
    <${Commands} commands=${[`planck session attach ${quoted(info.name)}`, `planck session prompt ${quoted(info.name)} 'TEXT'`, `nats sub 'session.${info.id}'`]} />
    ${rewindTo !== undefined && html`<${RewindDialog} store=${store} to=${rewindTo} onClose=${() => setRewindTo(undefined)} />`}
  </div>`;
}

function PromptBox({ store, agent }) {
  const key = `planck.draft.${store.info.id}`;
  const [value, setValue] = useState(() => sessionStorage.getItem(key) ?? "");
  const [mode, setMode] = useState("queue");
  const field = useRef(null);
  const change = (next) => {
    setValue(next);
    if (next) sessionStorage.setItem(key, next);
    else sessionStorage.removeItem(key);
  };
  const to = agent || undefined;
  const agents = [...store.state.agents.values()];
  const isBusy = agents.some((each) => each.state !== "idle" && each.state !== "stopped");
  const send = (as) => {
    if (!value.trim()) return;
    store.prompt(value, as, to);
    change("");
    field.current?.focus();
  };
  const keys = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send(event.ctrlKey || event.metaKey ? "steer" : mode);
  };
  const receiver = to ? store.state.agents.get(to)?.name : "the team";
  return html`<form class="prompt-box" onSubmit=${(event) => { event.preventDefault(); send(mode); }}>
    <label class="sr" for="prompt">Prompt to ${receiver}</label>
    <textarea id="prompt" ref=${field} rows="2" placeholder=${`Prompt to ${receiver}… (Enter sends, Shift+Enter: new line)`} value=${value} onInput=${(event) => change(event.target.value)} onKeyDown=${keys}></textarea>
    <div class="row">
      ${isBusy && html`<fieldset class="segmented"><legend class="sr">When the agent is busy</legend>
        ${[["queue", "Queue"], ["steer", "Steer"]].map(([name, label]) => html`<label title=${name === "queue" ? "Opens the next turn" : "Joins the running turn before its next model call"}><input type="radio" name="mode" value=${name} checked=${mode === name} onChange=${() => setMode(name)} /><span>${label}</span></label>`)}
      </fieldset>`}
      <span class="grow"></span>
      <button class="primary" type="submit" disabled=${!value.trim()}>Send</button>
    </div>
  </form>`;
}

function RewindDialog({ store, to, onClose }) {
  const action = useAction();
  const rewind = async () => {
    const done = await action.run(() => api.rewind(store.info.id, to));
    if (done) onClose();
  };
  return html`<${Dialog} title="Rewind here?" onClose=${onClose}>
    <p>This hides message ${to} and all later ones, and aborts running turns. Files that tools have changed stay as they are.</p>
    <p class="muted">The same: <code>planck session rewind ${store.info.name} --to ${to}</code></p>
    <${ProblemNote} problem=${action.problem} />
    <div class="row end"><button onClick=${onClose}>Keep</button><button class="danger" disabled=${action.isRunning} onClick=${rewind}>Rewind</button></div>
  <//>`;
}
