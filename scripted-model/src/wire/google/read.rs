//! Reads a request: its fields and its tools. Field names may be in camel case or snake case.

use serde_json::{Map, Value};

use super::{contents, model_of};
use crate::{
    refusal::{WireRefusal, only_fields},
    request::ModelRequest,
    wire::{Heading, tool_schema},
};

const FIELDS: &[&str] = &[
    "contents",
    "systemInstruction",
    "system_instruction",
    "tools",
    "toolConfig",
    "tool_config",
    "generationConfig",
    "generation_config",
    "safetySettings",
    "safety_settings",
    "cachedContent",
    "cached_content",
];

/// The keywords of OpenAPI that `parameters` may use. `parametersJsonSchema` accepts JSON Schema.
const KEYWORDS: &[&str] = &[
    "type",
    "format",
    "title",
    "description",
    "nullable",
    "enum",
    "maxItems",
    "minItems",
    "properties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "example",
    "anyOf",
    "propertyOrdering",
    "default",
    "items",
    "minimum",
    "maximum",
];

pub fn read(body: &Value, heading: &Heading<'_>) -> Result<ModelRequest, WireRefusal> {
    let body = body
        .as_object()
        .ok_or_else(|| WireRefusal::invalid("Invalid JSON payload received."))?;
    only_fields(body, FIELDS).map_err(|field| unknown(field, ""))?;
    let mut asked = ModelRequest {
        model: model_of(heading.path).unwrap_or_default().to_owned(),
        system: system(body)?,
        tools: tools(body)?,
        stream: heading.query.split('&').any(|pair| pair == "alt=sse"),
        ..ModelRequest::default()
    };
    let contents = body
        .get("contents")
        .and_then(Value::as_array)
        .filter(|contents| !contents.is_empty());
    contents::read(
        contents.ok_or_else(|| WireRefusal::at("contents", "contents is not specified"))?,
        &mut asked,
    )?;
    Ok(asked)
}

pub fn either<'a>(object: &'a Value, camel: &str, snake: &str) -> Option<&'a Value> {
    object.get(camel).or_else(|| object.get(snake))
}

fn unknown(field: &str, place: &str) -> WireRefusal {
    let place = if place.is_empty() {
        String::new()
    } else {
        format!(" at '{place}'")
    };
    WireRefusal::invalid(format!(
        "Invalid JSON payload received. Unknown name \"{field}\"{place}: Cannot find field."
    ))
}

fn system(body: &Map<String, Value>) -> Result<String, WireRefusal> {
    let Some(system) = body
        .get("systemInstruction")
        .or_else(|| body.get("system_instruction"))
    else {
        return Ok(String::new());
    };
    let parts = system
        .get("parts")
        .and_then(Value::as_array)
        .filter(|parts| !parts.is_empty());
    let parts = parts.ok_or_else(|| {
        WireRefusal::at(
            "system_instruction.parts",
            "contents.parts must not be empty.",
        )
    })?;
    let texts = parts.iter().map(|part| {
        let text = part
            .get("text")
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty());
        text.ok_or_else(|| WireRefusal::at("system_instruction.parts", contents::NO_DATA))
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

fn tools(body: &Map<String, Value>) -> Result<Vec<String>, WireRefusal> {
    let Some(tools) = body.get("tools") else {
        return Ok(Vec::new());
    };
    let tools = tools.as_array().ok_or_else(|| unknown("tools", "tools"))?;
    let mut names: Vec<String> = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let declared =
            either(tool, "functionDeclarations", "function_declarations").and_then(Value::as_array);
        for (position, function) in declared.into_iter().flatten().enumerate() {
            let name = declaration(
                &format!("tools[{index}].function_declarations[{position}]"),
                function,
            )?;
            if names.contains(&name) {
                return Err(WireRefusal::invalid(format!(
                    "Duplicate function declaration found: {name}"
                )));
            }
            names.push(name);
        }
    }
    Ok(names)
}

fn declaration(place: &str, function: &Value) -> Result<String, WireRefusal> {
    let name = function
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !begins || !tool_schema::good_name(name, 64, ".:") {
        let message = "Invalid function name. Must start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), \
                       underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 64.";
        return Err(WireRefusal::at(format!("{place}.name"), message));
    }
    if let Some(schema) = function.get("parameters") {
        keywords(&format!("{place}.parameters"), schema)?;
    }
    if let Some(schema) = either(function, "parametersJsonSchema", "parameters_json_schema") {
        tool_schema::check(schema)
            .map_err(|error| WireRefusal::at(format!("{place}.parameters_json_schema"), error))?;
    }
    Ok(name.to_owned())
}

fn keywords(place: &str, schema: &Value) -> Result<(), WireRefusal> {
    let object = schema
        .as_object()
        .ok_or_else(|| WireRefusal::at(place, "schema must be an object"))?;
    only_fields(object, KEYWORDS).map_err(|field| unknown(field, place))?;
    let properties = object.get("properties").and_then(Value::as_object);
    let kind = object
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if kind.eq_ignore_ascii_case("object") && properties.is_none_or(Map::is_empty) {
        return Err(WireRefusal::at(
            format!("{place}.properties"),
            "should be non-empty for OBJECT type",
        ));
    }
    for (name, property) in properties.into_iter().flatten() {
        keywords(&format!("{place}.properties[{name}]"), property)?;
    }
    object
        .get("items")
        .map_or(Ok(()), |items| keywords(&format!("{place}.items"), items))
}
