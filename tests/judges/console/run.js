// Plays cases on the console: `node run.js CASE,CASE… ADDRESS [KEY]`. The key is that of the address which the front prints.

import * as basics from "./basics.js";
import { openWith } from "./browser.js";
import { find, playCases } from "./cases.js";
import * as cluster from "./cluster.js";
import * as faults from "./faults.js";
import * as keys from "./keys.js";
import * as looks from "./looks.js";
import * as report from "./report.js";
import * as turns from "./turns.js";
import * as waits from "./waits.js";

const known = { ...basics, ...cluster, ...faults, ...keys, ...looks, ...report, ...turns, ...waits };
const [names, address, key] = process.argv.slice(2);
if (key) openWith(address, key);
await playCases(names.split(","), (name, ask) => find(known, name)({ address, key, ask }));
