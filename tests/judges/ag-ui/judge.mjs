// Drives a front with `HttpAgent` of `@ag-ui/client`, which applies the client's own checks (`verifyEvents`) to every stream, and
// checks every event against the schema of `@ag-ui/core`. The test `http/tests/ag_ui.rs` starts the front and plays the model; the
// scenes are in the order of its script. `PLANCK_FRONT` is the address of the front, and `PLANCK_KEY` its key. With `PLANCK_SCENE`
// only that scene of `inCluster` is played, for tests/tests/e2e/http/clients.rs.

import assert from 'node:assert/strict';
import { HttpAgent, buildResumeArray } from '@ag-ui/client';
import { EventSchema } from '@ag-ui/core/schemas';

const FRONT = process.env.PLANCK_FRONT;
const KEY = process.env.PLANCK_KEY;
const headers = KEY ? { authorization: `Bearer ${KEY}` } : {};

// The client warns of what it does not know and strips it.
const warnings = [];
console.warn = (...said) => warnings.push(said.join(' '));
console.error = () => {};
// When a connection breaks, the client also cancels the body, and nothing takes that error.
process.on('unhandledRejection', error => {
  if (!/^(network error|terminated)$/.test(error?.message)) throw error;
});

let checked = 0;

/** Returns an agent and the events of its runs. The stream breaks off after `cutAfter()` events. */
function open(threadId, { team = 'chat', cutAfter, ...options } = {}) {
  const events = [];
  const agent = new HttpAgent({
    url: `${FRONT}/ag-ui/${team}`,
    threadId,
    headers,
    fetch: async (url, init) => {
      const response = await fetch(url, init);
      return response.ok ? new Response(watched(response.body, events, cutAfter?.()), response) : response;
    },
    ...options,
  });
  return { agent, events };
}

/** Checks each event of a stream strictly. Breaks the stream off after `most` events. */
function watched(body, events, most = Infinity) {
  const decoder = new TextDecoder();
  let rest = '';
  let count = 0;
  return body.pipeThrough(
    new TransformStream({
      transform(bytes, controller) {
        rest += decoder.decode(bytes, { stream: true });
        const frames = rest.split('\n\n');
        rest = frames.pop();
        for (const frame of frames.filter(frame => frame.startsWith('data: '))) {
          const event = JSON.parse(frame.slice(6));
          EventSchema.parse(event);
          events.push(event);
          checked += 1;
          count += 1;
        }
        controller.enqueue(bytes);
        if (count >= most) controller.error(new TypeError('network error'));
      },
      flush() {
        assert.match(events.at(-1)?.type, /^RUN_(FINISHED|ERROR)$/, 'the stream ended in the middle of a run');
      },
    }),
  );
}

let ids = 0;
const user = content => ({ id: `m-${process.pid}-${(ids += 1)}`, role: 'user', content });

/** Sends a message of the user, and returns the events of the run. */
async function say({ agent, events }, content, parameters) {
  const from = events.length;
  agent.addMessage(user(content));
  await agent.runAgent(parameters);
  return events.slice(from);
}

/** Runs without a new message, and returns the events of the run. */
async function run({ agent, events }, parameters) {
  const from = events.length;
  await agent.runAgent(parameters);
  return events.slice(from);
}

const kinds = events => events.map(event => event.type);
const outcome = events => events.at(-1).outcome;
const last = agent => agent.messages.at(-1);
const plain = messages => JSON.parse(JSON.stringify(messages));
const texts = agent => agent.messages.filter(({ role, content }) => role === 'assistant' && content).map(({ content }) => content);

/** Checks that a client which opens the thread now has the messages of this one. */
async function isSaved({ agent }, options) {
  const other = open(agent.threadId, options);
  await other.agent.runAgent();
  assert.deepEqual(plain(other.agent.messages), plain(agent.messages));
  assert.equal(kinds(other.events).filter(kind => kind === 'MESSAGES_SNAPSHOT').length, 1);
  return other;
}

async function until(what, holds) {
  const end = Date.now() + 60_000;
  while (!holds()) {
    assert.ok(Date.now() < end, `no ${what}`);
    await new Promise(done => setTimeout(done, 10));
  }
}

const careful = { forwardedProps: { permissions: 'careful' } };

const scenes = {
  async 'a text'() {
    const chat = open('text');
    const first = await say(chat, 'Hello?', { runId: 'run-1' });
    assert.deepEqual(kinds(first).filter(kind => kind !== 'TEXT_MESSAGE_CONTENT'), [
      'RUN_STARTED',
      'TEXT_MESSAGE_START',
      'TEXT_MESSAGE_END',
      'RUN_FINISHED',
    ]);
    assert.deepEqual([first[0].threadId, first[0].runId, first.at(-1).runId], ['text', 'run-1', 'run-1']);
    assert.deepEqual(outcome(first), { type: 'success' });
    assert.equal(first.at(-1).usage.length, 1);
    assert.deepEqual(texts(chat.agent), ['Hello from Planck.']);
    await say(chat, 'And?');
    assert.deepEqual(texts(chat.agent), ['Hello from Planck.', 'Hello again.']);
    await isSaved(chat);
    // A client that has all messages gets none of them again.
    const nothing = await run(chat);
    assert.deepEqual(kinds(nothing), ['RUN_STARTED', 'RUN_FINISHED']);
    // A client that sends no history gets it.
    const late = open('text');
    const snapshot = (await say(late, 'Again?')).find(event => event.type === 'MESSAGES_SNAPSHOT');
    assert.equal(snapshot.messages.length, 5);
    assert.deepEqual(texts(late.agent).toSorted(), ['Hello again.', 'Hello from Planck.', 'Once more.']);
    // The first client has not seen the last message.
    await assert.rejects(say(chat, 'Late.'), /HTTP 409.*are not those of the thread/);
  },

  async 'a repeated request'() {
    const message = user('Once?');
    const [one, two] = [open('repeat'), open('repeat')];
    for (const { agent } of [one, two]) agent.addMessage(message);
    await Promise.all([one.agent.runAgent({ runId: 'same' }), two.agent.runAgent({ runId: 'same' })]);
    const three = open('repeat', { initialMessages: [message] });
    await three.agent.runAgent();
    for (const { agent } of [one, two, three]) assert.deepEqual(texts(agent), ['Once.']);
  },

  async 'tools'() {
    const chat = open('tools');
    const events = await say(chat, 'Read.');
    assert.deepEqual(kinds(events).filter(kind => !kind.startsWith('TEXT')), [
      'RUN_STARTED',
      'TOOL_CALL_START',
      'TOOL_CALL_ARGS',
      'TOOL_CALL_END',
      'TOOL_CALL_RESULT',
      'TOOL_CALL_START',
      'TOOL_CALL_ARGS',
      'TOOL_CALL_END',
      'TOOL_CALL_RESULT',
      'RUN_FINISHED',
    ]);
    const [, called, result, , failed, said] = chat.agent.messages;
    assert.deepEqual(JSON.parse(called.toolCalls[0].function.arguments), { path: 'a.txt' });
    assert.match(result.content, /hi there/);
    assert.deepEqual(failed.metadata, { planck: { error: true } });
    assert.equal(said.content, 'There is no such file.');
    await isSaved(chat);
  },

  async 'an approval'() {
    const chat = open('allow');
    const events = await say(chat, 'Write.', careful);
    const [interrupt] = outcome(events).interrupts;
    assert.equal(interrupt.reason, 'tool_call');
    assert.equal(interrupt.toolCallId, last(chat.agent).toolCalls[0].id);
    assert.equal(interrupt.metadata.planck.request.args.path, 'b.txt');
    // A client that opens the thread gets the interrupt too.
    const other = await isSaved(chat);
    assert.deepEqual(other.agent.pendingInterrupts, chat.agent.pendingInterrupts);
    // Nothing but a clear yes for what was shown allows anything.
    const answer = (payload, id = interrupt.id) => ({ resume: [{ interruptId: id, status: 'resolved', payload }] });
    for (const payload of [true, 'yes', { approved: 'true' }, { approve: true }, {}, undefined])
      await assert.rejects(run(chat, answer(payload)), /HTTP 400.*approved/);
    const stranger = { ...answer({ approved: true }).resume[0], interruptId: 'x' };
    await assert.rejects(run(chat, { resume: [...answer({ approved: true }).resume, stranger] }), /HTTP 400.*no interrupt/);
    chat.agent.pendingInterrupts = [];
    await assert.rejects(run(chat, answer({ approved: true }, `${interrupt.toolCallId}:0000`)), /HTTP 409.*has changed/);
    const blocked = open('allow');
    await assert.rejects(say(blocked, 'Then?'), /HTTP 409.*waits for an answer/);
    const resumed = await run(chat, answer({ approved: true }));
    assert.deepEqual(kinds(resumed).slice(0, 2), ['RUN_STARTED', 'TOOL_CALL_RESULT']);
    assert.equal(resumed[1].toolCallId, interrupt.toolCallId);
    assert.deepEqual(outcome(resumed), { type: 'success' });
    assert.equal(last(chat.agent).content, 'Written.');
    assert.deepEqual(chat.agent.pendingInterrupts, []);
    // The same answer again changes nothing.
    assert.deepEqual(kinds(await run(chat, answer({ approved: true }))), ['RUN_STARTED', 'RUN_FINISHED']);
    await isSaved(chat);
  },

  async 'a denial and changed arguments'() {
    const chat = open('deny');
    await say(chat, 'Write.', careful);
    const [interrupt] = chat.agent.pendingInterrupts;
    const denial = { [interrupt.id]: { status: 'resolved', payload: { approved: false, reason: 'not today' } } };
    await run(chat, { resume: buildResumeArray([interrupt], denial) });
    assert.match(chat.agent.messages.find(({ role }) => role === 'tool').content, /not today/);
    assert.equal(last(chat.agent).content, 'Not written.');
    await say(chat, 'Write again.');
    const [cancelled] = chat.agent.pendingInterrupts;
    await run(chat, { resume: [{ interruptId: cancelled.id, status: 'cancelled' }] });
    assert.equal(last(chat.agent).content, 'Not written again.');
    await say(chat, 'And again.');
    const [edited] = chat.agent.pendingInterrupts;
    const editedArgs = { path: 'e.txt', content: 'edited' };
    await run(chat, { resume: [{ interruptId: edited.id, status: 'resolved', payload: { approved: true, editedArgs } }] });
    assert.equal(last(chat.agent).content, 'Written, edited.');
    await isSaved(chat);
  },

  async "a client's tool"() {
    const tools = [{ name: 'getLocation', description: 'Where the user is.', parameters: { type: 'object' } }];
    const chat = open('client-tool');
    const events = await say(chat, 'Where am I?', { tools });
    const call = last(chat.agent).toolCalls[0];
    assert.deepEqual(outcome(events), { type: 'success', pendingToolCallIds: [call.id] });
    chat.agent.addMessage({ id: 'r1', role: 'tool', toolCallId: call.id, content: '{"city":"Oslo"}' });
    await run(chat, { tools });
    assert.equal(last(chat.agent).content, 'In Oslo.');
    assert.equal(chat.agent.messages.filter(({ role }) => role === 'tool').length, 1);
    assert.deepEqual(kinds(await run(chat, { tools })), ['RUN_STARTED', 'RUN_FINISHED']);
  },

  async 'context'() {
    const chat = open('context');
    const context = [{ description: 'The open page', value: 'Invoices' }];
    await say(chat, 'What do I see?', { context });
    assert.equal(last(chat.agent).content, 'Invoices.');
    await isSaved(chat);
    const page = await (await fetch(`${FRONT}/v1/sessions/context/messages`, { headers })).json();
    assert.match(page.messages[0].content[0].text, /The open page: Invoices/);
  },

  async 'a worker'() {
    const chat = open('worker', { team: 'pair' });
    const events = await say(chat, 'How many?');
    const states = events.filter(({ type }) => type === 'ACTIVITY_SNAPSHOT').map(({ content }) => content.state);
    assert.deepEqual(states, ['working', 'idle']);
    const [activity] = chat.agent.messages.filter(({ role }) => role === 'activity');
    assert.deepEqual([activity.content.name, activity.content.text], ['helper', 'Seven.']);
    assert.deepEqual(texts(chat.agent), ['Seven, says the helper.']);
    await isSaved(chat, { team: 'pair' });
  },

  async 'an answer in a shape'() {
    const chat = open('shape', { team: 'shaped' });
    chat.agent.addMessage(user('Weather in Rome?'));
    const { result } = await chat.agent.runAgent();
    assert.deepEqual(result, { city: 'Rome', degrees: 21 });
    await isSaved(chat, { team: 'shaped' });
  },

  async 'a running run'() {
    const numbers = Array.from({ length: 50 }, (_, at) => `n${at + 1}`).join(' ');
    const chat = open('join');
    const running = say(chat, 'Count to fifty.');
    await until('some text', () => texts(chat.agent)[0]?.length > 10);
    const joined = open('join');
    // A client whose connection breaks aborts nothing, and gets the rest later.
    let most = 4;
    const cut = open('join', { cutAfter: () => most });
    await Promise.all([
      running,
      joined.agent.runAgent(),
      assert.rejects(cut.agent.runAgent(), /network error/).then(() => {
        most = Infinity;
        return cut.agent.runAgent();
      }),
    ]);
    for (const { agent } of [chat, joined, cut]) {
      assert.deepEqual(texts(agent), [numbers]);
      assert.deepEqual(plain(agent.messages), plain(chat.agent.messages));
    }
    await isSaved(chat);
  },

  async 'a stop'() {
    const chat = open('stop');
    const running = say(chat, 'Count for ever.');
    await until('some text', () => texts(chat.agent)[0]?.length > 10);
    const stopped = await fetch(`${FRONT}/v1/sessions/stop/abort`, {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/json' },
      body: '{}',
    });
    assert.equal(stopped.status, 200);
    assert.deepEqual(outcome(await running), { type: 'cancelled' });
  },

  async 'a failure'() {
    const chat = open('failure');
    const events = await say(chat, 'Break.');
    assert.equal(events.at(-1).type, 'RUN_ERROR');
    assert.match(events.at(-1).message, /no luck today/);
  },

  async 'nothing'() {
    const { agent, events } = open('nothing');
    await agent.runAgent();
    assert.deepEqual(kinds(events), ['RUN_STARTED', 'RUN_FINISHED']);
    assert.equal((await fetch(`${FRONT}/v1/sessions/nothing`, { headers })).status, 404);
  },

  async 'bad requests'() {
    const message = { id: 'm', role: 'user', content: 'x' };
    const body = { threadId: 'bad', runId: 'r', messages: [message] };
    const said = content => ({ ...body, messages: [{ ...message, content }] });
    const refused = [
      [400, { ...body, threadId: 'a b' }, /malformed threadId `a b`/],
      [400, { ...body, runId: undefined }, /runId/],
      [400, { ...body, messages: [{ role: 'user', content: 'x' }] }, /messages\[0\].*id/],
      [400, said(' '), /empty/],
      [400, said([{ type: 'widget' }]), /no part of type `widget`/],
      [400, said([{ type: 'image', source: { type: 'file', value: 'f' } }]), /`source`/],
      [400, { ...body, forwardedProps: { permissions: 'everything' } }, /permissions/],
      [400, { ...body, resume: [{ interruptId: 'x', status: 'allowed' }] }, /resume\[0\].status/],
      [404, { ...body, resume: [{ interruptId: 'c:d', status: 'resolved' }] }, /no thread `bad`/],
      [409, { ...body, threadId: 'worker' }, /has the team `pair`; send it to `\/ag-ui\/pair`/],
      [413, { ...body, state: 'x'.repeat(9 << 20) }, /larger than/],
    ];
    const post = (team, sent) =>
      fetch(`${FRONT}/ag-ui/${team}`, {
        method: 'POST',
        headers: { ...headers, 'content-type': 'application/json' },
        body: JSON.stringify(sent),
      });
    for (const [status, sent, why] of refused) {
      const response = await post('chat', sent);
      const problem = await response.json();
      assert.equal(response.status, status, JSON.stringify(problem));
      assert.equal(response.headers.get('content-type'), 'application/problem+json');
      assert.match(problem.detail, why);
    }
    const unknown = await post('nobodys', body);
    assert.equal(unknown.status, 404, await unknown.text());
  },
};

/** Scenes in a cluster whose nodes and fronts a test kills. */
const inCluster = {
  async 'a failover'() {
    const chat = open('lost-node', { team: 'planck' });
    const running = say(chat, 'Tell ag-ui', { forwardedProps: { dir: process.env.PLANCK_DIR } });
    await until('some text', () => texts(chat.agent).at(-1)?.includes('slow-3'));
    console.log('streaming');
    const lost = texts(chat.agent).at(-1);
    const events = await running;
    assert.equal(kinds(events).filter(kind => kind === 'MESSAGES_SNAPSHOT').length, 1);
    await isSaved(chat, { team: 'planck' });
    console.log(JSON.stringify({ paragraphs: texts(chat.agent), void: lost }));
  },

  async 'a question'() {
    const chat = open('question', { team: 'asks' });
    await say(chat, 'Ask me.', { forwardedProps: { dir: process.env.PLANCK_DIR } });
    const [interrupt] = chat.agent.pendingInterrupts;
    assert.equal(interrupt.reason, 'input_required');
    assert.match(JSON.stringify(interrupt.metadata), /Which city\?/);
    await run(chat, { resume: [{ interruptId: interrupt.id, status: 'resolved', payload: 'Oslo' }] });
    assert.match(chat.agent.messages.find(({ role }) => role === 'tool').content, /Oslo/);
    assert.equal(last(chat.agent).content, 'Oslo it is.');
    await isSaved(chat, { team: 'asks' });
  },

  async 'a killed front'() {
    const chat = open('killed', { team: 'planck' });
    const running = say(chat, 'Tell killed', { forwardedProps: { dir: process.env.PLANCK_DIR } });
    await until('some text', () => texts(chat.agent).at(-1)?.includes('slow-3'));
    console.log('streaming');
    await assert.rejects(running);
    // The next front has the same address.
    const end = Date.now() + 60_000;
    for (;;) {
      try {
        await chat.agent.runAgent();
        break;
      } catch (error) {
        assert.ok(Date.now() < end, error.stack);
        await new Promise(done => setTimeout(done, 100));
      }
    }
    assert.deepEqual(outcome(chat.events), { type: 'success' });
    const saved = await isSaved(chat, { team: 'planck' });
    const reasoning = saved.agent.messages.filter(({ role }) => role === 'reasoning').map(({ content }) => content);
    console.log(JSON.stringify({ paragraphs: texts(chat.agent), reasoning }));
  },
};

const chosen = process.env.PLANCK_SCENE;
for (const [name, scene] of chosen ? [[chosen, inCluster[chosen]]] : Object.entries(scenes)) {
  const begin = Date.now();
  try {
    await scene();
    assert.deepEqual(warnings, []);
  } catch (error) {
    process.stderr.write(`FAILED: ${name}\n`);
    throw error;
  }
  console.log(`ok: ${name} (${Date.now() - begin} ms)`);
}
console.log(`${checked} events fit the schema`);
