// The waits that were decided before: what was asked, who decided what, and when.

import { html, useState } from "./html.js";
import { api } from "./api.js";
import { Asker, useSessionsOf } from "./asking.js";
import { WaitCard } from "./answer.js";
import { ago, text } from "./format.js";
import { useAction, useNow } from "./live.js";
import { Badge, ProblemNote } from "./parts.js";

/** How many waits are shown for each step, which is also how many are read. */
const SHOWN = 50;
/** The longest page of the list. */
const MOST = 500;
/** The waits that were decided. Those that were withdrawn were not. */
const STATES = ["answered", "closed"];

const TONES = { allow: "good", answer: "good", deny: "bad", error: "bad" };

export function Decided() {
  const action = useAction();
  const [found, setFound] = useState(undefined);
  const now = useNow(10_000, Boolean(found));
  const sessions = useSessionsOf(found?.waits);
  const read = (steps) => action.run(async () => setFound(await readDecided(steps)));
  return html`<section class="decided" aria-label="Decided before"><h2>Decided before</h2>
    <${ProblemNote} problem=${action.problem} onClose=${action.clear} />
    ${found && !found.waits.length && html`<p class="muted">Nothing was decided yet.</p>`}
    ${found && html`<ol class="plain-list">${found.waits.map((wait) => html`<li key=${wait.id}><${Row} wait=${wait} session=${sessions.get(wait.session_id)} now=${now} /></li>`)}</ol>`}
    <div class="row">
      ${!found && html`<button disabled=${action.isRunning} onClick=${() => read(1)}>${action.isRunning ? "Reading…" : "Show them"}</button>`}
      ${found && html`<button disabled=${action.isRunning} onClick=${() => read(found.steps)}>Read again</button>`}
      ${found?.isMore && html`<button disabled=${action.isRunning} onClick=${() => read(found.steps + 1)}>Show earlier</button>`}
    </div>
  </section>`;
}

function Row({ wait, session, now }) {
  const [isOpen, setOpen] = useState(false);
  const decision = wait.decision ?? wait.state;
  const end = [wait.answered_by && `by ${wait.answered_by}`, wait.answered_at && ago(wait.answered_at, now), wait.state === "answered" && "the agent has not read it yet"];
  return html`<details onToggle=${({ currentTarget }) => setOpen(currentTarget.open)}>
    <summary><${Badge} tone=${TONES[decision] ?? "quiet"}>${decision}<//> <span class="decided-title">${text(wait.title)}</span>
      <span class="muted"><${Asker} wait=${wait} session=${session} isPlain=${true} /> · ${end.filter(Boolean).join(" · ")}</span></summary>
    ${isOpen && html`<p class="muted">Asked by <${Asker} wait=${wait} session=${session} />, ${ago(wait.opened_at, now)}.</p>
      <${WaitCard} wait=${wait} session=${wait.session_id} outcome=${{ ...wait, decision }} />`}
  </details>`;
}

/** Reads the decided waits that were opened last. */
async function readDecided(steps) {
  const limit = Math.min(steps * SHOWN, MOST);
  const pages = await Promise.all(STATES.map((state) => api.waits({ state, newest: true, limit })));
  const when = (wait) => wait.answered_at ?? wait.opened_at;
  const waits = pages.flatMap((page) => page.waits).sort((a, b) => b.opened_at.localeCompare(a.opened_at));
  const shown = waits.slice(0, limit).sort((a, b) => when(b).localeCompare(when(a)));
  return { steps, waits: shown, isMore: limit < MOST && (waits.length > shown.length || pages.some((page) => page.next)) };
}
