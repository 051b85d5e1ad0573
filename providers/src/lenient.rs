//! Lenient types for the fields of replies. Servers that use another vendor's wire format deviate
//! from it in ways that are harmless to accept.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

/// A string that is borrowed if possible. The type exists because serde borrows a `Cow` only if it
/// is a field of a struct.
#[derive(Deserialize)]
pub struct BorrowedWord<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// A string, or a number that is converted to a string. Any other value counts as absent, and so
/// does an empty string.
#[derive(Debug, Default)]
pub struct LenientWord(pub Option<String>);

impl LenientWord {
    pub fn text(self) -> String {
        self.0.unwrap_or_default()
    }

    pub fn number(&self) -> Option<usize> {
        self.0.as_deref()?.trim().parse().ok()
    }
}

impl<'de> Deserialize<'de> for LenientWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(WordVisitor)
            .map(|text| Self(text.filter(|text| !text.is_empty())))
    }
}

struct WordVisitor;

impl<'de> Visitor<'de> for WordVisitor {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a word")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(Some(text))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Some(number.to_string()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Some(number.to_string()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Some(number.to_string()))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// The content of a message: a string, an item with a text or a thought, or a list of strings and
/// items. Any other value counts as empty.
#[derive(Debug, Default)]
pub struct LenientContent(pub Vec<ContentPiece>);

/// One piece of a message's content.
#[derive(Debug, PartialEq, Eq)]
pub enum ContentPiece {
    Text(String),
    Thought(String),
}

impl<'de> Deserialize<'de> for LenientContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl ContentVisitor {
    fn text(text: String) -> LenientContent {
        LenientContent(if text.is_empty() {
            Vec::new()
        } else {
            vec![ContentPiece::Text(text)]
        })
    }
}

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = LenientContent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("content")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<LenientContent, E> {
        Ok(Self::text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<LenientContent, E> {
        Ok(Self::text(text))
    }

    fn visit_unit<E: Error>(self) -> Result<LenientContent, E> {
        Ok(LenientContent::default())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<LenientContent, E> {
        Ok(LenientContent::default())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<LenientContent, E> {
        Ok(LenientContent::default())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<LenientContent, E> {
        Ok(LenientContent::default())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<LenientContent, E> {
        Ok(LenientContent::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<LenientContent, A::Error> {
        let mut pieces = Vec::new();
        while let Some(item) = items.next_element::<Value>()? {
            pieces.extend(piece(&item));
        }
        Ok(LenientContent(pieces))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<LenientContent, A::Error> {
        let item = Value::deserialize(serde::de::value::MapAccessDeserializer::new(members))?;
        Ok(LenientContent(piece(&item).into_iter().collect()))
    }
}

/// Reads `{"type":"text","text":…}`, `{"type":"thinking","thinking":[…]}` or a bare string.
fn piece(item: &Value) -> Option<ContentPiece> {
    let thought = item
        .get("thinking")
        .map(joined)
        .filter(|text| !text.is_empty());
    let text = || Some(joined(item)).filter(|text| !text.is_empty());
    thought
        .map(ContentPiece::Thought)
        .or_else(|| text().map(ContentPiece::Text))
}

/// Joins the texts in a value: a string, the texts in a list, or the `text` of an object.
fn joined(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(joined).collect(),
        Value::Object(members) => members.get("text").map(joined).unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

/// Reads the arguments of a call: a string that contains JSON, or the JSON value itself.
pub fn arguments(raw: &RawValue) -> CallArguments {
    match (raw.get(), serde_json::from_str::<String>(raw.get())) {
        (_, Ok(text)) => CallArguments::Text(text),
        ("null", _) => CallArguments::Text(String::new()),
        (json, _) => CallArguments::Json(json.to_owned()),
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum CallArguments {
    Text(String),
    Json(String),
}

impl CallArguments {
    pub fn json(&self) -> &str {
        match self {
            Self::Text(json) | Self::Json(json) => json,
        }
    }

    pub fn into_json(self) -> String {
        match self {
            Self::Text(json) | Self::Json(json) => json,
        }
    }
}

/// Returns whether the first piece of a call's arguments says nothing. Some servers send `{}` before
/// the arguments. A call without arguments gets an empty object at its end.
pub fn is_placeholder(json: &str) -> bool {
    matches!(json.trim(), "" | "{}")
}

/// Returns whether a member has a value. Some servers send `null` for a member that they could leave
/// out.
pub fn is_there(raw: &&RawValue) -> bool {
    raw.get() != "null"
}

/// Reads the count at a path below a value. A fraction is rounded, and a missing or negative count
/// is zero.
pub fn count(value: &Value, path: &[&str]) -> u64 {
    let found = path.iter().try_fold(value, |value, name| value.get(name));
    let rounded = |number: f64| {
        if number.is_finite() && number > 0.0 {
            number.round() as u64
        } else {
            0
        }
    };
    found
        .and_then(|number| number.as_u64().or_else(|| number.as_f64().map(rounded)))
        .unwrap_or(0)
}

/// Tracks whether a JSON object or array that arrives in pieces is complete.
#[derive(Debug, Default)]
pub struct Balance {
    depth: usize,
    begun: bool,
    in_text: bool,
    escaped: bool,
}

impl Balance {
    pub fn feed(&mut self, json: &str) {
        for byte in json.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'{' | b'[' => (self.depth, self.begun) = (self.depth.saturating_add(1), true),
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    pub fn is_complete(&self) -> bool {
        self.begun && self.depth == 0 && !self.in_text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_word_is_a_text_or_a_number() {
        for (json, expected) in [
            (r#""a""#, Some("a")),
            ("7", Some("7")),
            (r#""""#, None),
            ("null", None),
            ("[1]", None),
            (r#"{"a":{}}"#, None),
            ("true", None),
        ] {
            assert_eq!(
                serde_json::from_str::<LenientWord>(json)
                    .unwrap()
                    .0
                    .as_deref(),
                expected,
                "{json}"
            );
        }
    }

    #[test]
    fn content_is_a_text_or_a_list_of_items() {
        let read = |value: Value| serde_json::from_value::<LenientContent>(value).unwrap().0;
        assert_eq!(read(json!("a")), [ContentPiece::Text("a".into())]);
        let thinking = json!({"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]});
        assert_eq!(
            read(json!([thinking, {"type": "text", "text": "a"}, "b"])),
            [
                ContentPiece::Thought("hm".into()),
                ContentPiece::Text("a".into()),
                ContentPiece::Text("b".into())
            ]
        );
        assert_eq!(
            read(json!({"type": "text", "text": "a"})),
            [ContentPiece::Text("a".into())]
        );
        for nothing in [
            json!(null),
            json!(""),
            json!(3),
            json!([]),
            json!([{"type": "audio"}]),
            json!(true),
        ] {
            assert_eq!(read(nothing), []);
        }
    }

    #[test]
    fn a_count_may_have_a_fraction() {
        let usage = json!({"a": 3, "b": 4.0, "c": null, "d": {"e": "x", "f": -1, "g": 2.6}});
        let counts = [
            &["a"][..],
            &["b"],
            &["c"],
            &["d", "e"],
            &["d", "f"],
            &["d", "g"],
            &["none"],
        ]
        .map(|path| count(&usage, path));
        assert_eq!(counts, [3, 4, 0, 0, 0, 3, 0]);
    }

    #[test]
    fn complete_json_is_recognised_wherever_it_is_cut() {
        for (pieces, whole) in [
            (vec!["{", "}"], true),
            (vec!["{\"a\":\"}", "\"}"], true),
            (vec!["{\"a\":\"}"], false),
            (vec!["{\"a\\", "\"}\":1"], false),
            (vec!["{\"a\\", "\"}\":1}"], true),
            (vec![""], false),
        ] {
            let mut balance = Balance::default();
            pieces.iter().for_each(|piece| balance.feed(piece));
            assert_eq!(balance.is_complete(), whole, "{pieces:?}");
        }
    }
}
