//! Reads the contents of a request. The content after a content with calls must have as many
//! responses.

use serde_json::Value;

use super::{read::either, signature};
use crate::{
    refusal::WireRefusal,
    request::{ModelRequest, RequestMessage, ToolCall, ToolResult},
};

pub const NO_DATA: &str = "required oneof field 'data' must have one initialized field";

/// The placeholder that clients send as the signature if the history came from another model.
const UNSIGNED: &str = "skip_thought_signature_validator";

pub fn read(contents: &[Value], asked: &mut ModelRequest) -> Result<(), WireRefusal> {
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
