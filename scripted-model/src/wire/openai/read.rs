//! Reads a request: its fields, its tools and its messages. Every call must be answered by a tool
//! message before any other message.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{has_thought, wants_reasoning};
use crate::{
    request::{
        ModelRequest, RefusalKind, RequestMessage, ToolCall, ToolResult, WireRefusal, only_fields,
    },
    wire::{self, good_name},
};

const FIELDS: &[&str] = &[
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "modalities",
    "model",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
];

pub fn read(body: &Value) -> Result<ModelRequest, WireRefusal> {
    let fields = object(body)?;
    only_fields(fields, FIELDS).map_err(|field| {
        WireRefusal::at(
            field,
            format!("Unrecognized request argument supplied: {field}"),
        )
    })?;
    known_fields(fields.get("messages"))?;
    let asked = read_lenient(body)?;
    let is_new = ["gpt-6", "gpt-5.6"]
        .iter()
        .any(|start| asked.model.starts_with(start));
    if is_new
        && !asked.tools.is_empty()
        && fields.get("reasoning_effort").and_then(Value::as_str) != Some("none")
    {
        let message = format!(
            "Function tools with reasoning_effort are not supported for {} in /v1/chat/completions. To use function tools, use \
             /v1/responses or set reasoning_effort to 'none'.",
            asked.model
        );
        return Err(WireRefusal::at("reasoning_effort", message));
    }
    Ok(asked)
}

fn object(body: &Value) -> Result<&Map<String, Value>, WireRefusal> {
    body.as_object()
        .ok_or_else(|| WireRefusal::invalid("We could not parse the JSON body of your request."))
}

/// Reads a request and ignores unknown fields, as other servers of this format do.
pub fn read_lenient(body: &Value) -> Result<ModelRequest, WireRefusal> {
    let body = object(body)?;
    let model = body
        .get("model")
        .and_then(Value::as_str)
        .filter(|model| !model.is_empty());
    let stream = flag(body, "stream")?;
    let mut asked = ModelRequest {
        model: model
            .ok_or_else(|| WireRefusal::at("model", "you must provide a model parameter"))?
            .to_owned(),
        tools: tools(body)?,
        stream,
        include_usage: stream_options(body, stream)?,
        ..ModelRequest::default()
    };
    sampling(body)?;
    let messages = body.get("messages").and_then(Value::as_array);
    let messages = messages
        .ok_or_else(|| WireRefusal::at("messages", "Missing required parameter: 'messages'."))?;
    read_messages(messages, &mut asked)?;
    Ok(asked)
}

fn flag(body: &Map<String, Value>, field: &str) -> Result<bool, WireRefusal> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(WireRefusal::at(
            field,
            format!("Invalid type for '{field}': expected a boolean."),
        )),
    }
}

fn stream_options(body: &Map<String, Value>, stream: bool) -> Result<bool, WireRefusal> {
    match body.get("stream_options") {
        None | Some(Value::Null) => Ok(false),
        Some(_) if !stream => {
            let message =
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
            Err(WireRefusal::at("stream_options", message))
        }
        Some(options) => Ok(options
            .get("include_usage")
            .and_then(Value::as_bool)
            .unwrap_or(false)),
    }
}

fn sampling(body: &Map<String, Value>) -> Result<(), WireRefusal> {
    for (field, most) in [("temperature", 2.0), ("top_p", 1.0)] {
        let given = body.get(field).filter(|value| !value.is_null());
        if given.is_some_and(|value| {
            !value
                .as_f64()
                .is_some_and(|number| (0.0..=most).contains(&number))
        }) {
            return Err(WireRefusal::at(
                field,
                format!("Invalid '{field}': expected a number from 0 to {most}."),
            ));
        }
    }
    for field in ["max_tokens", "max_completion_tokens"] {
        let given = body.get(field).filter(|value| !value.is_null());
        if given.is_some_and(|value| value.as_u64().is_none_or(|tokens| tokens == 0)) {
            return Err(WireRefusal::at(
                field,
                format!("Invalid '{field}': expected an integer of at least 1."),
            ));
        }
    }
    Ok(())
}

fn tools(body: &Map<String, Value>) -> Result<Vec<String>, WireRefusal> {
    let Some(tools) = body.get("tools") else {
        return match body.contains_key("tool_choice") {
            true => Err(WireRefusal::at(
                "tool_choice",
                "'tool_choice' is only allowed when 'tools' are specified.",
            )),
            false => Ok(Vec::new()),
        };
    };
    let tools = tools
        .as_array()
        .ok_or_else(|| WireRefusal::at("tools", "Invalid type for 'tools': expected an array."))?;
    if tools.is_empty() {
        return Err(WireRefusal::at(
            "tools",
            "Invalid 'tools': empty array. Expected an array with minimum length 1.",
        ));
    }
    let names: Vec<String> = tools
        .iter()
        .enumerate()
        .map(|(index, tool)| tool_name(index, tool))
        .collect::<Result<_, _>>()?;
    if names.iter().collect::<HashSet<_>>().len() < names.len() {
        return Err(WireRefusal::at("tools", "Function names must be unique."));
    }
    Ok(names)
}

fn tool_name(index: usize, tool: &Value) -> Result<String, WireRefusal> {
    let place = format!("tools[{index}].function");
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return Err(WireRefusal::at(
            format!("tools[{index}].type"),
            format!("Invalid value: 'tools[{index}].type' must be 'function'."),
        ));
    }
    let name = tool.pointer("/function/name").and_then(Value::as_str);
    let name = name.ok_or_else(|| {
        WireRefusal::at(
            &place,
            format!("Missing required parameter: '{place}.name'."),
        )
    })?;
    if !wire::good_name(name, 64, "") {
        let message = format!(
            "Invalid '{place}.name': string does not match pattern '^[a-zA-Z0-9_-]+$' of at most 64 characters."
        );
        return Err(WireRefusal::at(format!("{place}.name"), message));
    }
    if let Some(schema) = tool.pointer("/function/parameters") {
        let wrong = |error| {
            WireRefusal::at(
                format!("{place}.parameters"),
                format!("Invalid schema for function '{name}': {error}"),
            )
        };
        wire::check_schema(schema).map_err(wrong)?;
    }
    Ok(name.to_owned())
}

/// The fields that a message may have: those of OpenAI, and the one in which compatible servers
/// send reasoning and expect it back.
const MESSAGE_FIELDS: &[&str] = &[
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

pub fn read_messages(messages: &[Value], asked: &mut ModelRequest) -> Result<(), WireRefusal> {
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
fn known_fields(messages: Option<&Value>) -> Result<(), WireRefusal> {
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
        only_fields(fields, MESSAGE_FIELDS).map_err(|field| {
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
