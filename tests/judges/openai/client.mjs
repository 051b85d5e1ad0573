// Plays one scenario against the front with OpenAI's own SDK for JavaScript.
//
//     client.mjs SCENARIO BASE_URL
//
// The scenarios are those of client.py, as far as the two SDKs read answers in different ways.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.OPENAI_JUDGE}/`);
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")).href);

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const FIRST = "It is at work.", LAST = "Seven, says the helper.";
const STORY = "Once there was a small robot that wanted to see the sea and so it went there.";

/** Returns the texts of a response. */
function texts({ output }) {
  return output.filter(({ type }) => type === "message").map(({ content }) => content[0].text);
}

/** Returns the items of a response, as far as both ways of reading it have them. The SDK adds fields to a stream's. */
function items({ output }) {
  return output.map(({ id, status, content }) => [id, status, content?.[0].text]);
}

const scenarios = {
  async models(client) {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert(ids.includes("duo") && ids.includes("planck"), ids);
    await assert.rejects(client.models.retrieve("nobody"), OpenAI.NotFoundError);
  },

  async chat(client) {
    const messages = [{ role: "system", content: "Be brief." }, { role: "user", content: "Hi" }];
    const { data, response } = await client.chat.completions.create({ model: "duo", messages }).withResponse();
    assert.equal(data.choices[0].message.content, "Hello there.");
    messages.push(data.choices[0].message, { role: "user", content: "More" });
    const stream = await client.chat.completions
      .create({ model: "duo", messages, stream: true, stream_options: { include_usage: true } })
      .withResponse();
    assert.equal(stream.response.headers.get("x-planck-session"), response.headers.get("x-planck-session"));
    let text = "", usage;
    for await (const chunk of stream.data) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, "Much more of it.");
    assert(usage);
    messages.push({ role: "assistant", content: text }, { role: "user", content: "And?" });
    const final = await client.chat.completions.stream({ model: "duo", messages }).finalContent();
    assert.equal(final, "That is all.");
  },

  async chat_tools(client) {
    const calls = [];
    const run = (city) => {
      const tool = (args) => {
        calls.push(args);
        return { Rome: "sunny", Oslo: "rain" }[args.city];
      };
      const definition = { name: "weather", parse: JSON.parse, parameters, function: tool };
      return client.chat.completions
        .runTools({ model: "planck", messages: [{ role: "user", content: `Weather in ${city}?` }], stream: city === "Oslo",
          tools: [{ type: "function", function: definition }] })
        .finalContent();
    };
    assert.equal(await run("Rome"), "Sunny in Rome.");
    assert.equal(await run("Oslo"), "Rain in Oslo.");
    assert.deepEqual(calls, [{ city: "Rome" }, { city: "Oslo" }]);
  },

  async shapes(sdk) {
    const { zodResponseFormat, zodTextFormat } = require("openai/helpers/zod");
    const { z } = require("zod");
    const client = sdk.withOptions({ maxRetries: 0 });
    const Weather = z.object({ city: z.string(), degrees: z.int() });
    const warm = { city: "Rome", degrees: 21 };
    const response_format = zodResponseFormat(Weather, "weather");
    const ask = { model: "duo", messages: [{ role: "user", content: "Weather in Rome?" }] };
    const { data, response } = await client.chat.completions.parse({ ...ask, response_format }).withResponse();
    const [{ message, finish_reason }] = data.choices;
    assert.deepEqual([message.parsed, finish_reason], [warm, "stop"]);
    ask.messages.push({ role: "assistant", content: message.content }, { role: "user", content: "And now?" });
    const next = await client.chat.completions.create(ask).withResponse();
    assert.equal(next.data.choices[0].message.content, "In words: warm.");
    assert.equal(next.response.headers.get("x-planck-session"), response.headers.get("x-planck-session"));
    // The model says something in prose first, and its answer is demanded.
    ask.messages = [{ role: "user", content: "Weather in Rome, streamed?" }];
    const streamed = await client.chat.completions.stream({ ...ask, response_format }).finalChatCompletion();
    assert.deepEqual(streamed.choices[0].message.parsed, warm);
    // The first answer does not satisfy the schema.
    const text = { format: zodTextFormat(Weather, "weather") };
    const parsed = await client.responses.parse({ model: "duo", input: "Weather in Rome?", text });
    assert.deepEqual([parsed.output_parsed, parsed.status], [warm, "completed"]);
    const stream = client.responses.stream({ model: "duo", input: "Again?", text });
    assert.deepEqual((await stream.finalResponse()).output_parsed, warm);
    const free = await client.chat.completions.create({ ...ask, response_format: { type: "json_object" } });
    assert.deepEqual(JSON.parse(free.choices[0].message.content), { any: [1] });
    const listed = { type: "json_schema", json_schema: { name: "list", schema: { type: "array" } } };
    const refused = client.chat.completions.create({ ...ask, response_format: listed });
    await assert.rejects(refused, (error) => error instanceof OpenAI.BadRequestError && /`type` must be/.test(error.message));
    // All answers are wrong.
    const wrong = client.chat.completions.parse({ ...ask, response_format });
    await assert.rejects(wrong, (error) => error.status === 422 && error.code === "output_invalid");
  },

  async responses(client) {
    const first = await client.responses.create({ model: "duo", input: "Hi" });
    assert.equal(first.output_text, "Hello there.");
    const stream = client.responses.stream({ model: "duo", input: "More", previous_response_id: first.id });
    let last = -1;
    for await (const event of stream) {
      assert(event.sequence_number > last, `${event.sequence_number} after ${last}`);
      last = event.sequence_number;
    }
    const second = await stream.finalResponse();
    assert.equal(second.output_text, "Much more of it.");
    const stale = client.responses.create({ model: "duo", input: "Else", previous_response_id: first.id });
    await assert.rejects(stale, OpenAI.ConflictError);
    const third = await client.responses.create({ model: "duo", input: "And?", conversation: second.conversation.id });
    assert.equal(third.output_text, "That is all.");
  },

  async background(client) {
    const response = await client.responses.create({ model: "planck", input: "Tell a story", background: true });
    let text = "", last;
    for await (const event of await client.responses.retrieve(response.id, { stream: true })) {
      last = event.sequence_number;
      if (event.type === "response.output_text.delta") text += event.delta;
      if (text.length > 12) break;
    }
    for await (const event of await client.responses.retrieve(response.id, { stream: true, starting_after: last })) {
      assert(event.sequence_number > last);
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(text, STORY);
  },

  async response_tools(client) {
    const tools = [{ type: "function", name: "weather", parameters, strict: false }];
    const response = await client.responses.create({ model: "planck", input: "Weather in Rome?", tools });
    const call = response.output.at(-1);
    assert.deepEqual(JSON.parse(call.arguments), { city: "Rome" });
    const input = [{ type: "function_call_output", call_id: call.call_id, output: "sunny" }];
    const done = await client.responses
      .stream({ model: "planck", input, previous_response_id: response.id })
      .finalResponse();
    assert.equal(done.output_text, "Sunny in Rome.");
  },

  async delete(client) {
    const first = await client.responses.create({ model: "planck", input: "One" });
    const second = await client.responses.create({ model: "planck", input: "Two", previous_response_id: first.id });
    await assert.rejects(client.responses.delete(first.id), OpenAI.ConflictError);
    await client.responses.delete(second.id);
    await assert.rejects(client.responses.retrieve(second.id), OpenAI.NotFoundError);
    const third = await client.responses.create({ model: "planck", input: "Three", previous_response_id: first.id });
    assert.equal(third.output_text, "Three.");
    await client.responses.delete(third.id);
    await client.responses.delete(first.id);
    await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
  },

  // The lead delegates, and its first turn ends before the result is there.
  async team_completion(client) {
    const messages = [{ role: "user", content: "How many?" }];
    const answer = await client.chat.completions.create({ model: "crew", messages });
    const [{ message, finish_reason }] = answer.choices;
    assert.deepEqual([message.content, finish_reason], [LAST, "stop"]);
    messages.push(message, { role: "user", content: "And?" });
    const more = await client.chat.completions.create({ model: "crew", messages });
    assert.equal(more.choices[0].message.content, "More.");
  },

  async team_stream(client) {
    const messages = [{ role: "user", content: "How many?" }];
    const { data, response } = await client.chat.completions.create({ model: "crew", messages, stream: true }).withResponse();
    const reasons = [];
    let content = "";
    for await (const { choices: [choice] } of data) {
      content += choice.delta.content ?? "";
      if (choice.finish_reason) reasons.push(choice.finish_reason);
    }
    assert.deepEqual([content, reasons], [`${FIRST}\n\n${LAST}`, ["stop"]]);
    messages.push({ role: "assistant", content }, { role: "user", content: "And?" });
    const more = await client.chat.completions.create({ model: "crew", messages }).withResponse();
    assert.equal(more.data.choices[0].message.content, "More.");
    assert.equal(more.response.headers.get("x-planck-session"), response.headers.get("x-planck-session"));
  },

  async team_response(client) {
    const stream = client.responses.stream({ model: "crew", input: "How many?" });
    let last = -1;
    for await (const event of stream) {
      assert(event.sequence_number > last, `${event.sequence_number} after ${last}`);
      last = event.sequence_number;
    }
    const response = await stream.finalResponse();
    assert.deepEqual([response.status, texts(response)], ["completed", [FIRST, LAST]]);
    const again = await client.responses.retrieve(response.id);
    assert.deepEqual(items(again), items(response));
    const more = await client.responses.create({ model: "crew", input: "And?", previous_response_id: response.id });
    assert.deepEqual(texts(more), ["More."]);
  },

  async team_background(client) {
    let response = await client.responses.create({ model: "crew", input: "How many?", background: true });
    const { id } = response;
    while (texts(response)[0] !== FIRST) response = await client.responses.retrieve(id);
    // While the lead rests and the helper works, the answer is open.
    if (texts(response).length === 1) assert.equal(response.status, "in_progress");
    const seen = [];
    for await (const event of await client.responses.retrieve(id, { stream: true })) {
      seen.push(event);
      if (event.type === "response.output_item.done") break;
    }
    const starting_after = seen.at(-1).sequence_number;
    for await (const event of await client.responses.retrieve(id, { stream: true, starting_after })) seen.push(event);
    const done = seen.filter(({ type, item }) => type === "response.output_item.done" && item.type === "message");
    assert.deepEqual(done.map(({ item }) => item.content[0].text), [FIRST, LAST]);
    const end = seen.at(-1);
    assert.deepEqual([end.type, texts(end.response)], ["response.completed", [FIRST, LAST]]);
    response = await client.responses.retrieve(id);
    assert.deepEqual([response.status, texts(response)], ["completed", [FIRST, LAST]]);
  },

  // The helper would take minutes. The lead is told that the helper was stopped, and is stopped as well.
  async team_cancel(client) {
    let response = await client.responses.create({ model: "crew", input: "How many?", background: true });
    const { id } = response;
    while (texts(response)[0] !== FIRST) response = await client.responses.retrieve(id);
    const cancelled = await client.responses.cancel(id);
    assert.deepEqual([cancelled.status, texts(cancelled)[0]], ["cancelled", FIRST]);
    response = await client.responses.retrieve(id);
    assert.deepEqual([response.status, response.output], ["cancelled", cancelled.output]);
    const more = await client.responses.create({ model: "crew", input: "And?", previous_response_id: id });
    assert.equal(more.status, "completed");
    assert(texts(more)[0].startsWith("Once there was"), texts(more));
  },

  // The node is killed while the coder works. The lead has read that the test is there, and rests.
  async shipped_team(client) {
    const metadata = { dir: process.env.PLANCK_DIR };
    const input = "A response: a tool that counts words, with a test";
    const stream = client.responses.stream({ model: "build-a-cli", input, metadata });
    const said = [];
    let last = -1;
    for await (const event of stream) {
      assert(event.sequence_number > last, `${event.sequence_number} after ${last}`);
      last = event.sequence_number;
      if (event.type !== "response.output_item.done" || event.item.type !== "message") continue;
      said.push(event.item.content[0].text);
      if (said.at(-1).startsWith("The test is there.")) console.log("waiting");
    }
    const response = await stream.finalResponse();
    assert.deepEqual([response.status, texts(response)], ["completed", said]);
    const again = await client.responses.retrieve(response.id);
    assert.deepEqual(items(again), items(response));
    console.log(JSON.stringify({ texts: said }));
  },

  async new_team(client) {
    const metadata = { dir: process.env.PLANCK_DIR };
    const messages = [{ role: "user", content: "A completion: what is in this folder?" }];
    const stream = await client.chat.completions.create({ model: "crew", messages, metadata, stream: true });
    const reasons = [];
    let text = "";
    for await (const { choices: [choice] } of stream) {
      const isBefore = !text.includes("The worker counts.");
      text += choice.delta.content ?? "";
      if (isBefore && text.includes("The worker counts.")) console.log("waiting");
      if (choice.finish_reason) reasons.push(choice.finish_reason);
    }
    assert.deepEqual(reasons, ["stop"]);
    console.log(JSON.stringify({ texts: text.split("\n\n") }));
  },

  // The node is killed in mid-stream. The item that had begun ends as incomplete, and a new one follows.
  async failover_responses(client) {
    const metadata = { dir: process.env.PLANCK_DIR };
    const stream = client.responses.stream({ model: "planck", input: "Tell javascript", metadata });
    const items = [];
    let text = "", last = -1;
    for await (const event of stream) {
      assert(event.sequence_number > last, `${event.sequence_number} after ${last}`);
      last = event.sequence_number;
      if (event.type === "response.output_text.delta") {
        if (!text.includes("slow-3") && (text + event.delta).includes("slow-3")) console.log("streaming");
        text += event.delta;
      }
      if (event.type === "response.output_item.done" && event.item.type === "message") items.push(event.item);
    }
    assert.deepEqual(items.map((item) => item.status), ["completed", "incomplete", "completed"]);
    const texts = items.map((item) => item.content[0].text);
    const [first, lost, second] = texts;
    assert.equal(text, texts.join(""));
    const response = await stream.finalResponse();
    assert.equal(response.status, "completed");
    console.log(JSON.stringify({ paragraphs: [first, second], void: lost }));
  },
};

const [name, url] = process.argv.slice(2);
await scenarios[name](new OpenAI({ apiKey: process.env.OPENAI_API_KEY ?? "unused", baseURL: `${url}/openai/v1`, timeout: 120_000 }));
console.log(`${name}: openai for JavaScript on Node ${process.version} found nothing wrong`);
