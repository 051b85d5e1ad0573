// Starts Chromium, and has what all cases need.

import { existsSync, mkdirSync } from "node:fs";
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

/** Where the pictures of the pages of a failed case are. */
const FAILED = join(import.meta.dirname, "../../../target/console");

let browser;

/** Runs `work` with an empty profile. All cases of a run use one browser. */
export async function withBrowser(work, options = {}) {
  browser ??= await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", headless: true, args: FLAGS });
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  if (process.env.PLANCK_CONSOLE) await fromFolder(context, process.env.PLANCK_CONSOLE);
  try {
    return await work(context);
  } catch (error) {
    mkdirSync(FAILED, { recursive: true });
    for (const [at, page] of context.pages().entries()) {
      await page.screenshot({ path: join(FAILED, `page-${at}.png`) }).catch(() => {});
      console.log(`the failed case leaves ${page.url()} in target/console/page-${at}.png, after ${JSON.stringify(page.errors)}`);
    }
    throw error;
  } finally {
    await context.close();
  }
}

export async function closeBrowser() {
  await browser?.close();
}

/** Takes the files of the console from a folder, so that a change can be tried without a build. */
function fromFolder(context, folder) {
  return context.route((address) => address.pathname.startsWith("/console/"), (route) => {
    const path = join(folder, new URL(route.request().url()).pathname.replace("/console/", ""));
    return existsSync(path) ? route.fulfill({ path }) : route.continue();
  });
}

/** Turns the address of a page into the one that is opened. */
let opened = (address) => address;

/** Has pages of the console opened with a key, as by the address that the front prints. */
export function openWith(front, key) {
  opened = (address) => (address.startsWith(front) ? `${front}/#key=${key}${address.slice(front.length).replace(/^\/#?/, "")}` : address);
}

/** Opens a page, and collects what goes wrong in it. */
export async function open(context, address) {
  const page = await context.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error" && /Content Security Policy/.test(message.text())) page.errors.push(message.text());
  });
  await page.goto(opened(address));
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

/** Waits until the page of the cluster follows its decisions. On a slow machine there may be one. */
export function followsDecisions(page) {
  const none = page.getByText("What the cluster decides from now on appears here");
  return none.or(page.locator(".decisions li")).first().waitFor();
}

export function status(page, value) {
  return page.locator(`[data-status="${value}"]`).waitFor();
}

/** Sends a request to `/v1` from the page, with the page's key. Returns what the front answers. */
export function v1(page, method, path, body) {
  return page.evaluate(async ([method, path, body]) => {
    const key = sessionStorage.getItem("planck.key");
    const headers = { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
    const response = await fetch(`/v1${path}`, { method, headers, body: body && JSON.stringify(body) });
    if (!response.ok) throw new Error(`${path}: ${await response.text()}`);
    return response.json();
  }, [method, path, body]);
}

/** Returns the events of a session that have one of these types. */
export async function eventsOf(page, session, ...types) {
  const { events } = await v1(page, "GET", `/sessions/${session}/events`);
  return events.filter((event) => types.includes(event.type));
}

/** Writes a prompt, and sends it with Enter. */
export async function prompt(page, text) {
  const box = page.getByLabel(/^Prompt to/);
  await box.fill(text);
  await box.press("Enter");
}

/** Waits until no agent of the session works. */
export function rested(page) {
  return page.locator(".session .working, .session .live").first().waitFor({ state: "detached" });
}
