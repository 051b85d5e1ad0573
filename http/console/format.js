// Texts for times, amounts and states.

import { visible } from "./visible.js";

/** Returns a duration as people write it: `340 ms`, `1.2 s`, `3 min 5 s`. */
export function duration(ms) {
  if (ms === undefined || ms === null || Number.isNaN(ms)) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${Math.floor((ms % 60_000) / 1000)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d`;
}

/** Returns how long ago an instant is. */
export function ago(time, now) {
  const ms = now - Date.parse(time);
  if (ms < 5_000) return "now";
  if (ms < 60_000) return `${Math.floor(ms / 1000)} s ago`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ago`;
  if (ms < 172_800_000) return `${Math.floor(ms / 3_600_000)} h ago`;
  return `${Math.floor(ms / 86_400_000)} d ago`;
}

/** Returns the time until an instant. */
export function until(time, now) {
  const ms = Date.parse(time) - now;
  return ms > 0 ? `in ${duration(ms)}` : "now";
}

export function clock(time) {
  return new Date(time).toLocaleTimeString([], { hour12: false });
}

export function money(usd) {
  if (!usd) return "$0";
  return usd < 0.01 ? `$${usd.toFixed(4)}` : `$${usd.toFixed(2)}`;
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

/** Returns a number of tokens: `812`, `12.4k`, `1.2M`. */
export function tokens(number = 0) {
  if (number < 1_000) return String(number);
  if (number < 1_000_000) return `${(number / 1_000).toFixed(1)}k`;
  return `${(number / 1_000_000).toFixed(1)}M`;
}

/** Returns the text of a value of unknown type, others than texts as JSON. Hidden characters are shown. */
export function text(value) {
  if (value === undefined || value === null) return "";
  return visible(typeof value === "string" ? value : JSON.stringify(value, null, 2));
}

/** Returns a text as one quoted word of a shell. */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`;
}

/** Returns the first line of a text, cut to a length. */
export function line(value, length = 120) {
  const first = text(value).replace(/\s+/g, " ").trim();
  return first.length > length ? `${first.slice(0, length)}…` : first;
}

/** Returns a text without the marks of Markdown. */
export function plain(text) {
  return text.replace(/```\w*|`|\*\*|~~|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)|^\s*(?:#+|>|[-*+]|---+)\s|\[[ x]\]\s|\|[-| :]+\||\|/gm, " ");
}

const MODES = ["auto", "careful", "read-only"];

/** Returns the strictest mode of layers of permissions, and whether rules change it: `careful, with rules`. */
export function modeOf(layers = []) {
  const strictest = Math.max(0, ...layers.map((layer) => MODES.indexOf(layer.mode)));
  return MODES[strictest] + (layers.some((layer) => layer.rules?.length) ? ", with rules" : "");
}

/** Returns the members of a team: `lead, coder ×2`. */
export function teamOf(agents) {
  const counts = new Map();
  for (const agent of agents) counts.set(agent.type, (counts.get(agent.type) ?? 0) + 1);
  return [...counts].slice(0, 6).map(([type, number]) => (number > 1 ? `${type} ×${number}` : type)).join(", ");
}
