//! The wire formats: how each provider reads a request, refuses one and streams an answer.

mod anthropic;
mod azure;
mod google;
mod llama_cpp;
mod ollama;
mod openai;
mod responses;

use std::collections::HashSet;

use serde_json::Value;

use crate::{
    play::FrameWriter,
    request::{ModelRequest, WireRefusal},
    script::{Auth, ScriptedUsage, Stop},
};

/// A provider's format: where it is served, and how a request is read, refused and answered.
pub struct Wire {
    /// Returns whether this format is served at a path.
    pub serves: fn(path: &str) -> bool,
    pub authorise: fn(&Auth, &Heading<'_>) -> Result<(), WireRefusal>,
    /// Checks a request and reads it. Fails with the refusal if the check finds a fault.
    pub read: fn(&Value, &Heading<'_>) -> Result<ModelRequest, WireRefusal>,
    /// Returns the body of a refusal.
    pub refuse: fn(&WireRefusal) -> String,
    pub write: fn(&PreparedReply, &mut FrameWriter),
    /// Writes an error event for the middle of a stream.
    pub error_event: fn(&str, &mut FrameWriter),
    pub content_type: &'static str,
    /// Returns the id of the call at an index. `thought` is the index of the thinking before it.
    pub call_id: fn(serial: u64, index: usize, thought: Option<usize>) -> String,
}

/// All formats.
pub static ALL: &[&Wire] = &[
    &anthropic::WIRE,
    &openai::WIRE,
    &azure::WIRE,
    &responses::WIRE,
    &google::WIRE,
    &ollama::WIRE,
    &llama_cpp::WIRE,
];

/// Only OpenAI's chat completions.
pub static CHAT_COMPLETIONS: &[&Wire] = &[&openai::WIRE];

/// The parts of a request besides the body that a check may read.
pub struct Heading<'a> {
    pub path: &'a str,
    pub query: &'a str,
    pub headers: &'a [(String, String)],
}

/// A reply with its templates filled in and its ids set, ready to be written as a stream.
#[derive(Debug, Clone)]
pub struct PreparedReply {
    /// The number that distinguishes this answer from all others.
    pub serial: u64,
    pub model: String,
    pub parts: Vec<PreparedPart>,
    pub stop: Stop,
    pub usage: ScriptedUsage,
    pub chunk: usize,
    /// Whether the client asked for usage in the stream (OpenAI).
    pub include_usage: bool,
    /// Whether the response includes the encrypted reasoning (Responses API).
    pub wants_ciphertext: bool,
}

#[derive(Debug, Clone)]
pub enum PreparedPart {
    Text(std::sync::Arc<str>),
    Thinking(std::sync::Arc<str>),
    Redacted(std::sync::Arc<str>),
    Call {
        id: String,
        name: String,
        args: String,
    },
}

impl Heading<'_> {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Checks a schema of arguments. Fails with a description of the fault.
fn check_schema(schema: &Value) -> Result<(), String> {
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

/// Returns the names of the tools of a request, which `read` checks, each with its index. The refusals
/// are for tools that are no list, and for a name that two tools have.
fn tool_names(
    tools: Option<&Value>,
    [no_list, not_unique]: [&str; 2],
    read: fn(usize, &Value) -> Result<String, WireRefusal>,
) -> Result<Vec<String>, WireRefusal> {
    let Some(tools) = tools else {
        return Ok(Vec::new());
    };
    let tools = tools
        .as_array()
        .ok_or_else(|| WireRefusal::at("tools", no_list))?;
    let tools = tools.iter().enumerate();
    let names: Vec<String> = tools
        .map(|(index, tool)| read(index, tool))
        .collect::<Result<_, _>>()?;
    if names.iter().collect::<HashSet<_>>().len() < names.len() {
        return Err(WireRefusal::at("tools", not_unique));
    }
    Ok(names)
}

/// Returns whether a tool may have this name: 1 to `longest` letters, digits, `_`, `-` and the
/// characters of `more`.
fn good_name(name: &str, longest: usize, more: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || more.contains(c);
    !name.is_empty() && name.len() <= longest && name.chars().all(good)
}
