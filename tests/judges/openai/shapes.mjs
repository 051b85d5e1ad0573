// Plays scenes of the AI SDK that ask for answers in a shape.
//
//     shapes.mjs SCENARIO BASE_URL
//
// The scripted model of the front has the replies of all scenes, in their order (http/tests/openai/shapes.rs). So a
// client that makes a request too many or too few fails in the next scene.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.OPENAI_JUDGE}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { APICallError, NoObjectGeneratedError, Output, generateText, isStepCount, streamText, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { z } = await load("zod");
globalThis.AI_SDK_LOG_WARNINGS = false;

const warm = { city: "Rome", degrees: 21 };
const schema = z.object({ city: z.string(), degrees: z.int() });
const prompt = "Weather in Rome?";
const output = Output.object({ schema });

const scenarios = {
  async ai_sdk(baseURL) {
    const options = { baseURL, apiKey: "unused" };
    const openai = createOpenAI(options);
    const compatible = createOpenAICompatible({ ...options, name: "planck", supportsStructuredOutputs: true });
    for (const model of [openai.chat("planck"), openai.responses("planck"), compatible("planck")]) {
      const name = model.provider;
      const { output: answer, finishReason } = await generateText({ model, prompt, output });
      assert.deepEqual([answer, finishReason], [warm, "stop"], name);
      // The model says something in prose first, and its answer is demanded.
      const stream = streamText({ model, prompt, output });
      const partial = [];
      for await (const object of stream.partialOutputStream) partial.push(object);
      assert.deepEqual([partial.at(-1), await stream.output], [warm, warm], name);
      // Planck has the first answer repaired, of which the client sees nothing.
      const repaired = await generateText({ model, prompt, output });
      assert.deepEqual([repaired.output, repaired.steps.length], [warm, 1], name);
      // All answers are wrong. The SDK does not try again by itself, which would run the agents again.
      const failed = (error) => APICallError.isInstance(error) && error.message.includes("after 2 repairs");
      await assert.rejects(generateText({ model, prompt, output }), failed, name);
      const errors = [];
      const broken = streamText({ model, prompt, output, onError: ({ error }) => errors.push(error) });
      await assert.rejects(async () => broken.output, name);
      assert(errors.some((error) => error.message.includes("after 2 repairs")), `${name}: ${errors}`);
      // The model calls a tool of the client before it answers.
      const asked = [];
      const station = tool({
        description: "Reads a station.",
        inputSchema: schema,
        execute: ({ city, degrees }) => {
          asked.push(city);
          return `${degrees} degrees`;
        },
      });
      const equipped = { model, prompt, output, tools: { station }, stopWhen: isStepCount(3) };
      const { output: read, steps } = await generateText(equipped);
      assert.deepEqual([read, asked, steps.length], [warm, ["Rome"], 2], name);
      // The SDK puts a list into an object.
      const list = await generateText({ model, prompt, output: Output.array({ element: schema }) });
      assert.deepEqual(list.output, [warm], name);
    }
    // Without `supportsStructuredOutputs` this package does not send the schema, so Planck cannot keep it.
    const loose = createOpenAICompatible({ ...options, name: "planck" });
    const { output: any } = await generateText({ model: loose("planck"), prompt, output });
    assert.deepEqual(any, warm);
    const unfit = generateText({ model: loose("planck"), prompt, output });
    await assert.rejects(unfit.then(({ output: object }) => object), NoObjectGeneratedError.isInstance);
  },
};

const [name, url] = process.argv.slice(2);
await scenarios[name](`${url}/openai/v1`);
console.log(`${name}: found nothing wrong`);
