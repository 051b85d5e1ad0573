// Plays cases on React pages: `node run.js KIND/CASE,KIND/CASE… FRONT PORT KEY`. The kind is the page on
// which the case is played, and the pages are served on the port.

import { find, playCases } from "../console/cases.js";
import * as faults from "./faults.js";
import * as guide from "./guide.js";
import { useKey } from "./page.js";
import { serve } from "./pages.js";
import * as talk from "./talk.js";
import * as teams from "./teams.js";

const known = { ...faults, ...guide, ...talk, ...teams };
const [cases, front, port, key] = process.argv.slice(2);
useKey(key);
await serve(front, Number(port), key);
await playCases(cases.split(","), (chosen, ask, at) => {
  const [kind, name] = chosen.split("/");
  return find(known, name)({ front, pages: `http://127.0.0.1:${port}`, kind, chat: `${kind}-${at}`, ask });
});
