// A wait, and the form that answers it.

import { html, useState } from "./html.js";
import { api } from "./api.js";
import { text, until } from "./format.js";
import { useAction, useNow } from "./live.js";
import { Arguments } from "./arguments.js";
import { Badge, Pre, ProblemNote } from "./parts.js";
import { visibleJson } from "./visible.js";

const KINDS = {
  approval: "Approval",
  question: "Question",
  client_tool: "Tool of the client",
  budget: "Budget",
  change: "Changed files",
};

/** Shows a wait with its answer form. `onAnswered` is called with the reply. */
export function WaitCard({ wait, session, isInline, readOnly, onAnswered, outcome }) {
  const action = useAction();
  const [mine, setMine] = useState(undefined);
  const now = useNow(1_000, Boolean(wait.expires_at) && !outcome && !mine);
  const send = async (answer) => {
    const reply = await action.run(() => api.answer(session, { wait: wait.id, digest: wait.digest, ...answer }));
    if (!reply) return;
    setMine(reply);
    onAnswered?.(reply);
  };
  const done = outcome ?? mine;
  const Form = FORMS[wait.kind];
  return html`<section class=${`wait-card ${isInline ? "inline" : ""}`} aria-label=${`${KINDS[wait.kind] ?? wait.kind}: ${text(wait.title)}`}>
    ${!isInline && html`<header><${Badge} tone="wait">${KINDS[wait.kind] ?? wait.kind}<//>
      <h2>${text(wait.title)}</h2></header>`}
    ${isInline && wait.kind === "question" && html`<h2>${text(wait.title)}</h2>`}
    <${Request} wait=${wait} isInline=${isInline} />
    ${wait.expires_at && !done && html`<p class="muted">Expires ${until(wait.expires_at, now)}</p>`}
    ${done
      ? html`<p class="decision">Decided: ${done.decision}${done.answered_by ? ` by ${done.answered_by}` : ""}${done.reason ? `: ${done.reason}` : ""}</p>`
      : Form && !readOnly && html`<${Form} wait=${wait} send=${send} isBusy=${action.isRunning} />`}
    <${ProblemNote} problem=${action.problem} onClose=${action.clear} />
  </section>`;
}

/** What is asked. In the conversation, the call itself shows its arguments. */
function Request({ wait, isInline }) {
  const { request } = wait;
  if (!request || wait.kind === "question" || wait.kind === "budget") return null;
  if (wait.kind === "change") return html`<${Changes} changes=${request.changes ?? []} />`;
  const { tool, args, why } = request;
  return html`${!isInline && (args
      ? html`<${Arguments} name=${tool} args=${args} />`
      : html`<${Pre} label="What is asked" value=${text(request)} />`)}
    ${why && html`<p class="muted">Asked because ${text(why)}.</p>`}`;
}

/** The protected files that were changed, with their present text. */
function Changes({ changes }) {
  return html`<div class="changes">
    <p>These files can make other programs run code later, outside of the sandbox. Nothing of the session runs until you decide.</p>
    ${changes.map((change) => change.text === undefined
      ? html`<p class="mono">${change.change}: ${text(change.path)}</p>`
      : html`<${Pre} label=${`${change.change}: ${text(change.path)}`} value=${text(change.text)} />`)}
  </div>`;
}

function Approval({ wait, send, isBusy }) {
  const [reason, setReason] = useState("");
  const [args, setArgs] = useState(undefined);
  const [isForSession, setForSession] = useState(false);
  const parsed = args === undefined ? { value: undefined } : parse(args);
  const allow = () => send({ decision: "allow", args: parsed.value, scope: isForSession ? "session" : undefined });
  const deny = () => send({ decision: "deny", reason: reason || undefined });
  return html`<div class="answer">
    ${wait.rule && html`<label class="check"><input type="checkbox" checked=${isForSession} onChange=${(event) => setForSession(event.target.checked)} />
      <span>For the rest of the session, also allow <code>${ruleText(wait.rule)}</code></span></label>`}
    ${args === undefined
      ? html`<button class="quiet" onClick=${() => setArgs(visibleJson(wait.request?.args ?? {}))}>Edit the arguments…</button>`
      : html`<label class="field"><span>Arguments to run with</span>
          <textarea class="mono" rows="5" value=${args} onInput=${(event) => setArgs(event.target.value)}></textarea></label>
          ${parsed.error && html`<p class="bad-text">${parsed.error}</p>`}`}
    <label class="field"><span>Reason for a denial, which the model reads</span>
      <input value=${reason} onInput=${(event) => setReason(event.target.value)} /></label>
    <div class="row">
      <button class="primary" disabled=${isBusy || Boolean(parsed.error)} onClick=${allow}>Allow</button>
      <button class="danger" disabled=${isBusy} onClick=${deny}>Deny</button>
    </div>
  </div>`;
}

/** Returns a rule as short text: the tool with what it is limited to. */
export function ruleText(rule) {
  const { action, tool, ...rest } = rule;
  return text([tool ?? "every tool", ...Object.values(rest)].join(" "));
}

function Question({ wait, send, isBusy }) {
  const [value, setValue] = useState("");
  const needsJson = wait.schema && wait.schema.type && wait.schema.type !== "string";
  const parsed = needsJson && value ? parse(value) : { value };
  return html`<div class="answer">
    ${wait.options && html`<div class="row options">${wait.options.map((option) => html`<button disabled=${isBusy} onClick=${() => send({ decision: "answer", value: option })}>${text(option)}</button>`)}</div>`}
    <label class="field"><span>${needsJson ? "Answer as JSON" : "Answer"}</span>
      <textarea rows="2" value=${value} onInput=${(event) => setValue(event.target.value)}></textarea></label>
    ${parsed.error && html`<p class="bad-text">${parsed.error}</p>`}
    <div class="row">
      <button class="primary" disabled=${isBusy || !value || Boolean(parsed.error)} onClick=${() => send({ decision: "answer", value: parsed.value })}>Answer</button>
      <button disabled=${isBusy} onClick=${() => send({ decision: "deny" })}>Decline</button>
    </div>
  </div>`;
}

function Budget({ wait, send, isBusy }) {
  const [value, setValue] = useState("");
  const number = Number(value);
  const isNumber = value !== "" && Number.isFinite(number) && number > 0;
  return html`<div class="answer">
    <label class="field"><span>New limit</span>
      <input inputmode="decimal" value=${value} onInput=${(event) => setValue(event.target.value)} /></label>
    <div class="row">
      <button class="primary" disabled=${isBusy || !isNumber} onClick=${() => send({ decision: "allow", value: number })}>Raise the limit</button>
      <button class="danger" disabled=${isBusy} onClick=${() => send({ decision: "deny" })}>End the turn</button>
    </div>
  </div>`;
}

function Change({ send, isBusy }) {
  return html`<div class="answer">
    <div class="row">
      <button class="primary" disabled=${isBusy} onClick=${() => send({ decision: "allow" })}>Keep the changes</button>
      <button class="danger" disabled=${isBusy} onClick=${() => send({ decision: "deny" })}>End the session's work</button>
    </div>
  </div>`;
}

function ClientTool({ wait, send, isBusy }) {
  const [value, setValue] = useState("");
  const parsed = /^\s*[[{"]/.test(value) ? parse(value) : { value };
  return html`<div class="answer">
    <p class="muted">The program that started the session runs this tool. Answer in its place only if it is gone.</p>
    <label class="field"><span>Result, as text or JSON</span>
      <textarea rows="2" value=${value} onInput=${(event) => setValue(event.target.value)}></textarea></label>
    ${parsed.error && html`<p class="bad-text">${parsed.error}</p>`}
    <div class="row">
      <button class="primary" disabled=${isBusy || !value || Boolean(parsed.error)} onClick=${() => send({ decision: "answer", value: parsed.value })}>Send the result</button>
      <button class="danger" disabled=${isBusy} onClick=${() => send({ decision: "error", reason: value || undefined })}>Report an error</button>
    </div>
  </div>`;
}

const FORMS = { approval: Approval, question: Question, budget: Budget, change: Change, client_tool: ClientTool };

function parse(json) {
  try {
    return { value: JSON.parse(json) };
  } catch (error) {
    return { error: `This is no valid JSON: ${error.message}` };
  }
}
