//! Shortens a serialised event to the size that may be published. Long strings are cut in place,
//! and the event is marked with `"truncated":true`.

use std::borrow::Cow;

use memchr::{memchr, memchr2};
use planck_common::envelope::Envelope;
use serde_json::value::RawValue;

/// The maximum size of a published event in bytes. The log has the complete event.
pub const EVENT_LIMIT: usize = 256 * 1024;

/// The lengths in serialised bytes to which long strings are cut. The smaller ones are for events
/// with very many strings.
const STRING_LIMITS: [usize; 4] = [8 * 1024, 2 * 1024, 512, 128];

/// Returns the event itself, or a shortened copy if it is over `limit` bytes. Both are valid JSON.
/// An event that is still too large with every string cut, such as a long list of numbers, loses
/// its `data`.
pub fn fit(event: &str, limit: usize) -> Cow<'_, str> {
    if event.len() <= limit {
        return Cow::Borrowed(event);
    }
    let cut = STRING_LIMITS
        .iter()
        .map(|string| cut_strings(event, *string))
        .find(|cut| cut.len() <= limit);
    Cow::Owned(cut.unwrap_or_else(|| without_data(event)))
}

fn without_data(event: &str) -> String {
    let emptied = serde_json::from_str::<Envelope>(event).and_then(|mut envelope| {
        envelope.truncated = true;
        envelope.data = RawValue::from_string("{}".into())?;
        serde_json::to_string(&envelope)
    });
    emptied.unwrap_or_else(|_| r#"{"truncated":true}"#.into())
}

/// Returns the object with its strings, except keys, cut to `limit` bytes, and with
/// `"truncated":true` in front.
fn cut_strings(object: &str, limit: usize) -> String {
    let mut out = String::with_capacity(object.len().min(EVENT_LIMIT * 2));
    let rest = object.trim_start().strip_prefix('{').unwrap_or_default();
    out.push_str(r#"{"truncated":true"#);
    if !rest.trim_start().starts_with('}') {
        out.push(',');
    }
    let mut rest = rest;
    while let Some((before, string, after)) = next_string(rest) {
        let is_key = after.trim_start().starts_with(':');
        let keep = if is_key {
            string.len()
        } else {
            whole_prefix(string, limit)
        };
        out.push_str(before);
        out.push_str(string.get(..keep).unwrap_or_default());
        out.push('"');
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Splits the text at the next string. Returns the text up to and including the opening quote, the
/// string's content, and the text after the closing quote. Returns `None` if there is no string.
fn next_string(json: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = json.split_at_checked(memchr(b'"', json.as_bytes())? + 1)?;
    let end = string_end(rest.as_bytes())?;
    Some((before, rest.get(..end)?, rest.get(end + 1..)?))
}

fn string_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes.get(at) == Some(&b'"') {
            return Some(at);
        }
        at += 2;
    }
}

/// Returns the number of bytes of a string that fit into `limit` without splitting a character, an
/// escape or a surrogate pair.
fn whole_prefix(string: &str, limit: usize) -> usize {
    if string.len() <= limit {
        return string.len();
    }
    let mut at = 0;
    loop {
        let unit = string.get(at..).map_or(0, first_unit);
        if unit == 0 || at + unit > limit {
            return at;
        }
        at += unit;
    }
}

fn first_unit(text: &str) -> usize {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.get(1), bytes.get(2), bytes.get(3)) {
        (
            Some(b'\\'),
            Some(b'u'),
            Some(b'd' | b'D'),
            Some(b'8' | b'9' | b'a' | b'b' | b'A' | b'B'),
        ) => 12,
        (Some(b'\\'), Some(b'u'), _, _) => 6,
        (Some(b'\\'), _, _, _) => 2,
        _ => text.chars().next().map_or(0, char::len_utf8),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn event(data: &Value) -> String {
        json!({"v": 1, "type": "tool_end", "agent_id": "a", "session_id": "s", "team_id": "t", "node_id": "n", "epoch": 1,
               "seq": 7, "prev": 0, "turn": 1, "request": 1, "at": "2026-01-01T12:00:00.123Z", "data": data})
        .to_string()
    }

    #[test]
    fn small_event_is_unchanged() {
        let text = event(&json!({"result": "x"}));
        assert!(matches!(fit(&text, EVENT_LIMIT), Cow::Borrowed(same) if same == text));
    }

    #[test]
    fn long_result_is_cut_and_marked() {
        let text = event(&json!({"call_id": "c", "result": "é\n".repeat(300_000), "error": false}));
        let cut: Envelope = serde_json::from_str(&fit(&text, EVENT_LIMIT)).unwrap();
        let data: Value = serde_json::from_str(cut.data.get()).unwrap();
        assert!(cut.truncated && cut.seq == Some(7));
        assert_eq!(
            (&data["call_id"], &data["error"]),
            (&json!("c"), &json!(false))
        );
        let result = data["result"].as_str().unwrap();
        assert_eq!(result, "é\n".repeat(2048), "8 KiB as serialised");
    }

    #[test]
    fn very_many_strings_are_cut_shorter() {
        let text = event(&json!({"parts": vec!["p".repeat(4096); 200]}));
        let cut = fit(&text, EVENT_LIMIT);
        assert!(cut.len() <= EVENT_LIMIT);
        let back: Value = serde_json::from_str(&cut).unwrap();
        assert_eq!(back["data"]["parts"][199].as_str().unwrap().len(), 512);
    }

    #[test]
    fn event_that_cannot_be_cut_to_size_loses_its_data() {
        let text = event(&json!({"args": vec![1_234_567; 50_000]}));
        let cut: Envelope = serde_json::from_str(&fit(&text, EVENT_LIMIT)).unwrap();
        assert_eq!(
            (cut.truncated, cut.data.get(), cut.seq),
            (true, "{}", Some(7))
        );
    }

    #[test]
    fn cut_splits_no_escape() {
        for (string, limit, kept) in [
            (r"ab\ncd", 3, "ab"),
            (r"ab\ncd", 4, r"ab\n"),
            (r"\u00e9x", 5, ""),
            (r"\ud83d\ude00x", 11, ""),
            (r"\ud83d\ude00x", 12, r"\ud83d\ude00"),
            ("aéb", 2, "a"),
        ] {
            assert_eq!(
                &string[..whole_prefix(string, limit)],
                kept,
                "{string} at {limit}"
            );
        }
    }

    proptest! {
        #[test]
        fn cut_strings_are_prefixes(strings in prop::collection::vec(any::<String>(), 1..8), limit in 0usize..40) {
            let text = json!({"s": strings}).to_string();
            let back: Value = serde_json::from_str(&cut_strings(&text, limit)).unwrap();
            prop_assert_eq!(&back["truncated"], &json!(true));
            for (string, cut) in strings.iter().zip(back["s"].as_array().unwrap()) {
                prop_assert!(string.starts_with(cut.as_str().unwrap()));
            }
        }
    }
}
