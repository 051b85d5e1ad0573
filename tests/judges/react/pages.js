// Bundles the pages and serves them. The components are the code of docs/http-clients.md, of which
// only the address of the front and its key are replaced.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";

const ROOT = join(import.meta.dirname, "../../..");
const TOOLS = join(ROOT, ".tools/react");
const GUIDE = join(ROOT, "docs/http-clients.md");
/** The address of the front in the guide. */
const ADDRESS = "'http://127.0.0.1:8400'";
/** The key in the guide. */
const KEY = "'Bearer KEY'";
/** The names under which the pages import the blocks of code of the guide, in their order. */
const BLOCKS = ["chat", "assistant"];

/** Returns the components of the guide, for a front with a key. */
function components(front, key) {
  const blocks = [...readFileSync(GUIDE, "utf8").matchAll(/^```tsx\n([^]*?)^```$/gm)].map(([, code]) => code);
  if (blocks.length !== BLOCKS.length) throw new Error(`${GUIDE} has ${blocks.length} components, not ${BLOCKS.length}`);
  for (const text of [ADDRESS, KEY]) {
    if (blocks.join("").split(text).length !== 2) throw new Error(`${GUIDE} does not name ${text} once`);
  }
  const own = (block) => block.replace(ADDRESS, JSON.stringify(front)).replace(KEY, JSON.stringify(`Bearer ${key}`));
  return Object.fromEntries(BLOCKS.map((name, at) => [name, own(blocks[at])]));
}

/** Lets a page import a component of the guide as `guide/NAME`, and one component another as `./NAME`. */
function guide(front, key) {
  const code = components(front, key);
  return {
    name: "guide",
    setup(build) {
      build.onResolve({ filter: /^(guide|\.)\/\w+$/ }, ({ path, namespace }) => {
        if (path.startsWith(".") && namespace !== "guide") return null;
        return { path: path.replace(/^.*\//, ""), namespace: "guide" };
      });
      build.onLoad({ filter: /.*/, namespace: "guide" }, ({ path }) => ({ contents: code[path], loader: "tsx", resolveDir: TOOLS }));
    },
  };
}

/** Returns the programs of the pages, by their names. React's development build finds more faults. */
async function bundle(front, key) {
  const { build } = createRequire(join(TOOLS, "package.json"))("esbuild");
  const { outputFiles } = await build({
    entryPoints: ["chat", "assistant"].map((name) => join(import.meta.dirname, `pages/${name}.tsx`)),
    bundle: true,
    write: false,
    outdir: "/",
    format: "esm",
    jsx: "automatic",
    define: { "process.env.NODE_ENV": '"development"' },
    nodePaths: [join(TOOLS, "node_modules")],
    plugins: [guide(front, key)],
    logLevel: "error",
  });
  return new Map(outputFiles.map((file) => [file.path, file.text]));
}

/** Serves the pages `/chat` and `/assistant` on a port of this machine. */
export async function serve(front, port, key) {
  const programs = await bundle(front, key);
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    const program = programs.get(pathname);
    response.setHeader("content-type", `${program ? "text/javascript" : "text/html"}; charset=utf-8`);
    response.end(program ?? `<!doctype html><title>Judge</title><link rel=icon href=data:,><div id=root></div><script type=module src=${pathname}.js></script>`);
  });
  await new Promise((resolve, reject) => server.on("error", reject).listen(port, "127.0.0.1", resolve));
  return server;
}
