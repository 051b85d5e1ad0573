// Starts Chromium, and has what all cases need.

import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
/** How long a condition may take, also on a busy machine. */
export const PATIENCE_MS = 30_000;

/** Runs `work` with a browser that has an empty profile of its own. */
export async function withBrowser(work, options = {}) {
  const profile = mkdtempSync(join(tmpdir(), "planck-console-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    args: FLAGS,
    viewport: { width: 1280, height: 800 },
    ...options,
  });
  context.setDefaultTimeout(PATIENCE_MS);
  if (process.env.PLANCK_CONSOLE) await fromFolder(context, process.env.PLANCK_CONSOLE);
  try {
    return await work(context);
  } finally {
    await context.close();
    rmSync(profile, { recursive: true, force: true });
  }
}

/** Takes the files of the console from a folder, so that a change can be tried without a build. */
function fromFolder(context, folder) {
  return context.route((address) => address.pathname.startsWith("/console/"), (route) => {
    const path = join(folder, new URL(route.request().url()).pathname.replace("/console/", ""));
    return existsSync(path) ? route.fulfill({ path }) : route.continue();
  });
}

/** Opens a page, and collects what goes wrong in it. */
export async function open(context, address) {
  const page = await context.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error" && /Content Security Policy/.test(message.text())) page.errors.push(message.text());
  });
  await page.goto(address);
  return page;
}

/** Starts a session by the form, as a person does. */
export async function startSession(page, fields) {
  await page.getByRole("button", { name: "New session" }).first().click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Prompt").fill(fields.prompt);
  if (fields.name) await dialog.getByLabel("Name").fill(fields.name);
  if (fields.team) await dialog.getByLabel("Team").selectOption(fields.team);
  if (fields.permissions) await dialog.getByLabel("Permissions").selectOption(fields.permissions);
  if (fields.dir) await dialog.getByLabel("Directory").fill(fields.dir);
  await dialog.getByRole("button", { name: "Start" }).click();
  await page.getByRole("log").waitFor();
}

/** Waits until a text is in the conversation. */
export function said(page, text) {
  return page.getByRole("log").getByText(text).last().waitFor();
}

export function status(page, value) {
  return page.locator(`[data-status="${value}"]`).waitFor();
}
