// Who asks: the sessions and agents of waits, which the list of waits names by their ids only.

import { html, useEffect, useRef, useState } from "./html.js";
import { api } from "./api.js";
import { teamOf } from "./format.js";

/** How many sessions are read at once. */
const AT_ONCE = 4;

/** Returns the descriptions of the sessions of waits, by their ids. Each is read once. */
export function useSessionsOf(waits) {
  const known = useRef(new Map());
  const [, setVersion] = useState(0);
  useEffect(() => {
    const missing = [...new Set(waits?.map((wait) => wait.session_id))].filter((id) => !known.current.has(id));
    for (const id of missing) known.current.set(id, undefined);
    const work = async () => {
      for (let id; (id = missing.shift()); ) {
        try {
          known.current.set(id, await api.session(id));
          setVersion((version) => version + 1);
        } catch {
          // The next list tries again. A deleted session has no waits any more.
          known.current.delete(id);
        }
      }
    };
    for (let workers = 0; workers < AT_ONCE; workers++) work();
  }, [waits]);
  return known.current;
}

/** Says which agent of which session and team asks. As a `isPlain` text it has no links. */
export function Asker({ wait, session, isPlain }) {
  const name = session?.name ?? wait.session_id;
  const agent = session?.agents.find((each) => each.id === wait.agent_id)?.name ?? "An agent";
  if (isPlain) return `${agent} of ${name}`;
  const team = session && session.agents.length > 1 && teamOf(session.agents);
  return html`<span class="asker"><a href=${`#/sessions/${name}/agents/${wait.agent_id}`}>${agent}</a> of <a href=${`#/sessions/${name}`}>${name}</a>${team && ` (${team})`}</span>`;
}
