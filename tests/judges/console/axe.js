// Whether a page can be used by everyone, and on a phone.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PHONE = { width: 360, height: 740 };

/** Fails if axe finds something serious. */
export async function accessible(page, what) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const bad = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  const found = bad.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 3).map((node) => `${node.html.slice(0, 200)} ${node.any.map((each) => each.message).join("; ")}`).join(" | ")}`);
  for (const { id, impact, nodes } of violations) console.log(`axe, ${what}: ${impact} ${id} (${nodes.length})`);
  assert.deepEqual(found, [], what);
}

/** Fails if the page, or an open dialog, is wider than its window. */
export async function fitsPhone(page, what) {
  const wide = await page.evaluate(() => [document.documentElement, ...document.querySelectorAll("dialog[open]")].map((each) => [each.localName, each.scrollWidth, each.clientWidth]));
  for (const [name, needed, given] of wide) assert.ok(needed <= given, `${what}: ${name} needs ${needed} of ${given} pixels`);
}

/** Checks what the page shows now in both colour schemes, and on a phone. */
export async function looksRight(page, what) {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await accessible(page, `${what}, ${colorScheme}`);
  }
  const before = page.viewportSize();
  await page.setViewportSize(PHONE);
  await fitsPhone(page, what);
  await page.setViewportSize(before);
  await page.emulateMedia({ colorScheme: null });
}
