//! Reads the messages of a request. Every call must be answered by a tool message before any other
//! message.

use serde_json::Value;

use super::{has_thought, wants_reasoning};
use crate::{
    refusal::{RefusalKind, WireRefusal, only_fields},
    request::{ModelRequest, RequestMessage, ToolCall, ToolResult},
    wire::tool_schema::good_name,
};

/// The fields that a message may have: those of OpenAI, and the one in which compatible servers
/// send reasoning and expect it back.
const FIELDS: &[&str] = &[
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "refusal",
    "audio",
    "annotations",
    "function_call",
    "reasoning_content",
];

pub fn read(messages: &[Value], asked: &mut ModelRequest) -> Result<(), WireRefusal> {
    if messages.is_empty() {
        return Err(WireRefusal::at(
            "messages",
            "Invalid 'messages': empty array. Expected an array with minimum length 1.",
        ));
    }
    let mut reader = HistoryReader {
        asked,
        waiting: Vec::new(),
        last: None,
    };
    for (index, message) in messages.iter().enumerate() {
        reader.message(&format!("messages[{index}]"), message)?;
    }
    reader.all_answered(&format!("messages[{}]", messages.len()))?;
    match reader.last {
        Some("assistant") => Err(order(
            "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
        )),
        Some(_) | None => Ok(()),
    }
}

/// Refuses a message with an unknown field.
pub fn known_fields(messages: Option<&Value>) -> Result<(), WireRefusal> {
    for (index, message) in messages
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
    {
        let place = format!("messages[{index}]");
        let fields = message
            .as_object()
            .ok_or_else(|| invalid(&place, "expected an object"))?;
        only_fields(fields, FIELDS).map_err(|field| {
            WireRefusal::at(
                format!("{place}.{field}"),
                format!("Unknown parameter: '{place}.{field}'."),
            )
        })?;
    }
    Ok(())
}

struct HistoryReader<'a> {
    asked: &'a mut ModelRequest,
    /// The calls of the latest assistant message that no tool message has answered yet.
    waiting: Vec<String>,
    /// The role of the previous message, not counting system messages.
    last: Option<&'static str>,
}

impl HistoryReader<'_> {
    fn message(&mut self, place: &str, message: &Value) -> Result<(), WireRefusal> {
        let role = message
            .get("role")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if role != "tool" {
            self.all_answered(place)?;
        }
        match role {
            "system" | "developer" => {
                let text = content(place, message)?;
                let gap = if self.asked.system.is_empty() {
                    ""
                } else {
                    "\n"
                };
                self.asked.system.push_str(gap);
                self.asked.system.push_str(&text);
                Ok(())
            }
            "user" => {
                self.speaks("user")?;
                let text = content(place, message)?;
                self.asked.messages.push(RequestMessage::User(text));
                Ok(())
            }
            "assistant" => {
                self.speaks("assistant")?;
                self.assistant(place, message)
            }
            "tool" => {
                self.speaks("tool")?;
                self.result(place, message)
            }
            other => Err(invalid(
                &format!("{place}.role"),
                &format!("'{other}' is not one of the supported roles"),
            )),
        }
    }

    /// Refuses a role that is out of order: two user messages in a row, a user message after a tool
    /// message, or two assistant messages in a row.
    fn speaks(&mut self, role: &'static str) -> Result<(), WireRefusal> {
        match (self.last.replace(role), role) {
            (Some(last @ ("user" | "tool")), "user") | (Some(last @ "assistant"), "assistant") => {
                Err(order(&format!(
                    "Unexpected role '{role}' after role '{last}'"
                )))
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    fn assistant(&mut self, place: &str, message: &Value) -> Result<(), WireRefusal> {
        let calls = match message.get("tool_calls") {
            None => Vec::new(),
            Some(Value::Array(calls)) if !calls.is_empty() => {
                let calls = calls
                    .iter()
                    .enumerate()
                    .map(|(index, call)| read_call(&format!("{place}.tool_calls[{index}]"), call));
                calls.collect::<Result<Vec<_>, _>>()?
            }
            Some(_) => {
                return Err(invalid(
                    &format!("{place}.tool_calls"),
                    "expected an array with minimum length 1",
                ));
            }
        };
        let is_silent = message
            .get("reasoning_content")
            .and_then(Value::as_str)
            .is_none_or(str::is_empty);
        if wants_reasoning(&self.asked.model)
            && is_silent
            && calls.iter().any(|call| has_thought(&call.id))
        {
            return Err(WireRefusal::invalid(
                "The `reasoning_content` in the thinking mode must be passed back to the API.",
            ));
        }
        let text = match message.get("content") {
            None | Some(Value::Null) if !calls.is_empty() || message.get("refusal").is_some() => {
                String::new()
            }
            _ => content(place, message)?,
        };
        for call in &calls {
            if self.waiting.contains(&call.id) {
                return Err(invalid(
                    &format!("{place}.tool_calls"),
                    &format!("duplicate tool call id '{}'", call.id),
                ));
            }
            self.waiting.push(call.id.clone());
        }
        self.asked
            .messages
            .push(RequestMessage::Model { text, calls });
        Ok(())
    }

    fn result(&mut self, place: &str, message: &Value) -> Result<(), WireRefusal> {
        let id = string(place, message, "tool_call_id")?;
        let Some(found) = self.waiting.iter().position(|waiting| waiting == id) else {
            let message = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.";
            return Err(WireRefusal::at(format!("{place}.role"), message));
        };
        self.waiting.remove(found);
        let name = self.asked.name_of_call(id).unwrap_or_default().to_owned();
        self.asked.push_result(ToolResult {
            id: id.to_owned(),
            name,
            text: content(place, message)?,
        });
        Ok(())
    }

    fn all_answered(&self, place: &str) -> Result<(), WireRefusal> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let message = format!(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. \
             The following tool_call_ids did not have response messages: {}",
            self.waiting.join(", ")
        );
        Err(WireRefusal::at(format!("{place}.role"), message))
    }
}

fn order(message: &str) -> WireRefusal {
    WireRefusal {
        kind: RefusalKind::Order,
        ..WireRefusal::invalid(message)
    }
}

fn read_call(place: &str, call: &Value) -> Result<ToolCall, WireRefusal> {
    let id = string(place, call, "id")?;
    if id.is_empty() || id.len() > 40 {
        return Err(invalid(
            &format!("{place}.id"),
            "expected a string of 1 to 40 characters",
        ));
    }
    if call.get("type").and_then(Value::as_str) != Some("function") {
        return Err(invalid(&format!("{place}.type"), "expected 'function'"));
    }
    let function = call.get("function").unwrap_or(&Value::Null);
    let place = format!("{place}.function");
    let name = string(&place, function, "name")?;
    if !good_name(name, 64, "") {
        return Err(invalid(
            &format!("{place}.name"),
            "string does not match pattern '^[a-zA-Z0-9_-]+$'",
        ));
    }
    let arguments = string(&place, function, "arguments")?;
    match serde_json::from_str::<Value>(arguments) {
        Ok(Value::Object(_)) => Ok(ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
        }),
        Ok(_) | Err(_) => Err(invalid(
            &format!("{place}.arguments"),
            "expected a string that holds a JSON object",
        )),
    }
}

fn content(place: &str, message: &Value) -> Result<String, WireRefusal> {
    match message.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) if !parts.is_empty() => {
            let texts = parts
                .iter()
                .map(|part| match part.get("type").and_then(Value::as_str) {
                    Some("text") => {
                        Ok(string(&format!("{place}.content"), part, "text")?.to_owned())
                    }
                    Some(kind @ ("image_url" | "input_audio" | "file" | "refusal")) => {
                        Ok(format!("[{kind}]"))
                    }
                    Some(_) | None => {
                        Err(invalid(&format!("{place}.content"), "unknown type of part"))
                    }
                });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(_) | None => {
            let message = "Invalid value for 'content': expected a string or an array of parts, got null or another type.";
            Err(WireRefusal::at(format!("{place}.content"), message))
        }
    }
}

fn string<'a>(place: &str, object: &'a Value, field: &str) -> Result<&'a str, WireRefusal> {
    let found = object.get(field).and_then(Value::as_str);
    found.ok_or_else(|| {
        WireRefusal::at(
            format!("{place}.{field}"),
            format!("Missing required parameter: '{place}.{field}'."),
        )
    })
}

fn invalid(place: &str, why: &str) -> WireRefusal {
    WireRefusal::at(place, format!("Invalid '{place}': {why}."))
}
