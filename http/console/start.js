// The form that starts a session.

import { html, useEffect, useState } from "./html.js";
import { api, newId } from "./api.js";
import { quoted } from "./format.js";
import { useAction } from "./live.js";
import { Dialog, ProblemNote } from "./parts.js";

const DIR = "planck.dir";
/** The names of sessions. Browsers read a pattern with the flag `v`, which allows no bare "-" after a range. */
const NAME = "([a-z0-9]|-){1,64}";

export function StartDialog({ onClose, onStarted }) {
  const [choices, setChoices] = useState({ teams: [], workspaces: [] });
  const [form, setForm] = useState({ team: "", place: "", dir: localStorage.getItem(DIR) ?? "", permissions: "auto", name: "", prompt: "" });
  // The id stays the same if the same form is sent again, so that it starts one session.
  const [id] = useState(newId);
  const action = useAction();
  useEffect(() => {
    Promise.all([api.teams(), api.nodes(), api.sessions({ limit: 1 })]).then(([teams, nodes, latest]) => {
      const workspaces = [...new Set(nodes.nodes.flatMap((node) => node.workspaces))].filter((name) => !name.startsWith("local:")).sort();
      setChoices({ teams: teams.teams, workspaces });
      setForm((old) => ({ ...old, place: workspaces[0] ?? "", dir: old.dir || suggestion(latest.sessions[0]) }));
    }, () => {});
  }, []);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const submit = async (event) => {
    event.preventDefault();
    const started = await action.run(() => api.start(request(form, id)));
    if (!started) return;
    if (form.dir) localStorage.setItem(DIR, form.dir);
    onStarted(started);
  };
  return html`<${Dialog} title="New session" onClose=${onClose} wide=${true}>
    <form class="form" onSubmit=${submit}>
      <label class="field full"><span>Prompt</span><textarea name="prompt" rows="4" value=${form.prompt} onInput=${set("prompt")} placeholder="What should be done?" autofocus></textarea></label>
      <label class="field"><span>Team</span><select name="team" value=${form.team} onChange=${set("team")}>
        <option value="">One agent</option>
        ${choices.teams.map((team) => html`<option value=${team.name}>${team.name} (${team.members.length})</option>`)}
      </select></label>
      <label class="field"><span>Permissions</span><select name="permissions" value=${form.permissions} onChange=${set("permissions")}>
        <option value="auto">auto: every call runs</option>
        <option value="careful">careful: changes ask first</option>
        <option value="read-only">read-only: nothing changes</option>
      </select></label>
      ${choices.workspaces.length > 0 && html`<label class="field"><span>Workspace</span><select name="workspace" value=${form.place} onChange=${set("place")}>
        ${choices.workspaces.map((name) => html`<option value=${name}>${name}</option>`)}
        <option value="">none: an absolute directory</option>
      </select></label>`}
      <label class="field"><span>Directory${form.place ? " in the workspace" : " (absolute)"}</span><input name="dir" class="mono" value=${form.dir} onInput=${set("dir")} placeholder=${form.place ? "." : "where `planck serve` was started"} /></label>
      <label class="field"><span>Name, if you want to choose it</span><input name="name" pattern=${NAME} title="1 to 64 of a-z, 0-9 and -" value=${form.name} onInput=${set("name")} /></label>
      ${describeTeam(choices.teams.find((team) => team.name === form.team))}
      <p class="muted full">The same: <code>${command(form)}</code></p>
      <div class="full"><${ProblemNote} problem=${action.problem} /></div>
      <div class="row end full"><button type="button" onClick=${onClose}>Cancel</button><button class="primary" type="submit" disabled=${action.isRunning}>Start</button></div>
    </form>
  <//>`;
}

function suggestion(session) {
  return session?.workspace?.startsWith("/") ? session.workspace : "";
}

function request(form, id) {
  const start = { session_id: id, permissions: form.permissions };
  if (form.team) start.team = form.team;
  if (form.place) start.workspace = form.place;
  if (form.dir) start.dir = form.dir;
  if (form.name) start.name = form.name;
  if (form.prompt.trim()) Object.assign(start, { prompt: form.prompt, prompt_id: `${id}-1` });
  return start;
}

function command(form) {
  const options = [
    form.team && `--team ${quoted(form.team)}`,
    form.place && `--workspace ${quoted(form.place)}`,
    form.dir && `--dir ${quoted(form.dir)}`,
    form.permissions !== "auto" && `--permissions ${form.permissions}`,
    form.name && `--session ${quoted(form.name)}`,
  ].filter(Boolean);
  return ["planck run", ...options, quoted(form.prompt.trim().split("\n")[0] || "PROMPT")].join(" ");
}

function describeTeam(team) {
  if (!team) return null;
  return html`<div class="full muted"><p>${team.description}</p><p>${team.members.map((member) => member.name || member.type).join(", ")}</p></div>`;
}
