// The frame of the console: the pages, the way between them, and the key of the caller.

import { html, render, useEffect, useMemo, useRef, useState } from "./html.js";
import { api, hasKey, onKeyNeeded, setKey } from "./api.js";
import { usePoll } from "./live.js";
import { Dialog } from "./parts.js";
import { KeysDialog, useKeys } from "./keys.js";
import { SessionsPage } from "./sessions.js";
import { StartDialog } from "./start.js";
import { SessionPage } from "./session.js";
import { WaitsPage } from "./waits.js";
import { ClusterPage } from "./cluster.js";
import { AgentPage } from "./agent.js";
import { keyOf, pageOf } from "./address.js";
import { nextTheme, theme } from "./theme.js";

/**
 * Takes the key from an address that `planck serve` prints, and removes it there, so that it is in no copied link. Returns
 * whether there was one.
 */
function takeKey() {
  const { key, rest } = keyOf(location.hash);
  if (key === undefined) return false;
  setKey(key);
  history.replaceState(null, "", location.pathname + location.search + rest);
  return true;
}

function usePage() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => {
      if (takeKey()) dispatchEvent(new Event("planck-key"));
      setHash(location.hash);
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return useMemo(() => pageOf(hash), [hash]);
}

const PAGES = {
  sessions: (page, start) => html`<${SessionsPage} onStart=${start} />`,
  session: (page) => html`<${SessionPage} key=${page.session} session=${page.session} />`,
  agent: (page) => html`<${AgentPage} key=${page.agent} session=${page.session} agent=${page.agent} />`,
  waits: () => html`<${WaitsPage} />`,
  cluster: () => html`<${ClusterPage} />`,
};

function App() {
  const page = usePage();
  const [dialog, setDialog] = useState(undefined);
  const [refused, setRefused] = useState(undefined);
  const waits = usePoll(() => api.waits({ limit: 100 }), 4_000);
  const main = useRef(null);
  const isFirst = useRef(true);
  useEffect(() => {
    onKeyNeeded((problem) => setRefused(problem));
    addEventListener("planck-key", () => setRefused(undefined));
  }, []);
  const waiting = waits.value?.waits.length ?? 0;
  useEffect(() => {
    document.title = `${waiting ? `(${waiting}) ` : ""}${page.title} · Planck`;
  }, [page, waiting]);
  useEffect(() => {
    if (!isFirst.current) {
      setDialog(undefined); // A form that stays open would cover the page to which the person went.
      main.current.focus({ preventScroll: true });
    }
    isFirst.current = false;
  }, [page]);
  useKeys(useMemo(() => ({
    "?": () => setDialog("keys"),
    n: () => setDialog("start"),
    "g s": () => { location.hash = "#/sessions"; },
    "g w": () => { location.hash = "#/waits"; },
    "g c": () => { location.hash = "#/cluster"; },
    "/": () => (document.getElementById("prompt") ?? document.getElementById("search"))?.focus(),
    t: () => dispatchEvent(new Event("planck-open-tools")),
  }), []));
  const started = (session) => {
    setDialog(undefined);
    location.hash = `#/sessions/${session.name}`;
  };
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <${Top} page=${page} waiting=${waiting} onKeys=${() => setDialog("keys")} />
    <main id="main" tabindex="-1" ref=${main} class=${`main-${page.name}`}>${PAGES[page.name](page, () => setDialog("start"))}</main>
    ${dialog === "keys" && html`<${KeysDialog} onClose=${() => setDialog(undefined)} />`}
    ${dialog === "start" && html`<${StartDialog} onClose=${() => setDialog(undefined)} onStarted=${started} />`}
    ${refused && html`<${KeyDialog} problem=${refused} onDone=${() => setRefused(undefined)} />`}`;
}

function Top({ page, waiting, onKeys }) {
  const [shown, setShown] = useState(theme());
  const links = [["sessions", "Sessions"], ["waits", "Waits"], ["cluster", "Cluster"]];
  const isCurrent = (name) => page.name === name || (name === "sessions" && (page.name === "session" || page.name === "agent"));
  return html`<header class="top">
    <a class="brand" href="#/sessions" aria-label="Planck, to the sessions"><img src="/console/icon.svg" alt="" width="22" height="22" /><span>Planck</span></a>
    <nav aria-label="Pages">${links.map(([name, label]) => html`<a href=${`#/${name}`} aria-current=${isCurrent(name) ? "page" : undefined}>${label}${name === "waits" && waiting > 0 && html`<span class="count"><span class="sr">, </span>${waiting}<span class="sr"> open</span></span>`}</a>`)}</nav>
    <span class="grow"></span>
    ${hasKey() && html`<button class="quiet" onClick=${() => { setKey(undefined); location.reload(); }} aria-label="Forget key"><span class="wide">Forget key</span><span class="narrow">🗝</span></button>`}
    <button class="quiet" onClick=${() => setShown(nextTheme())} aria-label=${`Colours: ${shown}. Change`}>${{ system: "◐", light: "☀", dark: "☾" }[shown]}</button>
    <button class="quiet" onClick=${onKeys} aria-label="Show the keys">?</button>
  </header>`;
}

function KeyDialog({ problem, onDone }) {
  const [value, setValue] = useState("");
  const submit = (event) => {
    event.preventDefault();
    setKey(value.trim());
    dispatchEvent(new Event("planck-key"));
  };
  return html`<${Dialog} title="A key is needed" onClose=${onDone}>
    <form onSubmit=${submit}>
      <p>${problem.message}</p>
      <label class="field"><span>Key</span><input type="password" autocomplete="off" value=${value} onInput=${(event) => setValue(event.target.value)} autofocus /></label>
      <p class="muted">The key stays in this tab until it is closed.</p>
      <div class="row end"><button class="primary" disabled=${!value.trim()}>Use the key</button></div>
    </form>
  <//>`;
}

takeKey();
render(html`<${App} />`, document.getElementById("app"));
