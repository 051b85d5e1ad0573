// The difference of two texts, line by line.

/** With more lines than this, the old lines are shown before the new ones. */
const MOST = 400;

/** Returns lines `{sign, text}` with the sign `-`, `+` or a space. */
export function diff(before, after) {
  const old = before === "" ? [] : before.split("\n");
  const now = after === "" ? [] : after.split("\n");
  if (old.length > MOST || now.length > MOST) {
    return [...old.map((text) => ({ sign: "-", text })), ...now.map((text) => ({ sign: "+", text }))];
  }
  return walk(old, now, commonLengths(old, now));
}

/** Returns a table of the length of the longest common part of the rests from each pair on. */
function commonLengths(old, now) {
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      lengths[i][j] = old[i] === now[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  return lengths;
}

function walk(old, now, lengths) {
  const lines = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      lines.push({ sign: " ", text: old[i++] });
      j++;
    } else if (i < old.length && (j === now.length || lengths[i + 1][j] >= lengths[i][j + 1])) {
      lines.push({ sign: "-", text: old[i++] });
    } else {
      lines.push({ sign: "+", text: now[j++] });
    }
  }
  return lines;
}
