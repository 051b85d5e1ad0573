// Everything that waits for a person, over all sessions.

import { html, useEffect, useRef, useState } from "./html.js";
import { api } from "./api.js";
import { ago, count } from "./format.js";
import { Asker, useSessionsOf } from "./asking.js";
import { WaitCard } from "./answer.js";
import { Decided } from "./decided.js";
import { useNow, usePoll } from "./live.js";
import { Commands, Empty, ProblemNote } from "./parts.js";

const PERIOD_MS = 2_000;
/** How many answered waits stay on the page. */
const KEPT = 10;
/** How many events at the end of a log are searched for the end of a wait. */
const SEARCHED = 300;

export function WaitsPage() {
  const list = usePoll(() => api.waits({ limit: 500 }), PERIOD_MS);
  const sessions = useSessionsOf(list.value?.waits);
  const open = list.value?.waits ?? [];
  const [over, answered] = useOver(list.value?.waits);
  const agents = new Set(open.map((wait) => wait.agent_id)).size;
  const now = useNow(5_000);
  return html`<div class="page narrow">
    <header class="page-head"><h1>Waits</h1><span class="muted" role="status">${list.value ? (open.length ? `${count(agents, "agent waits", "agents wait")} for ${count(open.length, "answer")}` : "nothing waits") : "…"}</span></header>
    <${ProblemNote} problem=${list.problem} />
    ${list.value && !open.length && !over.length && html`<${Empty} title="Nothing waits for you"><p>Approvals, questions, limits and tools of clients appear here when an agent waits for them.</p><//>`}
    ${open.map((wait) => html`<article class="wait-row" key=${wait.id}>
      <p class="muted"><${Asker} wait=${wait} session=${sessions.get(wait.session_id)} /> asks · ${ago(wait.opened_at, now)}</p>
      <${WaitCard} wait=${wait} session=${wait.session_id} onAnswered=${(reply) => answered(wait, reply, list.again)} />
    </article>`)}
    ${over.length > 0 && html`<section aria-label="Answered"><h2>Just decided</h2>
      ${over.map(({ wait, outcome }) => html`<article class="wait-row over" key=${wait.id}><${WaitCard} wait=${wait} session=${wait.session_id} outcome=${outcome} /></article>`)}
    </section>`}
    <${Decided} />
    <${Commands} commands=${["planck waits", "planck answer WAIT allow", `nats req --raw cmd.sessions.waits ''`]} />
  </div>`;
}

/**
 * Keeps the waits that ended while the page is shown, with who decided what: an answer of this tab,
 * of another tab, or of another program.
 */
function useOver(waits) {
  const before = useRef(undefined);
  const [over, setOver] = useState([]);
  const add = (wait, outcome) => setOver((old) => [{ wait, outcome }, ...old.filter((each) => each.wait.id !== wait.id)].slice(0, KEPT));
  useEffect(() => {
    if (!waits) return;
    const now = new Set(waits.map((wait) => wait.id));
    const gone = before.current?.filter((wait) => !now.has(wait.id)) ?? [];
    before.current = waits;
    for (const wait of gone) outcomeOf(wait).then((outcome) => add(wait, outcome), () => {});
  }, [waits]);
  const answered = (wait, reply, again) => {
    add(wait, reply);
    again();
  };
  return [over, answered];
}

/** Reads from the store, or from the log, how a wait ended. */
async function outcomeOf(wait) {
  const stored = await api.waits({ state: "answered", session: wait.session_id });
  const row = stored.waits.find((each) => each.id === wait.id);
  if (row) return row;
  const { head } = await api.session(wait.session_id);
  for (let from = Math.max(1, head - SEARCHED); from <= head; ) {
    const page = await api.events(wait.session_id, { from });
    const end = page.events.find((event) => event.type === "wait_closed" && event.data.id === wait.id);
    if (end) return { decision: end.data.decision, answered_by: end.data.by, reason: end.data.reason };
    if (!page.events.length) break;
    from = page.next;
  }
  return { decision: "no longer open" };
}
