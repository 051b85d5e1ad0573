// Small parts that several pages use.

import { html, useEffect, useRef, useState } from "./html.js";

/** What went wrong, and what helps. */
export function ProblemNote({ problem, onClose }) {
  if (!problem) return null;
  const hint = problem.status === 403 ? "Your key's role is not enough for this." : "";
  return html`<div class="problem" role="alert">
    <p><strong>${titleOf(problem)}</strong> ${problem.message} ${hint}</p>
    ${onClose && html`<button class="quiet" onClick=${onClose} aria-label="Dismiss">✕</button>`}
  </div>`;
}

function titleOf(problem) {
  const titles = { 0: "No connection.", 403: "Not allowed.", 404: "Not found.", 409: "Already decided or taken." };
  return titles[problem.status] ?? `Refused (${problem.code}).`;
}

/** A state as a word with a mark, so that it can be read without colours. */
export function Badge({ tone, children, title }) {
  return html`<span class=${`badge ${tone}`} title=${title}>${children}</span>`;
}

/** The commands that do the same as this page. */
export function Commands({ commands }) {
  return html`<aside class="commands" aria-label="The same on the command line">
    <h2>On the command line</h2>
    <ul>${commands.map((command) => html`<${Command} key=${command} command=${command} />`)}</ul>
  </aside>`;
}

function Command({ command }) {
  return html`<li>
    <code tabindex="0">${command}</code>
    ${command.startsWith("nats ") && html`<span class="muted">with NATS</span>`}
    <${CopyButton} text=${command} what=${command} />
  </li>`;
}

/** A button that copies a text. It says so only if the text was copied. */
export function CopyButton({ text, what }) {
  const [said, setSaid] = useState("copy");
  const copy = async () => {
    setSaid((await copied(text)) ? "copied" : "not copied");
    setTimeout(() => setSaid("copy"), 1_500);
  };
  return html`<button type="button" class="quiet copy" onClick=${copy} aria-label=${`${said}: ${what}`}>${said}</button>`;
}

/** Copies a text, and returns whether that worked. A page without TLS that is not of this machine has no clipboard. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    return isDone;
  }
}

/** A dialog that is closed with Escape, and gives the focus back. */
export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef(null);
  useEffect(() => {
    const dialog = ref.current;
    dialog.showModal();
    return () => dialog.open && dialog.close();
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    onClose?.();
  };
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} onCancel=${cancel} aria-labelledby="dialog-title">
    <header><h2 id="dialog-title">${title}</h2>
      ${onClose && html`<button class="quiet" onClick=${onClose} aria-label="Close">✕</button>`}
    </header>
    ${children}
  </dialog>`;
}

/** A button that asks once more before it acts. */
export function ConfirmButton({ label, question, onConfirm, className = "", disabled, busy }) {
  const [isAsking, setAsking] = useState(false);
  if (!isAsking) {
    return html`<button class=${className} disabled=${disabled || busy} onClick=${() => setAsking(true)}>${busy ? "…" : label}</button>`;
  }
  const confirm = () => {
    setAsking(false);
    onConfirm();
  };
  return html`<span class="confirm" role="group" aria-label=${question}>
    <span>${question}</span>
    <button class="danger" ref=${(node) => node?.focus()} onClick=${confirm}>${label}</button>
    <button onClick=${() => setAsking(false)}>Keep</button>
  </span>`;
}

/** The page while nothing is there. */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

/** A text in a box that scrolls. */
export function Pre({ label, value, isError }) {
  return html`<div class="labelled"><span class="label">${label}</span>
    <pre class=${isError ? "bad" : ""} tabindex="0" role="group" aria-label=${label}>${value}</pre>
  </div>`;
}
