//! Reads the fields of a request. The submodules read its messages and its tools.

mod messages;
mod tools;

use serde_json::{Map, Value};

use crate::{
    refusal::{WireRefusal, only_fields},
    request::ModelRequest,
    wire::Heading,
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
        tools: tools::names(body)?,
        stream: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
        ..ModelRequest::default()
    };
    budget(body)?;
    binding(body, heading)?;
    messages::read(required(body, "messages")?, &mut asked)?;
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
