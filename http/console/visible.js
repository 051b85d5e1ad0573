// Makes hidden characters visible. Bidirectional controls and invisible characters can make a text
// look like a different one. The list is that of `host/src/terminal.rs`.

const HIDDEN =
  "\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f" +
  "\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}";

/** Emoji and several scripts need joiners and variation selectors after a visible character. */
const NEEDED = `(?<=[^\\0-\\x7f${HIDDEN}])(?:[\\ufe00-\\ufe0f]\\u200d?|[\\u200c\\u200d])|(?<=[0-9#*])\\ufe0f`;

const SEARCH = new RegExp(`(${NEEDED})|\\r\\n|[${HIDDEN}]`, "gu");

/** Returns a text with a symbol in place of each hidden character, except line feeds and tabs. */
export function visible(text) {
  return text.replace(SEARCH, (found, needed) => {
    if (needed) return found;
    if (found === "\r\n") return "\n";
    const code = found.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return code === 0x7f ? "␡" : `\\u{${code.toString(16)}}`;
  });
}

/** Returns JSON with escapes in place of hidden characters. It means the same. */
export function visibleJson(value) {
  const units = (text) => Array.from({ length: text.length }, (_, at) => `\\u${text.charCodeAt(at).toString(16).padStart(4, "0")}`);
  return JSON.stringify(value, null, 2).replace(SEARCH, (found, needed) => needed ?? units(found).join(""));
}
