//! Prepares the schema of a tool for the Responses API. If `strict` is absent, the API assumes
//! strict mode and makes every argument required, so `strict` is always set.

use std::borrow::Cow;

use serde_json::{Map, Value, value::RawValue};

/// The keywords that strict mode is known to accept. A tool whose schema contains any other keyword
/// is sent with `strict: false`, because strict mode would refuse it.
const KEYWORDS: &[&str] = &[
    "additionalProperties",
    "anyOf",
    "const",
    "description",
    "enum",
    "items",
    "maximum",
    "maxItems",
    "minimum",
    "minItems",
    "properties",
    "required",
    "title",
    "type",
];

/// Limits on nesting, size and values of a strict schema. They are well below those of strict mode.
const MOST_LEVELS: usize = 5;
const MOST_BYTES: usize = 12_000;
const MOST_VALUES: usize = 250;

/// Returns the schema, with empty `properties` if it had none, and whether it satisfies the rules
/// of strict mode.
pub fn parameters(schema: &RawValue) -> (Cow<'_, RawValue>, bool) {
    let Ok(Value::Object(mut members)) = serde_json::from_str::<Value>(schema.get()) else {
        return (Cow::Borrowed(schema), false);
    };
    let is_strict = schema.get().len() <= MOST_BYTES
        && !members.contains_key("anyOf")
        && is_object(&members, MOST_LEVELS);
    if members.contains_key("properties") {
        return (Cow::Borrowed(schema), is_strict);
    }
    // The API refuses an object without properties: "object schema missing properties".
    members.insert("properties".to_owned(), Value::Object(Map::new()));
    let completed = serde_json::value::to_raw_value(&members);
    (
        completed.map_or(Cow::Borrowed(schema), Cow::Owned),
        is_strict,
    )
}

fn is_strict(schema: &Value, levels: usize) -> bool {
    let Some(schema) = schema.as_object().filter(|_| levels > 0) else {
        return false;
    };
    let is_known = schema
        .keys()
        .all(|keyword| KEYWORDS.contains(&keyword.as_str()));
    let values = schema
        .get("enum")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    let holds = |kind: &str| match schema.get("type") {
        Some(Value::String(one)) => one == kind,
        Some(Value::Array(many)) => many.iter().any(|one| one == kind),
        Some(_) | None => false,
    };
    let has_type = schema.contains_key("type") || schema.contains_key("anyOf");
    let all = |name: &str| match schema.get(name) {
        Some(Value::Array(many)) => {
            !many.is_empty() && many.iter().all(|one| is_strict(one, levels - 1))
        }
        Some(one) => is_strict(one, levels - 1),
        None => true,
    };
    is_known
        && has_type
        && values <= MOST_VALUES
        && all("anyOf")
        && (!holds("array") || (schema.contains_key("items") && all("items")))
        && (!holds("object") || is_object(schema, levels))
}

/// Returns whether an object schema satisfies the rules of strict mode. The schema must forbid
/// additional properties, require all of its own, and contain only strict schemas.
fn is_object(schema: &Map<String, Value>, levels: usize) -> bool {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return false;
    };
    let required = schema
        .get("required")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    schema
        .keys()
        .all(|keyword| KEYWORDS.contains(&keyword.as_str()))
        && schema.get("additionalProperties") == Some(&Value::Bool(false))
        && required.len() == properties.len()
        && properties
            .keys()
            .all(|name| required.iter().any(|one| one == name))
        && levels > 0
        && properties
            .values()
            .all(|property| is_strict(property, levels - 1))
}

#[cfg(test)]
mod tests {
    use serde_json::{json, value::to_raw_value};

    use super::*;

    fn read(schema: &Value) -> (Value, bool) {
        let raw = to_raw_value(schema).unwrap();
        let (parameters, strict) = parameters(&raw);
        (serde_json::from_str(parameters.get()).unwrap(), strict)
    }

    fn object(properties: Value) -> Value {
        let required: Vec<String> = properties.as_object().unwrap().keys().cloned().collect();
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    }

    #[test]
    fn only_a_schema_within_the_rules_is_strict() {
        let text = json!({"type": "string", "description": "a text"});
        for (schema, expected) in [
            (object(json!({})), true),
            (
                object(json!({"a": text, "b": {"type": ["integer", "null"], "minimum": 1}})),
                true,
            ),
            (
                object(json!({"a": {"type": "array", "items": object(json!({"b": text}))}})),
                true,
            ),
            (
                object(json!({"a": {"anyOf": [text, {"type": "null"}]}})),
                true,
            ),
            (
                json!({"type": "object", "properties": {"a": text}, "required": [], "additionalProperties": false}),
                false,
            ),
            (
                json!({"type": "object", "properties": {}, "required": []}),
                false,
            ),
            (
                json!({"type": "object", "properties": {}, "additionalProperties": true}),
                false,
            ),
            (
                object(json!({"a": {"type": "string", "pattern": "(?<=a)b"}})),
                false,
            ),
            (
                object(json!({"a": {"type": "string", "default": "x"}})),
                false,
            ),
            (object(json!({"a": {}})), false),
            (object(json!({"a": {"type": "array"}})), false),
            (object(json!({"a": {"type": "object"}})), false),
            (
                object(
                    json!({"a": {"type": "array", "items": {"type": "object", "properties": {}}}}),
                ),
                false,
            ),
            (
                object(json!({"a": {"enum": vec![1; 300], "type": "integer"}})),
                false,
            ),
            (
                object(json!({"a": {"type": "string", "description": "x".repeat(20_000)}})),
                false,
            ),
        ] {
            assert_eq!(read(&schema), (schema.clone(), expected), "{schema}");
        }
        let deep = (0..6).fold(object(json!({})), |inner, _| object(json!({"a": inner})));
        assert!(!read(&deep).1);
    }

    #[test]
    fn an_object_without_properties_gets_an_empty_set() {
        let expected = json!({"type": "object", "properties": {}, "description": "d"});
        assert_eq!(
            read(&json!({"type": "object", "description": "d"})),
            (expected, false)
        );
        assert_eq!(read(&json!(true)), (json!(true), false));
    }
}
