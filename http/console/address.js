// The pages and the key that an address names.

/** Returns the page that the part of the address after `#` names. */
export function pageOf(hash) {
  const [, page, id, sub, subId] = hash.split("/").map(decoded);
  if (page === "sessions" && id && sub === "agents" && subId) return { name: "agent", title: "Agent", session: id, agent: subId };
  if (page === "sessions" && id) return { name: "session", title: id, session: id };
  if (page === "waits") return { name: "waits", title: "Waits" };
  if (page === "cluster") return { name: "cluster", title: "Cluster" };
  return { name: "sessions", title: "Sessions" };
}

/** Decodes a part of an address. A part that a person typed wrong stays as it is, and names nothing. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * Returns the `key` with which the part of the address after `#` begins, as in `#key=KEY/sessions/NAME`, and the `rest`, which
 * names the page. Without a key, `key` is undefined.
 */
export function keyOf(hash) {
  const [, key, page] = /^#key=([^/]*)(.*)$/.exec(hash) ?? [];
  return { key, rest: key === undefined ? hash : page && `#${page}` };
}
