//! Replaces U+0000 in incoming text by U+FFFD. Postgres cannot store U+0000, but SQLite can. With
//! the replacement both stores contain the same text.

use std::borrow::Cow;

const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Returns the text with U+0000 replaced.
pub fn text(text: String) -> String {
    match memchr::memchr(0, text.as_bytes()) {
        None => text,
        Some(_) => text.replace('\0', REPLACEMENT.encode_utf8(&mut [0; 4])),
    }
}

/// Returns JSON with U+0000 replaced in its strings, where the character can only occur as the
/// escape `\u0000`.
pub fn json(json: &[u8]) -> Cow<'_, [u8]> {
    const ESCAPED: &[u8] = b"\\u0000";
    if memchr::memmem::find(json, ESCAPED).is_none() {
        return Cow::Borrowed(json);
    }
    let mut clean = Vec::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let (before, escape) = rest.split_at(at);
        clean.extend_from_slice(before);
        // An escaped backslash is skipped as a pair, so that the text after it is not read as an
        // escape.
        let length = if escape.starts_with(ESCAPED) {
            ESCAPED.len()
        } else {
            escape.len().min(2)
        };
        let (escape, after) = escape.split_at(length);
        clean.extend_from_slice(if escape == ESCAPED {
            b"\\ufffd"
        } else {
            escape
        });
        rest = after;
    }
    clean.extend_from_slice(rest);
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn only_the_character_itself_is_replaced() {
        for (json, clean) in [
            (r#""a""#, r#""a""#),
            (r#""a\u0000b""#, r#""a\ufffdb""#),
            (r#""\\u0000""#, r#""\\u0000""#),
            (r#""\\\u0000""#, r#""\\\ufffd""#),
            (r#""\u0000\u0000\"""#, r#""\ufffd\ufffd\"""#),
            (r#"{"\u0000":"\u00001"}"#, r#"{"\ufffd":"\ufffd1"}"#),
            (r#""\"#, r#""\"#),
        ] {
            assert_eq!(
                super::json(json.as_bytes()).as_ref(),
                clean.as_bytes(),
                "{json}"
            );
        }
        assert_eq!(super::text("a\0b".into()), "a\u{fffd}b");
    }

    proptest! {
        #[test]
        fn cleaned_json_equals_json_of_cleaned_text(text in "[\\PC\0\\\\\"u0]{0,40}") {
            let json = serde_json::to_vec(&text).unwrap();
            let read: String = serde_json::from_slice(&super::json(&json)).unwrap();
            prop_assert_eq!(read, super::text(text));
        }
    }
}
