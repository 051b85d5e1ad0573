// Requests to `/v1`. A refused request throws a `Problem` with the text that says what is wrong.

const KEY = "planck.key";
const DEADLINE_MS = 30_000;

/** Why a request failed: an error of the front (RFC 9457), or no answer at all (`status` 0). */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? `the front answered ${status}`);
    this.status = status;
    this.code = body.code ?? "unknown";
    this.retryable = body.retryable ?? status === 0;
  }
}

let askForKey = () => {};

/** Sets what happens when the front wants a key. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

export function authorization() {
  const key = sessionStorage.getItem(KEY);
  return key ? { authorization: `Bearer ${key}` } : {};
}

/**
 * Returns the problem that a response reports. A key is asked for unless the request had another one than the tab has now:
 * its refusal may arrive after the person typed the right key.
 */
export async function problemOf(response, sent) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // A proxy may answer with a page of its own.
  }
  const problem = new Problem(response.status, body);
  if (response.status === 401 && sent.authorization === authorization().authorization) askForKey(problem);
  return problem;
}

async function request(method, path, body) {
  const headers = authorization();
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(DEADLINE_MS),
    });
  } catch {
    throw new Problem(0, { detail: "The front does not answer.", code: "unreachable" });
  }
  if (!response.ok) throw await problemOf(response, headers);
  return response.json();
}

function query(fields) {
  const known = Object.entries(fields).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(known).toString();
  return text && `?${text}`;
}

const get = (path, fields = {}) => request("GET", path + query(fields));
const post = (path, body = {}) => request("POST", path, body);
const session = (id) => `/v1/sessions/${encodeURIComponent(id)}`;
const agent = (id) => `/v1/agents/${encodeURIComponent(id)}`;

export const api = {
  sessions: (filter) => get("/v1/sessions", filter),
  start: (start) => post("/v1/sessions", start),
  session: (id) => get(session(id)),
  events: (id, read) => get(`${session(id)}/events`, read),
  messages: (id, read) => get(`${session(id)}/messages`, read),
  prompt: (id, prompt) => post(`${session(id)}/prompt`, prompt),
  abort: (id) => post(`${session(id)}/abort`),
  rewind: (id, to) => post(`${session(id)}/rewind`, { to }),
  rename: (id, title) => post(`${session(id)}/rename`, { title }),
  resume: (id) => post(`${session(id)}/resume`),
  close: (id) => post(`${session(id)}/close`),
  remove: (id) => request("DELETE", session(id), {}),
  answer: (id, answer) => post(`${session(id)}/answer`, answer),
  waits: (filter) => get("/v1/waits", filter),
  agent: (id) => get(agent(id)),
  nudge: (id) => post(`${agent(id)}/nudge`),
  abortAgent: (id) => post(`${agent(id)}/abort`),
  changeModel: (id, model) => post(`${agent(id)}/change_model`, model),
  nodes: () => get("/v1/nodes"),
  drain: (id) => post(`/v1/nodes/${encodeURIComponent(id)}/drain`),
  teams: () => get("/v1/teams"),
  models: () => get("/v1/models"),
  sidecars: () => get("/v1/sidecars"),
};

/** Returns a new id for a prompt. `crypto.randomUUID` is missing on pages without TLS. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
