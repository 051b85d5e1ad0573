// The waits that were decided before: what was asked, who decided what, and when.

import { html, useState } from "./html.js";
import { api } from "./api.js";
import { Asker, useSessionsOf } from "./asking.js";
import { WaitCard } from "./answer.js";
import { ago, text } from "./format.js";
import { useAction, useNow } from "./live.js";
import { Badge, ProblemNote } from "./parts.js";

/** The list of waits begins with the oldest, so the sessions that were used last are asked for theirs, so many in each step. */
const SESSIONS = 20;
const AT_ONCE = 4;
/** How many of the newest sessions are compared to find those that were used last. */
const NEWEST = 500;
/** The most pages of one session's waits that are read, and how many waits are shown for each step. */
const PAGES = 4;
const SHOWN = 50;
const STATES = ["answered", "closed", "withdrawn"];

const TONES = { allow: "good", answer: "good", deny: "bad", error: "bad" };

export function Decided() {
  const action = useAction();
  const [found, setFound] = useState(undefined);
  const now = useNow(10_000, Boolean(found));
  const sessions = useSessionsOf(found?.waits);
  const read = (steps) => action.run(async () => setFound(await readDecided(steps)));
  return html`<section class="decided" aria-label="Decided before"><h2>Decided before</h2>
    <${ProblemNote} problem=${action.problem} onClose=${action.clear} />
    ${found && !found.waits.length && html`<p class="muted">Nothing was decided in the sessions that were used last.</p>`}
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

/** Reads the newest decided waits of the sessions that were used last. */
async function readDecided(steps) {
  const { sessions } = await api.sessions({ limit: NEWEST });
  const rows = sessions.toSorted((a, b) => b.updated_at.localeCompare(a.updated_at));
  const left = rows.slice(0, steps * SESSIONS).flatMap((row) => STATES.map((state) => ({ session: row.id, state })));
  const waits = [];
  const work = async () => {
    for (let filter; (filter = left.shift()); ) waits.push(...(await readAll(filter)));
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  const when = (wait) => wait.answered_at ?? wait.opened_at;
  const shown = waits.sort((a, b) => when(b).localeCompare(when(a))).slice(0, steps * SHOWN);
  return { steps, waits: shown, isMore: rows.length > steps * SESSIONS || waits.length > shown.length };
}

/** Reads the waits of a session in one state, of which the last pages count. A session that was deleted has none. */
async function readAll(filter) {
  const found = [];
  try {
    for (let pages = 0, after; pages < PAGES; pages++) {
      const page = await api.waits({ ...filter, limit: 500, after });
      found.push(...page.waits);
      after = page.next;
      if (!after) break;
    }
  } catch (problem) {
    if (problem.status !== 404) throw problem;
  }
  return found;
}
