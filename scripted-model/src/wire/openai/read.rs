//! Reads a request: its fields and its tools.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::messages;
use crate::{
    refusal::{WireRefusal, only_fields},
    request::ModelRequest,
    wire::tool_schema,
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
    messages::known_fields(fields.get("messages"))?;
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
    messages::read(messages, &mut asked)?;
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
    if !tool_schema::good_name(name, 64, "") {
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
        tool_schema::check(schema).map_err(wrong)?;
    }
    Ok(name.to_owned())
}
