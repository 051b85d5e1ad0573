//! Reads the tools of a request. A strict tool guarantees that its arguments match its schema
//! exactly, so the schema must be complete.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::{
    refusal::{WireRefusal, only_fields},
    wire::tool_schema,
};

const FIELDS: &[&str] = &["type", "name", "description", "parameters", "strict"];

pub fn names(tools: Option<&Value>) -> Result<Vec<String>, WireRefusal> {
    let Some(tools) = tools else {
        return Ok(Vec::new());
    };
    let tools = tools
        .as_array()
        .ok_or_else(|| WireRefusal::at("tools", "Invalid type for 'tools': expected an array."))?;
    let names: Vec<String> = tools
        .iter()
        .enumerate()
        .map(|(index, tool)| name(index, tool))
        .collect::<Result<_, _>>()?;
    if names.iter().collect::<HashSet<_>>().len() < names.len() {
        return Err(WireRefusal::at("tools", "Function names must be unique."));
    }
    Ok(names)
}

fn name(index: usize, tool: &Value) -> Result<String, WireRefusal> {
    let place = format!("tools[{index}]");
    let at = |field: &str, message: String| WireRefusal::at(format!("{place}.{field}"), message);
    let missing = |field: &str| {
        at(
            field,
            format!("Missing required parameter: '{place}.{field}'."),
        )
    };
    let fields = tool
        .as_object()
        .ok_or_else(|| WireRefusal::at(&place, format!("Invalid type for '{place}'.")))?;
    if fields.get("type").and_then(Value::as_str) != Some("function") {
        return Err(at(
            "type",
            format!(
                "Invalid value: {}. Supported values are: 'function'.",
                tool["type"]
            ),
        ));
    }
    let name = fields
        .get("name")
        .and_then(Value::as_str)
        .ok_or_else(|| missing("name"))?;
    only_fields(fields, FIELDS)
        .map_err(|field| at(field, format!("Unknown parameter: '{place}.{field}'.")))?;
    if !tool_schema::good_name(name, 64, "") {
        return Err(at(
            "name",
            format!("Invalid '{place}.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."),
        ));
    }
    let schema = fields
        .get("parameters")
        .ok_or_else(|| missing("parameters"))?;
    let strictly = fields.get("strict");
    check(schema, strictly == Some(&Value::Bool(true))).map_err(|why| {
        let message = format!("Invalid schema for function '{name}': {why}");
        at("parameters", message)
    })?;
    match strictly {
        Some(Value::Bool(_)) => {}
        // The real server accepts a tool without `strict`, but makes all its arguments required. That
        // changes the schema, so this server refuses the tool, and a test notices.
        Some(_) | None => {
            return Err(at(
                "strict",
                format!("'{place}.strict' must be said: the schema would be changed."),
            ));
        }
    }
    Ok(name.to_owned())
}

fn check(schema: &Value, strictly: bool) -> Result<(), String> {
    tool_schema::check(schema)?;
    if schema.get("properties").is_none() {
        return Err("In context=(), object schema missing properties.".to_owned());
    }
    if strictly {
        strict(schema, "")?;
    }
    Ok(())
}

/// Checks that an object allows no additional properties and requires all of its own. Checks the
/// schemas within it likewise.
fn strict(schema: &Value, context: &str) -> Result<(), String> {
    let Some(fields) = schema.as_object() else {
        return Err(format!("In context=({context}), expected a schema."));
    };
    if let Some(properties) = fields.get("properties").and_then(Value::as_object) {
        object(fields, properties, context)?;
    }
    for name in ["properties", "items", "anyOf", "$defs"] {
        for inner in fields
            .get(name)
            .into_iter()
            .flat_map(|value| inner(name, value))
        {
            strict(inner, &format!("{context}{name}, "))?;
        }
    }
    Ok(())
}

/// Returns the schemas that the value of a keyword contains.
fn inner<'a>(keyword: &str, value: &'a Value) -> Vec<&'a Value> {
    match value {
        Value::Object(members) if ["properties", "$defs"].contains(&keyword) => {
            members.values().collect()
        }
        Value::Array(many) => many.iter().collect(),
        Value::Object(_) => vec![value],
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

fn object(
    fields: &Map<String, Value>,
    properties: &Map<String, Value>,
    context: &str,
) -> Result<(), String> {
    if fields.get("additionalProperties") != Some(&Value::Bool(false)) {
        return Err(format!(
            "In context=({context}), 'additionalProperties' is required to be supplied and to be false."
        ));
    }
    let required = fields
        .get("required")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    match properties
        .keys()
        .find(|name| !required.iter().any(|one| one == *name))
    {
        Some(missing) => Err(format!(
            "In context=({context}), 'required' is required to be supplied and to be an array including every key in \
             properties. Missing '{missing}'."
        )),
        None => Ok(()),
    }
}
