//! Reads a request: its fields, its tools and its contents. Field names may be in camel case or
//! snake case. The content after a content with calls must have as many responses.

use serde_json::{Map, Value};

use super::{model_of, signature};
use crate::{
    request::{ModelRequest, RequestMessage, ToolCall, ToolResult, WireRefusal, only_fields},
    wire::{self, Heading},
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
    read_contents(
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
        text.ok_or_else(|| WireRefusal::at("system_instruction.parts", NO_DATA))
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
    if !begins || !wire::good_name(name, 64, ".:") {
        let message = "Invalid function name. Must start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), \
                       underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 64.";
        return Err(WireRefusal::at(format!("{place}.name"), message));
    }
    if let Some(schema) = function.get("parameters") {
        keywords(&format!("{place}.parameters"), schema)?;
    }
    if let Some(schema) = either(function, "parametersJsonSchema", "parameters_json_schema") {
        wire::check_schema(schema)
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

const NO_DATA: &str = "required oneof field 'data' must have one initialized field";

/// The placeholder that clients send as the signature if the history came from another model.
const UNSIGNED: &str = "skip_thought_signature_validator";

fn read_contents(contents: &[Value], asked: &mut ModelRequest) -> Result<(), WireRefusal> {
    let mut waiting = Vec::new();
    for (index, content) in contents.iter().enumerate() {
        let place = format!("contents[{index}]");
        let parts = content
            .get("parts")
            .and_then(Value::as_array)
            .filter(|parts| !parts.is_empty());
        let parts = parts.ok_or_else(|| {
            WireRefusal::at(
                format!("{place}.parts"),
                "contents.parts must not be empty.",
            )
        })?;
        match content.get("role").and_then(Value::as_str) {
            Some("user") => user(&place, parts, &mut waiting, asked)?,
            Some("model") => model(&place, parts, &mut waiting, asked)?,
            _ => {
                return Err(WireRefusal::invalid(
                    "Please use a valid role: user, model.",
                ));
            }
        }
    }
    if !waiting.is_empty() || matches!(asked.messages.last(), Some(RequestMessage::Model { .. })) {
        return Err(WireRefusal::invalid(
            "Please ensure that multiturn requests ends with a user role or a function response.",
        ));
    }
    Ok(())
}

fn user(
    place: &str,
    parts: &[Value],
    waiting: &mut Vec<ToolCall>,
    asked: &mut ModelRequest,
) -> Result<(), WireRefusal> {
    let mut texts = Vec::new();
    let mut results = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let place = format!("{place}.parts[{index}]");
        match either(part, "functionResponse", "function_response") {
            Some(response) => results.push(result(&place, response)?),
            None => texts.push(text(&place, part)?),
        }
    }
    pair(std::mem::take(waiting), &results)?;
    if !results.is_empty() {
        asked.messages.push(RequestMessage::Results(results));
    }
    if !texts.is_empty() {
        asked.messages.push(RequestMessage::User(texts.join("\n")));
    }
    Ok(())
}

fn text(place: &str, part: &Value) -> Result<String, WireRefusal> {
    let blob =
        either(part, "inlineData", "inline_data").or_else(|| either(part, "fileData", "file_data"));
    match part
        .get("text")
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
    {
        Some(text) => Ok(text.to_owned()),
        None if blob.is_some() => Ok("[data]".to_owned()),
        None => Err(WireRefusal::at(place, NO_DATA)),
    }
}

fn result(place: &str, response: &Value) -> Result<ToolResult, WireRefusal> {
    let name = response
        .get("name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| {
        WireRefusal::at(
            format!("{place}.function_response.name"),
            "Name cannot be empty.",
        )
    })?;
    let answer = response.get("response").and_then(Value::as_object);
    let answer = answer.ok_or_else(|| {
        let field = format!("{place}.function_response.response");
        WireRefusal::invalid(format!(
            "Invalid value at '{field}' (type.googleapis.com/google.protobuf.Struct)"
        ))
    })?;
    let id = response
        .get("id")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let said = ["output", "result", "error"]
        .iter()
        .find_map(|field| answer.get(*field))
        .filter(|_| answer.len() == 1);
    let text = match said {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => Value::Object(answer.clone()).to_string(),
    };
    Ok(ToolResult {
        id: id.to_owned(),
        name: name.to_owned(),
        text,
    })
}

/// Checks that each response answers one call with the same name, and with the same id if the
/// response has one, and that every call is answered.
fn pair(mut waiting: Vec<ToolCall>, results: &[ToolResult]) -> Result<(), WireRefusal> {
    if waiting.is_empty() && !results.is_empty() {
        return Err(WireRefusal::invalid(
            "Please ensure that function response turn comes immediately after a function call turn.",
        ));
    }
    let uneven = "Please ensure that the number of function response parts is equal to the number of function call parts \
                  of the function call turn.";
    if waiting.len() != results.len() {
        return Err(WireRefusal::invalid(uneven));
    }
    for result in results {
        let answers = |call: &ToolCall| {
            call.name == result.name && (result.id.is_empty() || call.id == result.id)
        };
        let found = waiting
            .iter()
            .position(answers)
            .ok_or_else(|| WireRefusal::invalid(uneven))?;
        waiting.remove(found);
    }
    Ok(())
}

fn model(
    place: &str,
    parts: &[Value],
    waiting: &mut Vec<ToolCall>,
    asked: &mut ModelRequest,
) -> Result<(), WireRefusal> {
    if !waiting.is_empty() {
        return pair(std::mem::take(waiting), &[]);
    }
    let mut said = String::new();
    let mut calls: Vec<ToolCall> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let place = format!("{place}.parts[{index}]");
        match either(part, "functionCall", "function_call") {
            Some(function) => {
                let called = call(&place, function)?;
                signed(
                    part,
                    &called.name,
                    index,
                    asked.model.contains("gemini-3") && calls.is_empty(),
                )?;
                calls.push(called);
            }
            None if part.get("thought") == Some(&Value::Bool(true)) => drop(text(&place, part)?),
            None => said.push_str(&text(&place, part)?),
        }
    }
    if !calls.is_empty()
        && matches!(
            asked.messages.last(),
            None | Some(RequestMessage::Model { .. })
        )
    {
        let message = "Please ensure that function call turn comes immediately after a user turn or after a function response turn.";
        return Err(WireRefusal::invalid(message));
    }
    waiting.clone_from(&calls);
    asked
        .messages
        .push(RequestMessage::Model { text: said, calls });
    Ok(())
}

fn call(place: &str, function: &Value) -> Result<ToolCall, WireRefusal> {
    let name = function
        .get("name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| {
        WireRefusal::at(
            format!("{place}.function_call.name"),
            "Name cannot be empty.",
        )
    })?;
    if function.get("args").is_some_and(|args| !args.is_object()) {
        let field = format!("{place}.function_call.args");
        return Err(WireRefusal::invalid(format!(
            "Invalid value at '{field}' (type.googleapis.com/google.protobuf.Struct)"
        )));
    }
    let id = function
        .get("id")
        .and_then(Value::as_str)
        .unwrap_or_default();
    Ok(ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
    })
}

/// Checks a call's signature, which may be missing unless `required` is set. Every model refuses a
/// wrong signature, except [`UNSIGNED`].
fn signed(part: &Value, tool: &str, position: usize, required: bool) -> Result<(), WireRefusal> {
    match either(part, "thoughtSignature", "thought_signature").and_then(Value::as_str) {
        None if required => Err(WireRefusal::invalid(format!(
            "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, \
             and missing thought_signature may lead to degraded model performance. Additional data, function call \
             `default_api:{tool}` , position {position}."
        ))),
        Some(given) if given != signature(tool) && given != UNSIGNED => {
            Err(WireRefusal::invalid("Thought signature is not valid."))
        }
        None | Some(_) => Ok(()),
    }
}
