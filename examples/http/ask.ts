// Starts a session at a front, sends a prompt, and prints the answer as it comes.
// Usage: node ask.ts PROMPT, with Node 22.18 or later. PLANCK_URL is the front; PLANCK_KEY is a key,
// such as `planck serve key` prints.
const base = process.env.PLANCK_URL ?? "http://127.0.0.1:8400";
const key: Record<string, string> = process.env.PLANCK_KEY ? { authorization: `Bearer ${process.env.PLANCK_KEY}` } : {};

async function post(path: string, body: unknown, id: string): Promise<any> {
  const headers = { ...key, "content-type": "application/json", "idempotency-key": id };
  const answer = await fetch(base + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(((await answer.json()) as { detail: string }).detail);
  return answer.json();
}

/** Yields the events after number `last`, until the outcome of the prompt. Connects again when the stream breaks. */
async function* events(session: string, prompt: string, last: number): AsyncGenerator<any> {
  for (;;) {
    try {
      const headers = { ...key, accept: "text/event-stream", "last-event-id": String(last) };
      const answer = await fetch(`${base}/v1/sessions/${session}/events?prompt=${prompt}`, { headers });
      if (answer.status >= 400 && answer.status < 500) throw new RangeError(await answer.text());
      let rest = "";
      for await (const chunk of answer.body!.pipeThrough(new TextDecoderStream())) {
        const lines = (rest + chunk).split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) {
          if (line.startsWith("id: ")) last = Number(line.slice(4));
          if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
        }
      }
    } catch (error) {
      if (error instanceof RangeError) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

const id = crypto.randomUUID();
const { session_id } = await post("/v1/sessions", {}, id);
const accepted = await post(`/v1/sessions/${session_id}/prompt`, { text: process.argv[2] }, id);
let shown = ""; // what was printed of the reply that is not saved yet
for await (const event of events(session_id, accepted.prompt_id, accepted.seq)) {
  // The work is over: that of the agent, and of all to which it gave tasks.
  if (event.outcome && event.outcome !== "completed") throw new Error(event.error?.reason ?? event.outcome);
  if (event.outcome) break;
  if (event.agent_id !== accepted.agent_id) continue;
  if (event.type === "text_delta") {
    process.stdout.write(event.data.text);
    shown += event.data.text;
  }
  if (event.type === "message" && event.data.message.role === "assistant") {
    const texts = event.data.message.content.filter((part: any) => part.type === "text");
    const text: string = texts.map((part: any) => part.text).join("");
    // Deltas are not repeated for a client that was away.
    process.stdout.write(text.startsWith(shown) ? text.slice(shown.length) : `\n${text}`);
    if (text) console.log();
    shown = "";
  }
}
process.exit(0);
