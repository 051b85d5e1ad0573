//! The checks of a tool's schema that all providers share.

use serde_json::Value;

/// Checks a schema of arguments. Fails with a description of the fault.
pub fn check(schema: &Value) -> Result<(), String> {
    let Some(object) = schema.as_object() else {
        return Err(format!("schema must be an object, got {schema}"));
    };
    if object.get("type").and_then(Value::as_str) != Some("object") {
        return Err("schema must be of type \"object\"".to_owned());
    }
    if object
        .get("properties")
        .is_some_and(|properties| !properties.is_object())
    {
        return Err("properties must be an object".to_owned());
    }
    jsonschema::meta::validate(schema).map_err(|error| error.to_string())
}

/// Returns whether a tool may have this name: 1 to `longest` letters, digits, `_`, `-` and the
/// characters of `more`.
pub fn good_name(name: &str, longest: usize, more: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || more.contains(c);
    !name.is_empty() && name.len() <= longest && name.chars().all(good)
}
