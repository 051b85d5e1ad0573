//! Converts JSON Schema into the subset of OpenAPI's schemas that Gemini accepts. All other
//! keywords are left out, because Gemini would refuse them.

use std::cell::Cell;

use planck_common::json_schema::MOST_PARTS;
use serde_json::{Map, Value, json};

/// The keywords that are copied. Three of them are adapted afterwards: a `type` that is a list, an
/// `enum` with values that are not strings, and the names in `required` that are no properties.
const KEPT: &[&str] = &[
    "type",
    "title",
    "description",
    "nullable",
    "enum",
    "minItems",
    "maxItems",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
];
/// The values of `format` that Gemini accepts. It refuses all others.
const FORMATS: &[&str] = &["enum", "date-time", "int32", "int64", "float", "double"];
/// The depth to which `$ref` and nested schemas are followed. Without a limit, the conversion of a
/// schema that refers to itself would never end.
const DEEPEST: usize = 16;

/// Returns the parameters of a function, or `None` if its schema is not an object with properties,
/// since Gemini refuses an object without them.
pub fn parameters(schema: &str) -> Option<Value> {
    let root: Value = serde_json::from_str(schema).ok()?;
    let whole = Whole {
        root: &root,
        left: Cell::new(MOST_PARTS),
    };
    let plain = simplified(&root, &whole, 0);
    (plain.get("type").is_some_and(|name| name == "object") && !is_refused(&plain)).then_some(plain)
}

/// The schema that is converted.
struct Whole<'a> {
    root: &'a Value,
    /// The number of parts that may still be converted. A schema that refers to itself several times
    /// becomes a multiple of itself with each level.
    left: Cell<u64>,
}

impl Whole<'_> {
    fn take_part(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

/// Returns whether a schema is an object without known properties, or a list of such objects at any
/// depth. Gemini cannot express an object with arbitrary keys.
fn is_refused(plain: &Value) -> bool {
    match plain.get("type").and_then(Value::as_str) {
        Some("object") => plain
            .get("properties")
            .and_then(Value::as_object)
            .is_none_or(Map::is_empty),
        Some("array") => plain.get("items").is_some_and(is_refused),
        Some(_) | None => false,
    }
}

fn simplified(schema: &Value, whole: &Whole<'_>, depth: usize) -> Value {
    let may_follow = depth < DEEPEST && whole.take_part();
    let Some(object) = schema.as_object().filter(|_| may_follow) else {
        return json!({"type": "string"});
    };
    if let Some(target) = object.get("$ref").and_then(Value::as_str) {
        return followed(target, object, whole, depth);
    }
    let mut plain: Map<String, Value> = object
        .iter()
        .filter(|(name, _)| KEPT.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if let Some(format) = object
        .get("format")
        .filter(|format| format.as_str().is_some_and(|name| FORMATS.contains(&name)))
    {
        plain.insert("format".into(), format.clone());
    }
    take_constant(object, &mut plain);
    take_types(&mut plain);
    take_children(object, &mut plain, whole, depth);
    drop_foreign_enum(&mut plain);
    Value::Object(plain)
}

/// Returns the schema that a `$ref` points to, with the description that stands next to the `$ref`.
fn followed(target: &str, object: &Map<String, Value>, whole: &Whole<'_>, depth: usize) -> Value {
    let found = target
        .strip_prefix('#')
        .and_then(|pointer| whole.root.pointer(pointer));
    let mut plain = simplified(found.unwrap_or(&Value::Null), whole, depth + 1);
    if let (Some(plain), Some(description)) = (plain.as_object_mut(), object.get("description")) {
        plain.insert("description".into(), description.clone());
    }
    plain
}

fn take_constant(object: &Map<String, Value>, plain: &mut Map<String, Value>) {
    if let Some(constant) = object.get("const") {
        plain.insert("enum".into(), json!([constant]));
        if constant.is_string() {
            plain.entry("type").or_insert("string".into());
        }
    }
}

/// Converts a list of types: `["string", "null"]` becomes a nullable string, and a list of several
/// other types becomes `anyOf`.
fn take_types(plain: &mut Map<String, Value>) {
    let Some(Value::Array(types)) = plain.get("type").cloned() else {
        return;
    };
    let named: Vec<Value> = types
        .iter()
        .filter(|name| *name != "null")
        .cloned()
        .collect();
    if named.len() < types.len() {
        plain.insert("nullable".into(), true.into());
    }
    plain.remove("type");
    match named.as_slice() {
        [] => {}
        [one] => {
            plain.insert("type".into(), one.clone());
        }
        many => {
            plain.insert(
                "anyOf".into(),
                many.iter().map(|name| json!({"type": name})).collect(),
            );
        }
    }
}

fn take_children(
    object: &Map<String, Value>,
    plain: &mut Map<String, Value>,
    whole: &Whole<'_>,
    depth: usize,
) {
    let child = |schema: &Value| simplified(schema, whole, depth + 1);
    if let Some(properties) = object.get("properties").and_then(Value::as_object) {
        let properties = properties
            .iter()
            .map(|(name, schema)| (name.clone(), child(schema)));
        plain.insert(
            "properties".into(),
            Value::Object(
                properties
                    .filter(|(_, schema)| !is_refused(schema))
                    .collect(),
            ),
        );
    }
    if let Some(items) = object.get("items") {
        plain.insert("items".into(), child(items));
    } else if plain.get("type").is_some_and(|name| name == "array") {
        plain.insert("items".into(), json!({"type": "string"}));
    }
    let alternatives = ["anyOf", "oneOf", "allOf"]
        .iter()
        .find_map(|name| object.get(*name)?.as_array());
    if let Some(alternatives) = alternatives {
        take_alternatives(alternatives, plain, child);
    }
}

fn take_alternatives(
    alternatives: &[Value],
    plain: &mut Map<String, Value>,
    child: impl Fn(&Value) -> Value,
) {
    let is_null = |schema: &&Value| schema.get("type").is_some_and(|name| name == "null");
    let some: Vec<Value> = alternatives
        .iter()
        .filter(|schema| !is_null(schema))
        .map(child)
        .collect();
    if some.len() < alternatives.len() {
        plain.insert("nullable".into(), true.into());
    }
    let some: Vec<Value> = some
        .into_iter()
        .filter(|schema| !is_refused(schema))
        .collect();
    match some.as_slice() {
        [] => {}
        [Value::Object(only)] => only.iter().for_each(|(name, value)| {
            plain.entry(name).or_insert_with(|| value.clone());
        }),
        _ => {
            plain.insert("anyOf".into(), some.into());
        }
    }
}

/// Removes an enum whose values are not all strings, because Gemini accepts only strings. Also
/// removes the required names that are not among the properties.
fn drop_foreign_enum(plain: &mut Map<String, Value>) {
    let strings = |value: &Value| {
        value
            .as_array()
            .is_some_and(|values| values.iter().all(Value::is_string))
    };
    if plain.get("enum").is_some_and(|value| !strings(value)) {
        plain.remove("enum");
    }
    let required = plain
        .get("required")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let properties = plain.get("properties").and_then(Value::as_object);
    let known: Vec<Value> = required
        .into_iter()
        .filter(|name| {
            properties.is_some_and(|all| name.as_str().is_some_and(|name| all.contains_key(name)))
        })
        .collect();
    if known.is_empty() {
        plain.remove("required");
    } else {
        plain.insert("required".into(), known.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_supported_keywords_remain() {
        for (schema, expected) in [
            (json!({"type": "object", "properties": {}}), None),
            (
                json!({"$schema": "x", "type": "object", "additionalProperties": false, "required": ["a", "gone"],
                       "properties": {"a": {"type": ["string", "null"], "format": "uri", "default": "x", "minLength": 1}}}),
                Some(json!({"type": "object", "required": ["a"],
                            "properties": {"a": {"type": "string", "nullable": true, "minLength": 1}}})),
            ),
            (
                json!({"type": "object", "$defs": {"N": {"type": "integer", "exclusiveMinimum": 0, "enum": [1, 2]}},
                       "properties": {"n": {"$ref": "#/$defs/N", "description": "how many"}, "k": {"const": "v"}}}),
                Some(
                    json!({"type": "object", "properties": {"n": {"type": "integer", "description": "how many"},
                                                             "k": {"type": "string", "enum": ["v"]}}}),
                ),
            ),
            (
                json!({"type": "object", "properties": {"x": {"oneOf": [{"type": "string"}, {"type": "null"}]},
                       "y": {"anyOf": [{"type": "string"}, {"type": "array"}]}}}),
                Some(
                    json!({"type": "object", "properties": {"x": {"type": "string", "nullable": true},
                       "y": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}}}),
                ),
            ),
            (
                json!({"type": "object", "required": ["labels", "x"], "properties": {
                       "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                       "maps": {"type": "array", "items": {"type": "object"}}, "x": {"type": "string"}}}),
                Some(
                    json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}}),
                ),
            ),
        ] {
            assert_eq!(parameters(&schema.to_string()), expected, "{schema}");
        }
    }

    #[test]
    fn a_recursive_schema_ends_at_the_depth_limit() {
        let schema = json!({"type": "object", "properties": {"child": {"$ref": "#"}}});
        assert!(parameters(&schema.to_string()).is_some());
    }
}
