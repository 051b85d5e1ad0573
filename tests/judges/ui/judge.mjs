// Drives a front with the chat client of the AI SDK, and checks every chunk against the SDK's own
// schema. The test `http/tests/ui.rs` starts the front and plays the model; the scenes are in the
// order of its script. `PLANCK_FRONT` is the address of the front, and `PLANCK_KEY` its key. With `PLANCK_SCENE` only that scene
// of `inCluster` is played, for tests/tests/e2e/http/clients.rs.

import assert from 'node:assert/strict';
import {
  AbstractChat,
  DefaultChatTransport,
  asSchema,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  uiMessageChunkSchema,
  validateUIMessages,
} from 'ai';

const FRONT = process.env.PLANCK_FRONT;
const KEY = process.env.PLANCK_KEY;

/** Sends a request with the key of the front, if it has one. */
function fetch(url, init) {
  const headers = new Headers(init?.headers);
  if (KEY) headers.set('authorization', `Bearer ${KEY}`);
  return globalThis.fetch(url, { ...init, headers });
}

const schema = asSchema(uiMessageChunkSchema);
let checked = 0;

/** The state that `useChat` keeps, without React. */
class State {
  status = 'ready';
  error = undefined;
  constructor(messages) {
    this.messages = messages;
  }
  pushMessage = message => {
    this.messages = [...this.messages, message];
  };
  popMessage = () => {
    this.messages = this.messages.slice(0, -1);
  };
  replaceMessage = (index, message) => {
    this.messages = this.messages.map((old, at) => (at === index ? this.snapshot(message) : old));
  };
  snapshot = value => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor({ messages = [], ...options }) {
    super({ ...options, state: new State(messages) });
  }
}

/** Returns a chat and the chunks that it has received. */
function open(id, { body = {}, cutAfter, latest = false, ...options } = {}) {
  const chunks = [];
  const transport = new DefaultChatTransport({
    api: `${FRONT}/ui/chat`,
    body: { team: 'chat', ...body },
    prepareReconnectToStreamRequest: ({ id }) => ({ api: `${FRONT}/ui/chat/${id}/stream?latest=${latest}` }),
    fetch: async (url, init) => {
      const response = await fetch(url, init);
      if (!response.ok || response.status === 204) return response;
      assert.equal(response.headers.get('x-vercel-ai-ui-message-stream'), 'v1');
      return new Response(watched(response.body, chunks, cutAfter?.()), response);
    },
  });
  const errors = [];
  const onError = error => errors.push(error);
  const chat = new Chat({ id, transport, onError, ...options });
  return { chat, chunks, errors };
}

/** Checks each chunk of a stream. Breaks the stream off after `most` chunks. */
function watched(body, chunks, most = Infinity) {
  const decoder = new TextDecoder();
  let rest = '';
  let done = false;
  let count = 0;
  return body.pipeThrough(
    new TransformStream({
      async transform(bytes, controller) {
        rest += decoder.decode(bytes, { stream: true });
        const frames = rest.split('\n\n');
        rest = frames.pop();
        for (const frame of frames.filter(frame => frame.startsWith('data: '))) {
          assert.ok(!done, 'a frame after [DONE]');
          const data = frame.slice(6);
          done = data === '[DONE]';
          if (done) continue;
          const chunk = JSON.parse(data);
          const result = await schema.validate(chunk);
          assert.ok(result.success, `not of the schema: ${data}`);
          chunks.push(chunk);
          checked += 1;
          count += 1;
        }
        controller.enqueue(bytes);
        if (count >= most) controller.error(new TypeError('network error'));
      },
      flush() {
        assert.ok(done, 'the stream ended without [DONE]');
      },
    }),
  );
}

const kinds = chunks => chunks.map(chunk => chunk.type);
const parts = (message, type) => message.parts.filter(part => part.type === type);
const text = message => parts(message, 'text').map(part => part.text).join('');
const tools = message => parts(message, 'dynamic-tool');
const last = chat => chat.messages.at(-1);
const until = async (what, chat, holds) => {
  const end = Date.now() + 20_000;
  while (!holds()) {
    const seen = () => JSON.stringify([chat.status, chat.error?.message, last(chat)]);
    assert.ok(Date.now() < end, `waited in vain for ${what}: ${seen()}`);
    await new Promise(done => setTimeout(done, 10));
  }
};

/** Checks that the front gives a client that opens the chat again what this client has. */
async function isSaved(chat, saved = chat.messages) {
  const response = await fetch(`${FRONT}/ui/chat/${chat.id}/messages`);
  assert.equal(response.status, 200);
  const { messages, before } = await response.json();
  assert.equal(before, undefined);
  assert.deepEqual(messages, JSON.parse(JSON.stringify(saved)));
  if (messages.length > 0) await validateUIMessages({ messages });
}

const scenes = {
  async 'a chat that does not exist'() {
    const response = await fetch(`${FRONT}/ui/chat/nothing/messages`);
    assert.deepEqual(await response.json(), { messages: [] });
    const malformed = await fetch(`${FRONT}/ui/chat/a.b/messages`);
    assert.equal(malformed.status, 400);
  },

  async 'a text turn'() {
    const { chat, chunks, errors } = open('text-turn');
    await chat.sendMessage({ text: 'Hello?' });
    assert.deepEqual(errors, []);
    assert.equal(chat.status, 'ready');
    assert.equal(text(last(chat)), 'Hello from Planck.');
    assert.equal(last(chat).id, 'text-turn-1');
    assert.equal(last(chat).metadata.outcome, 'completed');
    assert.equal(last(chat).metadata.session, 'text-turn');
    const seen = kinds(chunks);
    assert.deepEqual([seen[0], seen[1], seen[2]], ['start', 'start-step', 'text-start']);
    assert.deepEqual(seen.slice(-3), ['text-end', 'finish-step', 'finish']);
    assert.equal(chunks.at(-1).finishReason, 'stop');
    await chat.sendMessage({ text: 'And again?' });
    assert.equal(text(last(chat)), 'Hello again.');
    assert.equal(chat.messages.length, 4);
    await isSaved(chat);
  },

  async 'a repeated request is harmless'() {
    const { chat } = open('text-turn');
    const message = { id: 'once', role: 'user', parts: [{ type: 'text', text: 'Only once.' }] };
    await chat.sendMessage(message);
    assert.equal(text(last(chat)), 'Once.');
    const again = open('text-turn').chat;
    await again.sendMessage(message);
    assert.equal(text(last(again)), 'Once.');
    assert.equal(last(again).id, last(chat).id);
  },

  async 'a tool turn'() {
    const { chat } = open('tool-turn');
    await chat.sendMessage({ text: 'What is in a.txt?' });
    const [tool] = tools(last(chat));
    assert.equal(tool.toolName, 'read');
    assert.equal(tool.state, 'output-available');
    assert.equal(tool.providerExecuted, true);
    assert.deepEqual(tool.input, { path: 'a.txt' });
    assert.match(tool.output, /hi there/);
    assert.equal(text(last(chat)), 'It says hi.');
    assert.equal(parts(last(chat), 'step-start').length, 2);
    await isSaved(chat);
  },

  async 'a tool that fails'() {
    const { chat } = open('tool-failure');
    await chat.sendMessage({ text: 'What is in none.txt?' });
    assert.equal(tools(last(chat))[0].state, 'output-error');
    assert.equal(text(last(chat)), 'There is no such file.');
    await isSaved(chat);
  },

  async 'an approval'() {
    const { chat, chunks, errors } = open('approval', {
      body: { permissions: 'careful' },
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    });
    await chat.sendMessage({ text: 'Write b.txt.' });
    let [tool] = tools(last(chat));
    assert.equal(tool.state, 'approval-requested');
    assert.equal(chunks.at(-1).finishReason, 'tool-calls');
    // A reload shows the same message, and still asks. Only the stream has a message that is not complete.
    await isSaved(chat, chat.messages.slice(0, 1));
    const reloaded = open('approval').chat;
    await reloaded.resumeStream();
    assert.deepEqual(tools(last(reloaded))[0].approval, tool.approval);
    assert.equal(last(reloaded).id, last(chat).id);
    // A prompt cannot overtake the question.
    await reloaded.sendMessage({ text: 'Something else.' });
    assert.equal(reloaded.status, 'error');
    assert.match(reloaded.error.message, /waits for an answer/);
    await chat.addToolApprovalResponse({ id: tool.approval.id, approved: true });
    await until('the end of the turn', chat, () => text(last(chat)) === 'Written.' && chat.status === 'ready');
    [tool] = tools(last(chat));
    assert.equal(tool.state, 'output-available');
    assert.equal(tools(last(chat)).length, 1);
    assert.equal(chat.messages.length, 2);
    assert.deepEqual(errors, []);
    await isSaved(chat);
  },

  async 'a denial'() {
    const { chat, errors } = open('denial', {
      body: { permissions: 'careful' },
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    });
    await chat.sendMessage({ text: 'Write c.txt.' });
    const { approval } = tools(last(chat))[0];
    await chat.addToolApprovalResponse({ id: approval.id, approved: false, reason: 'not today' });
    await until('the end of the turn', chat, () => text(last(chat)) === 'Not written.' && chat.status === 'ready');
    const [tool] = tools(last(chat));
    assert.equal(tool.state, 'output-denied');
    assert.equal(tool.approval.approved, false);
    assert.equal(tool.approval.reason, 'not today');
    assert.deepEqual(errors, []);
    await isSaved(chat);
  },

  async "a client's tool"() {
    const clientTools = [
      { name: 'getLocation', description: 'Where the user is.', parameters: { type: 'object' } },
    ];
    const called = [];
    const { chat, errors } = open('client-tool', {
      body: { clientTools },
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall({ toolCall }) {
        if (toolCall.dynamic) return;
        called.push(toolCall.toolName);
        const output = { city: 'Oslo' };
        chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output });
      },
    });
    await chat.sendMessage({ text: 'Where am I?' });
    await until('the end of the turn', chat, () => text(last(chat)) === 'In Oslo.' && chat.status === 'ready');
    const [tool] = parts(last(chat), 'tool-getLocation');
    assert.deepEqual(called, ['getLocation']);
    assert.equal(tool.state, 'output-available');
    assert.deepEqual(tool.output, { city: 'Oslo' });
    assert.equal(chat.messages.length, 2);
    assert.deepEqual(errors, []);
    await isSaved(chat);
  },

  async 'a worker'() {
    const { chat, chunks } = open('worker', { body: { team: 'pair' } });
    await chat.sendMessage({ text: 'How many?' });
    assert.equal(text(last(chat)), 'Seven, says the helper.');
    const states = chunks.filter(chunk => chunk.type === 'data-agent').map(chunk => chunk.data.state);
    assert.deepEqual(states, ['working', 'idle']);
    const agents = parts(last(chat), 'data-agent');
    assert.equal(agents.length, 1);
    assert.equal(agents[0].data.name, 'helper');
    assert.equal(agents[0].data.text, 'Seven.');
    await isSaved(chat);
  },

  async 'a team'() {
    const { chat, chunks, errors } = open('team', { body: { team: 'crew' } });
    await chat.sendMessage({ text: 'How many?' });
    assert.deepEqual(errors, []);
    assert.equal(chat.status, 'ready');
    assert.equal(chat.messages.length, 2);
    const texts = parts(last(chat), 'text').map(part => part.text);
    assert.deepEqual(texts, ['It is at work.', 'Seven, says the helper.']);
    assert.equal(kinds(chunks).filter(kind => kind === 'start').length, 1);
    await isSaved(chat);
    await chat.sendMessage({ text: 'And?' });
    assert.deepEqual(errors, []);
    assert.equal(text(last(chat)), 'No more.');
    await isSaved(chat);
  },

  async 'an answer in a shape'() {
    const seen = [];
    const { chat, chunks, errors } = open('shape', { body: { team: 'shaped' }, onData: part => seen.push(part) });
    for (const degrees of [21, 22]) {
      await chat.sendMessage({ text: 'Weather in Rome?' });
      assert.deepEqual(errors, []);
      assert.equal(chat.status, 'ready');
      const answers = parts(last(chat), 'data-output');
      assert.deepEqual(answers.map(part => part.data), [{ city: 'Rome', degrees }]);
      assert.deepEqual(seen.at(-1), answers[0]);
      assert.equal(chunks.at(-1).finishReason, 'stop');
      await isSaved(chat);
    }
    // The first answer of the first turn did not satisfy the schema.
    const calls = tools(chat.messages[1]).map(part => part.state);
    assert.deepEqual(calls, ['output-error', 'output-available']);
    const reopened = open('shape', { latest: true, messages: chat.messages.slice(0, 3) }).chat;
    await reopened.resumeStream();
    assert.deepEqual(reopened.messages, chat.messages);
  },

  async 'a reconnect in mid-stream'() {
    let most = 6;
    const { chat, errors } = open('reconnect', { cutAfter: () => most });
    await chat.sendMessage({ text: 'Count to fifty.' });
    assert.equal(chat.status, 'error');
    assert.equal(errors.length, 1);
    const numbers = Array.from({ length: 50 }, (_, at) => `n${at + 1}`).join(' ');
    assert.ok(text(last(chat)).length < numbers.length, text(last(chat)));
    // The disconnect did not abort the turn, and a second client joins it too.
    most = Infinity;
    const other = open('reconnect').chat;
    await Promise.all([chat.resumeStream(), other.resumeStream()]);
    for (const reader of [chat, other]) {
      assert.equal(text(last(reader)), numbers);
      assert.equal(last(reader).id, 'reconnect-1');
      assert.equal(reader.status, 'ready');
    }
    assert.equal(chat.messages.length, 2);
    // Nothing runs now, so there is nothing to resume.
    const after = await fetch(`${FRONT}/ui/chat/reconnect/stream`);
    assert.equal(after.status, 204);
    await chat.resumeStream();
    assert.equal(chat.status, 'ready');
    assert.equal(chat.messages.length, 2);
    // A client that missed the end of the message asks for the latest one.
    const late = open('reconnect', { latest: true, messages: [chat.messages[0]] });
    await late.chat.resumeStream();
    assert.deepEqual(late.chat.messages, chat.messages);
    assert.deepEqual(late.errors, []);
    await chat.resumeStream();
    assert.equal(chat.messages.length, 2);
    await isSaved(chat);
  },

  async 'a stop'() {
    const { chat, chunks } = open('stop');
    const done = chat.sendMessage({ text: 'Count for ever.' });
    await until('some text', chat, () => last(chat)?.role === 'assistant' && text(last(chat)).length > 10);
    const stopped = await fetch(`${FRONT}/ui/chat/stop/stop`, { method: 'POST' });
    assert.equal(stopped.status, 200);
    assert.equal((await stopped.json()).aborted.length, 1);
    await done;
    assert.ok(kinds(chunks).includes('abort'));
    assert.equal(chunks.at(-1).finishReason, 'interrupted');
    assert.equal(chat.status, 'ready');
    assert.ok(text(last(chat)).length < 3_000);
    await chat.sendMessage({ text: 'Go on?' });
    assert.equal(text(last(chat)), 'Yes.');
    await isSaved(chat);
    // The messages can be read after the session was closed too.
    const closed = await fetch(`${FRONT}/v1/sessions/stop/close`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{}',
    });
    assert.equal(closed.status, 200);
    await isSaved(chat);
    const late = open('stop', { latest: true, messages: chat.messages }).chat;
    await late.resumeStream();
    assert.deepEqual(late.messages, chat.messages);
  },

  async 'a regenerated answer and an edited question'() {
    const { chat, errors } = open('again');
    await chat.sendMessage({ text: 'Pick a number.' });
    assert.equal(text(last(chat)), 'One.');
    const first = last(chat).id;
    await chat.regenerate();
    assert.equal(text(last(chat)), 'Two.');
    assert.notEqual(last(chat).id, first);
    await chat.regenerate({ messageId: last(chat).id });
    assert.equal(text(last(chat)), 'Three.');
    assert.equal(chat.messages.length, 2);
    await chat.sendMessage({ text: 'Pick a letter.', messageId: chat.messages[0].id });
    assert.equal(text(last(chat)), 'B.');
    await chat.sendMessage({ text: 'Another.' });
    assert.equal(text(last(chat)), 'C.');
    assert.equal(chat.messages.length, 4);
    assert.deepEqual(errors, []);
    // The log has what the client shows.
    await isSaved(chat);
    const page = await (await fetch(`${FRONT}/v1/sessions/again/messages`)).json();
    const said = page.messages.map(message => message.content.map(part => part.text).join(''));
    assert.deepEqual(said, ['Pick a letter.', 'B.', 'Another.', 'C.']);
    // A client that has not seen the last messages is told so.
    const stale = open('again', { messages: chat.messages.slice(0, 2) }).chat;
    await stale.sendMessage({ text: 'Late.' });
    assert.match(stale.error.message, /history is not that of this chat/);
    // What a rewind hid is not given to a client that opens the chat again.
    for (const kept of [2, 0]) {
      const to = page.messages[kept].id;
      const rewound = await fetch(`${FRONT}/v1/sessions/again/rewind`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ to }),
      });
      assert.equal(rewound.status, 200);
      chat.messages = chat.messages.slice(0, kept);
      await isSaved(chat);
      const nothing = await fetch(`${FRONT}/ui/chat/again/stream?latest=true`);
      assert.equal(nothing.status, 204);
    }
  },

  async 'a failure'() {
    const { chat, chunks, errors } = open('failure');
    await chat.sendMessage({ text: 'Break.' });
    assert.equal(chat.status, 'error');
    assert.equal(errors.length, 1);
    assert.match(errors[0].message, /no luck today/);
    assert.equal(chunks.at(-1).type, 'error');
    last(chat).metadata.error = chunks.at(-1).errorText;
    await isSaved(chat);
  },

  async 'bad requests'() {
    const message = { id: 'm', role: 'user', parts: [{ type: 'text', text: 'x' }] };
    const body = { id: 'bad', messages: [message], trigger: 'submit-message' };
    const user = part => ({ ...body, messages: [{ ...message, parts: [part] }] });
    const json = { 'content-type': 'application/json' };
    const refused = [
      [400, { ...body, trigger: 'resume' }, /unknown trigger `resume`/],
      [400, { ...body, id: 'a b' }, /malformed chat id `a b`/],
      [400, { ...body, id: '../x' }, /malformed chat id/],
      [400, { ...body, messages: [] }, /no message of the user/],
      [400, user({ type: 'tool-x' }), /no part of type `tool-x`/],
      [400, user({ type: 'text', text: ' ' }), /empty/],
      [400, user({ type: 'file', mediaType: 'a/b', url: 'file:///etc/passwd' }), /begins with data:/],
      [400, { ...body, permissions: 'everything' }, /permissions|variant/],
      [400, { ...body, messages: [{ ...message, role: 'tool' }] }, /unknown role `tool`/],
      [404, { ...body, messages: [{ id: 'a', role: 'assistant', parts: [{ type: 'tool-x', toolCallId: 'c', state: 'output-available' }] }] }, /no chat `bad`/],
      [413, { ...body, filler: 'x'.repeat(9 << 20) }, /larger than/],
    ];
    for (const [status, sent, why] of refused) {
      const response = await fetch(`${FRONT}/ui/chat`, { method: 'POST', headers: json, body: JSON.stringify(sent) });
      const problem = await response.json();
      assert.equal(response.status, status, JSON.stringify(problem));
      assert.equal(response.headers.get('content-type'), 'application/problem+json');
      assert.match(problem.detail, why);
    }
    const plain = await fetch(`${FRONT}/ui/chat`, { method: 'POST', body: JSON.stringify(body) });
    assert.equal(plain.status, 415);
    const unknown = await fetch(`${FRONT}/ui/chat/nothing/stream`);
    assert.equal(unknown.status, 204);
    const stop = await fetch(`${FRONT}/ui/chat/nothing/stop`, { method: 'POST' });
    assert.equal(stop.status, 404);
  },
};

/** Scenes in a cluster whose nodes a test kills. */
const inCluster = {
  async 'a failover'() {
    const body = { team: undefined, dir: process.env.PLANCK_DIR };
    const { chat, chunks, errors } = open('failover', { body });
    const done = chat.sendMessage({ text: 'Tell ai-sdk' });
    await until('some text', chat, () => last(chat)?.role === 'assistant' && text(last(chat)).includes('slow-3'));
    console.log('streaming');
    const lost = parts(last(chat), 'text').at(-1).text;
    await done;
    assert.deepEqual(errors, []);
    assert.equal(chat.status, 'ready');
    assert.equal(kinds(chunks).filter(kind => kind === 'reset-step').length, 1);
    const paragraphs = parts(last(chat), 'text').map(part => part.text);
    assert.equal(chat.messages.length, 2);
    console.log(JSON.stringify({ paragraphs, void: lost }));
  },

  // The lead rests, and its node is killed while a worker works.
  'a shipped team': () => teamWhoseNodeIsKilled('build-a-cli', 'A talk: a tool that counts words, with a test', 'The test is there.', ['coder', 'tester']),
  'a new team': () => teamWhoseNodeIsKilled('crew', 'A chat: what is in this folder?', 'The worker counts.', ['worker']),
};

async function teamWhoseNodeIsKilled(team, prompt, before, workers) {
  const { chat, chunks, errors } = open(team, { body: { team, dir: process.env.PLANCK_DIR } });
  const done = chat.sendMessage({ text: prompt });
  await until(before, chat, () => last(chat)?.role === 'assistant' && text(last(chat)).includes(before));
  console.log('waiting');
  await done;
  assert.deepEqual(errors, []);
  assert.equal(chat.status, 'ready');
  assert.equal(chat.messages.length, 2);
  assert.equal(kinds(chunks).filter(kind => kind === 'start').length, 1);
  const agents = parts(last(chat), 'data-agent').map(({ data }) => `${data.name}: ${data.state}`);
  assert.deepEqual(agents.sort(), workers.map(name => `${name}: idle`));
  await isSaved(chat);
  console.log(JSON.stringify({ texts: parts(last(chat), 'text').map(part => part.text) }));
}

const chosen = process.env.PLANCK_SCENE;
for (const [name, scene] of chosen ? [[chosen, inCluster[chosen]]] : Object.entries(scenes)) {
  const begin = Date.now();
  try {
    await scene();
  } catch (error) {
    console.error(`FAILED: ${name}`);
    throw error;
  }
  console.log(`ok: ${name} (${Date.now() - begin} ms)`);
}
console.log(`${checked} chunks fit the schema`);
