// Answers that have much Markdown, and sessions that are found, exported, tried again and deleted.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { looksRight } from "./axe.js";
import { eventsOf, open, prompt, rested, said, startSession, v1, withBrowser } from "./browser.js";

/** The share of the time that the modules of the page may take while 40 kB of text arrive within seconds. */
const BUSY = 0.15;

export function markdown_of_an_answer_is_shown_and_its_code_is_copied({ address }) {
  return withBrowser(async (context) => {
    await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: address });
    const page = await open(context, address);
    const asked = [];
    page.on("request", (request) => asked.push(request.url()));
    await startSession(page, { prompt: "Write a report", name: "report" });
    await said(page, "parse the file");
    await said(page, "That was the report.");
    await page.locator(".live").waitFor({ state: "detached" });
    const prose = page.locator(".item.assistant .prose");
    const texts = (selector) => prose.locator(selector).allTextContents();
    assert.deepEqual([await texts("em"), await texts("s"), await texts("strong")], [["this"], ["that"], ["those"]]);
    assert.deepEqual(await texts(".task [role=img]"), ["☑", "☐"]);
    assert.deepEqual(await texts("ul ol li"), ["for a list in a list", "and its second item"]);
    assert.deepEqual(await texts("td.right"), ["12 ms", "7 ms"]);
    assert.equal(await prose.locator("hr").count(), 1);
    const links = await prose.locator("a").evaluateAll((all) => all.map((each) => [each.href, each.rel, each.textContent]));
    assert.deepEqual(links, [
      ["https://example.com/docs", "noopener noreferrer", "https://example.com/docs"],
      ["https://example.com/guide", "noopener noreferrer", "the guide"],
      ["https://example.com/picture.png", "noopener noreferrer", "image: a picture"],
    ]);
    assert.equal(await page.locator("main img, main blockquote b").count(), 0);
    assert.deepEqual(asked.filter((each) => !each.startsWith(address)), [], "the page asked another host");
    await prose.getByRole("button", { name: "Copy: the code" }).click();
    await prose.getByText("copied", { exact: true }).waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'fn main() {\n    println!("copied");\n}');
    await looksRight(page, "a report");
    assert.deepEqual(page.errors, []);
  });
}

export function long_text_that_streams_leaves_the_page_free({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Write a book", name: "book" });
    await said(page, "Paragraph 2 has");
    const session = await context.newCDPSession(page);
    // The time of the processor counts, because other programs may keep it busy.
    await session.send("Performance.enable", { timeDomain: "threadTicks" });
    const busy = async () => (await session.send("Performance.getMetrics")).metrics.find(({ name }) => name === "ScriptDuration").value * 1_000;
    const [began, before] = [performance.now(), await busy()];
    await said(page, "And the text is over.");
    const took = performance.now() - began;
    const share = ((await busy()) - before) / took;
    console.log(`MEASURED the modules take ${Math.round(share * 100)} % of ${Math.round(took)} ms`);
    assert.ok(share < BUSY, `the modules take ${share} of the time`);
    await page.locator(".live").waitFor({ state: "detached" });
    assert.ok((await page.locator(".item.assistant .prose a").count()) > 300);
    assert.deepEqual(page.errors, []);
  });
}

export function sessions_are_searched_filtered_and_sorted({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    for (const [name, text] of [["first-one", "Say hello"], ["second-one", "Fail for good"], ["third-one", "Say the last word"]]) {
      await v1(page, "POST", "/sessions", { name, prompt: text });
    }
    const read = [];
    page.on("request", (request) => request.method() === "GET" && read.push(new URL(request.url()).pathname));
    const titles = () => page.locator(".card-title").allTextContents();
    const shows = async (...names) => page.waitForFunction((wanted) => JSON.stringify([...document.querySelectorAll(".card-title")].map((each) => each.textContent)) === wanted, JSON.stringify(names));
    await shows("third-one", "second-one", "first-one");
    const failed = page.locator(".card", { hasText: "second-one" });
    // The reason why a session failed stands in its row.
    await failed.locator(".card-line.bad-text", { hasText: "400" }).waitFor();
    await failed.getByText("Fail for good").waitFor();
    assert.deepEqual([...new Set(read)].filter((path) => path.startsWith("/v1/sessions")), ["/v1/sessions"], "the list takes one request");
    const search = page.getByLabel("Search");
    await page.keyboard.press("/");
    await page.keyboard.type("last ANSWER");
    await shows("third-one");
    await search.fill("say");
    await shows("third-one", "first-one");
    await page.getByLabel("Sorted by").selectOption("last activity");
    await v1(page, "POST", "/sessions/first-one/prompt", { text: "Say the last word" });
    await shows("first-one", "third-one");
    await looksRight(page, "a searched list");
    // The choice is kept when the person comes back.
    await page.getByRole("link", { name: /first-one/ }).click();
    await page.getByRole("log").waitFor();
    await page.goBack();
    await shows("first-one", "third-one");
    await search.fill("");
    await page.getByLabel("State").selectOption("failed");
    await shows("second-one");
    await search.fill("nothing has this");
    await page.getByText("No session fits").waitFor();
    await page.getByRole("button", { name: "Show all" }).first().click();
    assert.equal((await titles()).length, 3);
    assert.deepEqual(page.errors, []);
  });
}

export function failed_turn_is_tried_again({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Say hello", name: "tried" });
    await said(page, "Hello! This is the");
    await rested(page);
    const head = page.locator(".session-head");
    await head.getByText("idle", { exact: true }).waitFor();
    await head.getByText("scripted:test").waitFor();
    await prompt(page, "Fail for good");
    await page.getByText(/^agent Turn failed|Turn failed/).waitFor();
    await head.getByText("failed", { exact: true }).waitFor();
    await looksRight(page, "a failed turn");
    await page.getByRole("button", { name: "Try again" }).click();
    await said(page, "It works at the second try.");
    await rested(page);
    assert.equal(await page.getByRole("button", { name: "Try again" }).count(), 0);
    // The prompt is not sent a second time.
    assert.deepEqual(await page.locator(".item.user .plain").allTextContents(), ["Say hello", "Fail for good"]);
    assert.deepEqual(page.errors, []);
  });
}

export function session_is_exported_and_deleted({ address }) {
  return withBrowser(async (context) => {
    const page = await open(context, address);
    await startSession(page, { prompt: "Fix the greeting", name: "exported" });
    await said(page, "The old version ignored its argument");
    await rested(page);
    await page.getByRole("button", { name: "More" }).click();
    const heading = page.locator(".session-head h1");
    await page.getByLabel("Title").fill("  Greet by  <b>name</b> ");
    await page.getByRole("button", { name: "Rename" }).click();
    await heading.getByText("Greet by <b>name</b>", { exact: true }).waitFor();
    await looksRight(page, "more about a session");
    assert.equal((await v1(page, "GET", "/sessions/exported")).title, "Greet by <b>name</b>");
    await page.getByLabel("Title").fill("");
    await page.getByRole("button", { name: "Rename" }).click();
    await heading.getByText("exported", { exact: true }).waitFor();
    const file = async (name) => {
      const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name }).click()]);
      return [download.suggestedFilename(), readFileSync(await download.path(), "utf8")];
    };
    const [logName, log] = await file("Export the log as JSON");
    assert.equal(logName, "exported.jsonl");
    const { events } = await v1(page, "GET", "/sessions/exported/events");
    assert.deepEqual(log.trimEnd().split("\n").map((each) => JSON.parse(each)), events);
    const [textName, text] = await file("Export as Markdown");
    assert.equal(textName, "exported.md");
    assert.match(text, /^# exported\n\n[^]*## You to agent\n\nFix the greeting\n[^]*### agent calls `edit` \(done[^]*The old version ignored its argument/);
    await page.getByRole("button", { name: "Delete", exact: true }).click();
    const question = page.getByRole("group", { name: /^Delete this session/ });
    await question.getByRole("button", { name: "Keep" }).click();
    assert.equal((await eventsOf(page, "exported", "session_started")).length, 1);
    await page.getByRole("button", { name: "Delete", exact: true }).click();
    await question.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("heading", { name: "Sessions", level: 1 }).waitFor();
    await page.locator(".card-title", { hasText: /^exported$/ }).waitFor({ state: "detached" });
    assert.ok(!(await v1(page, "GET", "/sessions")).sessions.some(({ name }) => name === "exported"));
    assert.deepEqual(page.errors, []);
  });
}
