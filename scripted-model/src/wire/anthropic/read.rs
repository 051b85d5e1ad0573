//! Reads a request: its fields, its tools and its messages. Checks the order of roles and that
//! every call is answered directly after it.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::signature;
use crate::{
    request::{ModelRequest, RequestMessage, ToolCall, ToolResult, WireRefusal, only_fields},
    wire::{self, Heading, good_name, tool_names},
};

/// The beta feature to which `thinking.block_binding` belongs.
const BINDING: &str = "thinking-binding-controls-2026-08-01";

const FIELDS: &[&str] = &[
    "model",
    "messages",
    "max_tokens",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "thinking",
    "service_tier",
    "container",
    "context_management",
    "mcp_servers",
    "output_config",
    "cache_control",
    "inference_geo",
];

pub fn read(body: &Value, heading: &Heading<'_>) -> Result<ModelRequest, WireRefusal> {
    let body = body.as_object().ok_or_else(|| {
        WireRefusal::invalid("The request body is not valid JSON: expected an object")
    })?;
    only_fields(body, FIELDS)
        .map_err(|field| WireRefusal::at(field, "Extra inputs are not permitted"))?;
    let model = required(body, "model")?
        .as_str()
        .filter(|model| !model.is_empty());
    let mut asked = ModelRequest {
        model: model
            .ok_or_else(|| WireRefusal::at("model", "Input should be a valid string"))?
            .to_owned(),
        system: system(body)?,
        tools: tool_names(body.get("tools"), TOOL_REFUSALS, name)?,
        stream: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
        ..ModelRequest::default()
    };
    budget(body)?;
    binding(body, heading)?;
    read_messages(required(body, "messages")?, &mut asked)?;
    cache_marks(body)?;
    Ok(asked)
}

fn required<'a>(body: &'a Map<String, Value>, field: &str) -> Result<&'a Value, WireRefusal> {
    body.get(field)
        .ok_or_else(|| WireRefusal::at(field, "Field required"))
}

fn system(body: &Map<String, Value>) -> Result<String, WireRefusal> {
    match body.get("system") {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(blocks)) => {
            let texts = blocks.iter().enumerate().map(|(index, block)| {
                let text = block
                    .get("text")
                    .and_then(Value::as_str)
                    .filter(|_| block.get("type") == Some(&"text".into()));
                let text = text.ok_or_else(|| {
                    WireRefusal::at(format!("system.{index}"), "Input should be a text block")
                })?;
                nonempty("system", text)
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(_) => Err(WireRefusal::at(
            "system",
            "Input should be a valid string or list",
        )),
    }
}

fn nonempty<'a>(place: &str, text: &'a str) -> Result<&'a str, WireRefusal> {
    match (text.is_empty(), text.trim().is_empty()) {
        (true, _) => Err(WireRefusal::at(
            place,
            "text content blocks must be non-empty",
        )),
        (false, true) => Err(WireRefusal::at(
            place,
            "text content blocks must contain non-whitespace text",
        )),
        (false, false) => Ok(text),
    }
}

fn budget(body: &Map<String, Value>) -> Result<(), WireRefusal> {
    let max_tokens = required(body, "max_tokens")?
        .as_u64()
        .filter(|most| *most > 0);
    let max_tokens = max_tokens.ok_or_else(|| {
        WireRefusal::at("max_tokens", "Input should be greater than or equal to 1")
    })?;
    let temperature = body
        .get("temperature")
        .map(|value| value.as_f64().unwrap_or(-1.0));
    if temperature.is_some_and(|temperature| !(0.0..=1.0).contains(&temperature)) {
        return Err(WireRefusal::at("temperature", "range: 0..1"));
    }
    let Some(thinking) = body.get("thinking") else {
        return Ok(());
    };
    match thinking.get("type").and_then(Value::as_str) {
        Some("disabled" | "adaptive") => return Ok(()),
        Some("enabled") => (),
        _ => {
            return Err(WireRefusal::at(
                "thinking.type",
                "Input should be 'adaptive', 'disabled' or 'enabled'",
            ));
        }
    }
    let tokens = thinking.get("budget_tokens").and_then(Value::as_u64);
    let tokens = tokens
        .ok_or_else(|| WireRefusal::at("thinking.enabled.budget_tokens", "Field required"))?;
    if tokens < 1024 {
        return Err(WireRefusal::at(
            "thinking.enabled.budget_tokens",
            "Input should be greater than or equal to 1024",
        ));
    }
    if tokens >= max_tokens {
        return Err(WireRefusal::invalid(
            "`max_tokens` must be greater than `thinking.budget_tokens`",
        ));
    }
    if temperature.is_some_and(|temperature| temperature < 1.0) {
        return Err(WireRefusal::invalid(
            "`temperature` may only be set to 1 when thinking is enabled",
        ));
    }
    Ok(())
}

/// Refuses `thinking.block_binding` unless the thinking is adaptive and the request's headers name
/// the beta feature.
fn binding(body: &Map<String, Value>, heading: &Heading<'_>) -> Result<(), WireRefusal> {
    let Some(thinking) = body
        .get("thinking")
        .filter(|thinking| thinking.get("block_binding").is_some())
    else {
        return Ok(());
    };
    let features = heading.header("anthropic-beta").unwrap_or_default();
    let is_adaptive = thinking.get("type").and_then(Value::as_str) == Some("adaptive");
    if is_adaptive && features.split(',').any(|feature| feature.trim() == BINDING) {
        return Ok(());
    }
    let kind = thinking
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or("adaptive");
    Err(WireRefusal::at(
        format!("thinking.{kind}.block_binding"),
        "Extra inputs are not permitted",
    ))
}

fn cache_marks(body: &Map<String, Value>) -> Result<(), WireRefusal> {
    let found: usize = ["system", "messages", "tools"]
        .iter()
        .filter_map(|field| body.get(*field))
        .map(marks)
        .sum();
    if found > 4 {
        return Err(WireRefusal::invalid(format!(
            "A maximum of 4 blocks with cache_control may be provided. Found {found}."
        )));
    }
    Ok(())
}

fn marks(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(marks).sum(),
        // Fields of a call's arguments and of a tool's schema are not counted, because these may
        // have any name, even `cache_control`.
        Value::Object(fields) => {
            usize::from(fields.contains_key("cache_control"))
                + fields.get("content").map_or(0, marks)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

const TOOL_FIELDS: &[&str] = &[
    "type",
    "name",
    "description",
    "input_schema",
    "cache_control",
    "strict",
    "defer_loading",
    "input_examples",
];

const TOOL_REFUSALS: [&str; 2] = ["Input should be a valid list", "Tool names must be unique."];

fn name(index: usize, tool: &Value) -> Result<String, WireRefusal> {
    let at = |field: &str, message: &str| {
        WireRefusal::at(format!("tools.{index}.custom.{field}"), message)
    };
    let tool = tool
        .as_object()
        .ok_or_else(|| WireRefusal::at(format!("tools.{index}"), "Input should be an object"))?;
    only_fields(tool, TOOL_FIELDS).map_err(|field| at(field, "Extra inputs are not permitted"))?;
    let name = tool
        .get("name")
        .and_then(Value::as_str)
        .ok_or_else(|| at("name", "Field required"))?;
    if !wire::good_name(name, 128, "") {
        return Err(at(
            "name",
            "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
        ));
    }
    if tool
        .get("description")
        .is_some_and(|description| !description.is_string())
    {
        return Err(at("description", "Input should be a valid string"));
    }
    let schema = tool
        .get("input_schema")
        .ok_or_else(|| at("input_schema", "Field required"))?;
    wire::check_schema(schema).map_err(|error| at("input_schema", &error))?;
    Ok(name.to_owned())
}

fn read_messages(messages: &Value, asked: &mut ModelRequest) -> Result<(), WireRefusal> {
    let messages = messages
        .as_array()
        .ok_or_else(|| WireRefusal::at("messages", "Input should be a valid list"))?;
    if messages.is_empty() {
        return Err(WireRefusal::at(
            "messages",
            "at least one message is required",
        ));
    }
    let mut reader = MessagesReader {
        asked,
        waiting: Vec::new(),
        seen: HashSet::new(),
    };
    for (index, message) in messages.iter().enumerate() {
        reader.message(index, message)?;
    }
    reader.all_answered(messages.len())?;
    if matches!(
        reader.asked.messages.last(),
        Some(RequestMessage::Model { .. })
    ) {
        let message = "This model does not support assistant message prefill. The conversation must end with a user message.";
        return Err(WireRefusal::invalid(message));
    }
    Ok(())
}

struct MessagesReader<'a> {
    asked: &'a mut ModelRequest,
    /// The ids of the calls of the previous message that have no result yet.
    waiting: Vec<String>,
    seen: HashSet<String>,
}

impl MessagesReader<'_> {
    fn message(&mut self, index: usize, message: &Value) -> Result<(), WireRefusal> {
        let place = format!("messages.{index}");
        let text;
        let blocks = match message.get("content") {
            Some(Value::Array(blocks)) => blocks,
            Some(Value::String(content)) => {
                text = vec![serde_json::json!({"type": "text", "text": content})];
                &text
            }
            Some(_) | None => {
                return Err(WireRefusal::at(
                    format!("{place}.content"),
                    "Input should be a valid string or list",
                ));
            }
        };
        if blocks.is_empty() {
            let message = "all messages must have non-empty content except for the optional final assistant message";
            return Err(WireRefusal::at(place, message));
        }
        match message.get("role").and_then(Value::as_str) {
            Some("user") => self.user(&place, index, blocks),
            Some("assistant") => self.assistant(&place, index, blocks),
            _ => Err(WireRefusal::at(
                format!("{place}.role"),
                "Input should be 'user' or 'assistant'",
            )),
        }
    }

    fn user(&mut self, place: &str, index: usize, blocks: &[Value]) -> Result<(), WireRefusal> {
        let mut results = Vec::new();
        let mut texts = Vec::new();
        for (position, block) in blocks.iter().enumerate() {
            let place = format!("{place}.content.{position}");
            match kind(block) {
                "tool_result" if !texts.is_empty() && !self.waiting.is_empty() => {
                    return self.all_answered(index);
                }
                "tool_result" => results.push(self.result(&place, block)?),
                "text" => {
                    texts.push(nonempty("messages", string(&place, block, "text")?)?.to_owned())
                }
                "image" | "document" => texts.push(source(&place, block)?),
                other => return Err(unexpected(&place, other)),
            }
        }
        self.all_answered(index)?;
        if !results.is_empty() {
            self.asked.messages.push(RequestMessage::Results(results));
        }
        if !texts.is_empty() {
            self.asked
                .messages
                .push(RequestMessage::User(texts.join("\n")));
        }
        Ok(())
    }

    fn result(&mut self, place: &str, block: &Value) -> Result<ToolResult, WireRefusal> {
        let id = string(place, block, "tool_use_id")?;
        let Some(found) = self.waiting.iter().position(|waiting| waiting == id) else {
            let why = format!(
                "unexpected `tool_use_id` found in `tool_result` blocks: {id}. \
                 Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            );
            return Err(WireRefusal::at(place, why));
        };
        self.waiting.remove(found);
        let text = result_text(place, block.get("content"))?;
        let failed = block
            .get("is_error")
            .and_then(Value::as_bool)
            .unwrap_or(false);
        if failed && text.is_empty() {
            return Err(WireRefusal::at(
                place,
                "content cannot be empty if `is_error` is true",
            ));
        }
        let name = self.asked.name_of_call(id).unwrap_or_default().to_owned();
        Ok(ToolResult {
            id: id.to_owned(),
            name,
            text,
        })
    }

    fn assistant(
        &mut self,
        place: &str,
        index: usize,
        blocks: &[Value],
    ) -> Result<(), WireRefusal> {
        if self.asked.messages.is_empty() {
            return Err(WireRefusal::at(
                "messages",
                "first message must use the \"user\" role",
            ));
        }
        self.all_answered(index)?;
        let mut text = String::new();
        let mut calls = Vec::new();
        for (position, block) in blocks.iter().enumerate() {
            let place = format!("{place}.content.{position}");
            match kind(block) {
                "text" => text.push_str(nonempty("messages", string(&place, block, "text")?)?),
                "thinking" => thinking(&place, block)?,
                "redacted_thinking" => drop(nonempty(&place, string(&place, block, "data")?)?),
                "tool_use" => calls.push(self.call(&place, block)?),
                other => return Err(unexpected(&place, other)),
            }
        }
        self.waiting = calls.iter().map(|call| call.id.clone()).collect();
        self.asked
            .messages
            .push(RequestMessage::Model { text, calls });
        Ok(())
    }

    fn call(&mut self, place: &str, block: &Value) -> Result<ToolCall, WireRefusal> {
        let (id, name) = (string(place, block, "id")?, string(place, block, "name")?);
        if !good_name(id, 256, "") {
            return Err(WireRefusal::at(
                format!("{place}.tool_use.id"),
                "String should match pattern '^[a-zA-Z0-9_-]+$'",
            ));
        }
        if !good_name(name, 200, "") {
            return Err(WireRefusal::at(
                format!("{place}.tool_use.name"),
                "String should match pattern '^[a-zA-Z0-9_-]{1,200}$'",
            ));
        }
        if !block.get("input").is_some_and(Value::is_object) {
            return Err(WireRefusal::at(
                format!("{place}.tool_use.input"),
                "Input should be a valid dictionary",
            ));
        }
        if !self.seen.insert(id.to_owned()) {
            return Err(WireRefusal::at(place, "`tool_use` ids must be unique"));
        }
        Ok(ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Refuses the request if a call of the previous message has no result.
    fn all_answered(&self, index: usize) -> Result<(), WireRefusal> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let why = format!(
            "`tool_use` ids were found without `tool_result` blocks immediately after: {}. \
             Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
            self.waiting.join(", ")
        );
        Err(WireRefusal::at(
            format!("messages.{}", index.saturating_sub(1)),
            why,
        ))
    }
}

fn kind(block: &Value) -> &str {
    block
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn string<'a>(place: &str, block: &'a Value, field: &str) -> Result<&'a str, WireRefusal> {
    let found = block.get(field).and_then(Value::as_str);
    found.ok_or_else(|| {
        WireRefusal::at(format!("{place}.{}.{field}", kind(block)), "Field required")
    })
}

fn unexpected(place: &str, kind: &str) -> WireRefusal {
    WireRefusal::at(
        place,
        format!("Input tag '{kind}' found using 'type' does not match any of the expected tags"),
    )
}

fn thinking(place: &str, block: &Value) -> Result<(), WireRefusal> {
    let (text, given) = (
        string(place, block, "thinking")?,
        string(place, block, "signature")?,
    );
    if block.get("cache_control").is_some() {
        return Err(WireRefusal::at(
            format!("{place}.thinking.cache_control"),
            "Extra inputs are not permitted",
        ));
    }
    if given != signature(text) {
        return Err(WireRefusal::at(
            place,
            "Invalid `signature` in `thinking` block",
        ));
    }
    Ok(())
}

fn source(place: &str, block: &Value) -> Result<String, WireRefusal> {
    let kind = block.pointer("/source/type").and_then(Value::as_str);
    kind.map(|kind| format!("[{kind}]"))
        .ok_or_else(|| WireRefusal::at(format!("{place}.source"), "Field required"))
}

fn result_text(place: &str, content: Option<&Value>) -> Result<String, WireRefusal> {
    match content {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(blocks)) => {
            let texts = blocks.iter().map(|block| match kind(block) {
                "text" => Ok(nonempty("messages", string(place, block, "text")?)?.to_owned()),
                "image" | "document" => source(place, block),
                other => Err(unexpected(place, other)),
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(_) => Err(WireRefusal::at(
            format!("{place}.tool_result.content"),
            "Input should be a valid string or list",
        )),
    }
}
