// What a person sees on a page and does with it, and what the front has saved.

import assert from "node:assert/strict";
import { setTimeout } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";
import { PATIENCE_MS, open, withBrowser } from "../console/browser.js";

export const STORY = /^Once there were numbers\. 1 2 3 .* 39 40 and that was the end of the story\.$/;

let authorization;

/** Has this program send a key to the front. */
export function useKey(key) {
  authorization = `Bearer ${key}`;
}

/** Requests a path of the front. */
export function request(front, path, { headers, ...options } = {}) {
  return fetch(`${front}${path}`, { ...options, headers: { ...headers, authorization } });
}

/** Runs `work` with an empty profile, whose pages keep every text that the latest answer has had. */
export function withPages(work) {
  return withBrowser(async (context) => {
    await context.addInitScript(watchAnswer);
    await work(context);
    for (const page of context.pages()) assert.deepEqual(page.errors, []);
  });
}

/** Opens the page of a kind on a chat. */
export async function openChat(context, { pages, kind }, chat) {
  const page = await open(context, "about:blank");
  page.on("console", (message) => {
    // React reports faults of a page, such as a repeated key, as errors. The browser reports every refused request as one.
    const isOfBrowser = /^Failed to load resource|blocked by CORS policy/.test(message.text());
    if (message.type() === "error" && !isOfBrowser) page.errors.push(message.text());
  });
  await page.goto(`${pages}/${kind}?id=${chat}`);
  return page;
}

function watchAnswer() {
  window.answers = [];
  const look = () => {
    const answer = [...document.querySelectorAll("article[aria-label=assistant]")].at(-1);
    const text = [...(answer?.querySelectorAll("p") ?? [])].map((paragraph) => paragraph.textContent).join("");
    if (text !== window.answers.at(-1)) window.answers.push(text);
  };
  new MutationObserver(look).observe(document, { childList: true, subtree: true, characterData: true });
}

/**
 * Writes a message, and sends it with Enter. A page that was just opened may play the latest answer once more, and
 * assistant-ui does not send while an answer is shown as running: a person sees the text in the box, and presses again.
 */
export async function say(page, text) {
  const box = page.getByLabel("Message");
  await box.fill(text);
  await eventually(async () => {
    await box.press("Enter");
    await page.waitForFunction(() => document.querySelector("[aria-label=Message]").value === "", null, { timeout: 1_000 });
  });
}

/** Waits until a text is in the latest answer. */
export function answered(page, text) {
  return page.getByLabel("assistant", { exact: true }).last().getByText(text).last().waitFor();
}

/** Waits until the page shows that nothing runs. */
export function rested(page) {
  return page.getByRole("button", { name: "Stop" }).waitFor({ state: "detached" });
}

export function alerted(page, text) {
  return page.getByRole("alert").getByText(text).waitFor();
}

/** Starts a session where nodes of a cluster see its folder, which the page of the guide does not name. */
export async function startSession({ front, ask }, name, fields) {
  const body = JSON.stringify({ name, dir: await ask("tell the directory"), ...fields });
  const response = await request(front, "/v1/sessions", { method: "POST", headers: { "content-type": "application/json" }, body });
  assert.equal(response.status, 201, await response.text());
}

/** Repeats what fails, for a limited time, until it does not. Returns its result. */
export async function eventually(act) {
  const end = performance.now() + PATIENCE_MS;
  for (;;) {
    try {
      return await act();
    } catch (error) {
      if (performance.now() > end) throw error;
    }
    await setTimeout(50);
  }
}

/** Reads a resource until `check` of it does not fail. */
export function v1(front, path, check) {
  return eventually(async () => {
    const response = await request(front, `/v1${path}`);
    assert.equal(response.status, 200, await response.clone().text());
    return check(await response.json());
  });
}

/** Returns the messages that the page shows: their roles and texts. */
export function shown(page) {
  return page.evaluate(() => [...document.querySelectorAll("article")].map((message) => ({
    role: message.getAttribute("aria-label"),
    text: [...message.querySelectorAll("p")].map((paragraph) => paragraph.textContent).join(""),
  })));
}

/** Returns the messages that the front has saved, as a page shows them. */
async function saved(front, chat) {
  const response = await request(front, `/v1/sessions/${chat}/messages`);
  assert.equal(response.status, 200, await response.clone().text());
  const all = [];
  const { messages } = await response.json();
  for (const { agent_id, role, content, metadata } of messages) {
    // What workers say, and what agents send to each other, is no message of the page.
    if ((role !== "user" && role !== "assistant") || agent_id !== messages[0].agent_id || metadata?.from) continue;
    const text = content.filter((part) => part.type === "text").map((part) => part.text).join("");
    // An answer of several requests, and of several turns, is one message of the page.
    if (role === "assistant" && all.at(-1)?.role === role) all.at(-1).text += text;
    else all.push({ role, text });
  }
  return all;
}

/** Waits until the page shows exactly these messages, which are read again each time. Returns the text of the latest one. */
export async function shows(page, read) {
  const end = performance.now() + PATIENCE_MS;
  for (;;) {
    const [seen, known] = [await shown(page), await read()];
    if (isDeepStrictEqual(seen, known)) return known.at(-1).text;
    if (performance.now() > end) assert.deepEqual(seen, known);
    await setTimeout(50);
  }
}

/** Waits until the page shows exactly what the front has saved. Returns the text of the latest answer. */
export function showsWhatWasSaved(page, { front }, chat) {
  return shows(page, () => saved(front, chat));
}

/** Waits until the latest answer has a text, has ended, and is shown as the front has saved it. Returns its whole text. */
export async function ended(page, stage, text) {
  await answered(page, text);
  await rested(page);
  return showsWhatWasSaved(page, stage, stage.chat);
}

/** Checks that the latest answer grew in at least so many pieces, and never lost or repeated any text. */
export async function grew(page, least) {
  const answers = await page.evaluate(() => window.answers);
  const from = answers.lastIndexOf("") + 1;
  const pieces = answers.slice(from);
  assert.ok(pieces.length >= least, `the text came in ${pieces.length} pieces`);
  for (const [at, text] of pieces.slice(1).entries()) {
    assert.ok(text.startsWith(pieces[at]), `${JSON.stringify(pieces[at])} became ${JSON.stringify(text)}`);
  }
}
