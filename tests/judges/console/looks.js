// How the pages look: to axe, on a phone, and in the pictures of the documentation.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { accessible, fitsPhone } from "./axe.js";
import { open, said, status, v1, withBrowser } from "./browser.js";

/** The pages: their name, their address, and how to know that they are there. */
const PAGES = [
  ["sessions", "#/sessions", async (page) => {
    await page.locator(".card", { hasText: "word-counter" }).getByText("3 agents").waitFor();
    await page.locator(".card", { hasText: "Waits: bash" }).waitFor();
  }],
  ["session", "#/sessions/word-counter", async (page) => {
    await said(page, "the test passes now");
    await page.locator(".working").first().waitFor({ state: "detached" });
  }],
  ["changes", "#/sessions/fix-greeting", async (page) => {
    await said(page, "The old version ignored its argument");
    await page.locator("details.tool", { hasText: "edit" }).locator("summary").click();
    await page.locator("details.tool", { hasText: "edit" }).evaluate((node) => node.scrollIntoView({ block: "start" }));
  }],
  ["agent", undefined, (page) => page.getByText("of 32.8k tokens").or(page.getByText("Context")).first().waitFor()],
  ["waits", "#/waits", (page) => page.getByRole("button", { name: "green" }).waitFor()],
  ["cluster", "#/cluster", async (page) => {
    await page.locator(".hosted").first().waitFor();
    await page.locator("li .problem", { hasText: "exit status 1" }).waitFor();
  }],
];

export async function pages_are_accessible_in_light_and_dark({ address, ask }) {
  const folder = await ask("start sessions that show everything");
  if (folder) mkdirSync(folder, { recursive: true });
  for (const colorScheme of ["light", "dark"]) {
    await withBrowser((context) => look(context, address, colorScheme, folder), { colorScheme });
  }
  await withBrowser((context) => fits(context, address), { viewport: { width: 360, height: 740 } });
}

async function look(context, address, colorScheme, folder) {
  const page = await open(context, address);
  for (const [name, hash, isThere] of PAGES) {
    await page.goto(`${address}/${hash ?? (await agentOf(page, "word-counter"))}`);
    await isThere(page);
    if (name === "session") await status(page, "open");
    await accessible(page, `${name}, ${colorScheme}`);
    if (folder) await page.screenshot({ path: join(folder, `${name}-${colorScheme}.png`) });
  }
  await page.keyboard.press("n");
  await page.getByRole("dialog").waitFor();
  await accessible(page, `start, ${colorScheme}`);
  assert.deepEqual(page.errors, []);
}

/** Returns the address of the page of a session's second agent. */
async function agentOf(page, session) {
  const info = await v1(page, "GET", `/sessions/${session}`);
  return `#/sessions/${session}/agents/${info.agents.at(-1).id}`;
}

/** Fails if a page is wider than a phone. */
async function fits(context, address) {
  const page = await open(context, address);
  for (const [name, hash, isThere] of PAGES) {
    if (!hash) continue;
    await page.goto(`${address}/${hash}`);
    await isThere(page);
    await fitsPhone(page, name);
  }
  await page.goto(`${address}/#/sessions/word-counter`);
  await page.getByRole("button", { name: "Lanes" }).click();
  await page.locator(".bar.model").first().click();
  await page.getByRole("log").waitFor();
}
