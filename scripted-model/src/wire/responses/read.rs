//! Reads the fields and the tools of a request. The module `input` reads its items. A strict tool
//! guarantees that its arguments match its schema exactly, so the schema must be complete.

use serde_json::{Map, Value};

use super::input;
use crate::{
    request::{ModelRequest, WireRefusal, only_fields},
    wire::{self, tool_names},
};

const FIELDS: &[&str] = &[
    "background",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];

const INCLUDABLE: &[&str] = &[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
];

const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

pub fn read(body: &Value) -> Result<ModelRequest, WireRefusal> {
    let body = body
        .as_object()
        .ok_or_else(|| WireRefusal::invalid("We could not parse the JSON body of your request."))?;
    only_fields(body, FIELDS)
        .map_err(|field| WireRefusal::at(field, format!("Unknown parameter: '{field}'.")))?;
    let model = body
        .get("model")
        .and_then(Value::as_str)
        .filter(|model| !model.is_empty());
    let model =
        model.ok_or_else(|| WireRefusal::at("model", "Missing required parameter: 'model'."))?;
    if body.get("store") != Some(&Value::Bool(false)) {
        return Err(WireRefusal::at("store", "Store must be set to false"));
    }
    let mut asked = ModelRequest {
        model: model.to_owned(),
        system: text(body, "instructions")?.unwrap_or_default().to_owned(),
        tools: tool_names(body.get("tools"), TOOL_REFUSALS, name)?,
        stream: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
        wants_ciphertext: include(body)?,
        ..ModelRequest::default()
    };
    let effort = effort(body)?;
    sampling(body, model, effort)?;
    let input = body
        .get("input")
        .ok_or_else(|| WireRefusal::at("input", "Missing required parameter: 'input'."))?;
    let items = input.as_array().filter(|items| !items.is_empty());
    let items = items.ok_or_else(|| {
        WireRefusal::at(
            "input",
            "Invalid 'input': expected an array with minimum length 1.",
        )
    })?;
    input::read(items, &mut asked)?;
    Ok(asked)
}

fn text<'a>(body: &'a Map<String, Value>, field: &str) -> Result<Option<&'a str>, WireRefusal> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(WireRefusal::at(
            field,
            format!("Invalid type for '{field}': expected a string."),
        )),
    }
}

/// Returns whether the request asks for the encrypted reasoning. Refuses unknown values of
/// `include`.
fn include(body: &Map<String, Value>) -> Result<bool, WireRefusal> {
    let Some(include) = body.get("include") else {
        return Ok(false);
    };
    let include = include.as_array().ok_or_else(|| {
        WireRefusal::at("include", "Invalid type for 'include': expected an array.")
    })?;
    let known = |one: &Value| one.as_str().is_some_and(|one| INCLUDABLE.contains(&one));
    match include.iter().enumerate().find(|(_, one)| !known(one)) {
        Some((index, one)) => Err(WireRefusal::at(
            format!("include[{index}]"),
            format!("Invalid value: {one}."),
        )),
        None => Ok(include
            .iter()
            .any(|one| one == "reasoning.encrypted_content")),
    }
}

fn effort(body: &Map<String, Value>) -> Result<Option<&str>, WireRefusal> {
    let Some(reasoning) = body
        .get("reasoning")
        .filter(|reasoning| !reasoning.is_null())
    else {
        return Ok(None);
    };
    let fields = reasoning.as_object();
    let fields = fields.ok_or_else(|| {
        WireRefusal::at(
            "reasoning",
            "Invalid type for 'reasoning': expected an object.",
        )
    })?;
    only_fields(
        fields,
        &["context", "effort", "generate_summary", "mode", "summary"],
    )
    .map_err(|field| {
        let place = format!("reasoning.{field}");
        WireRefusal::at(&place, format!("Unknown parameter: '{place}'."))
    })?;
    let one_of = |field: &str, known: &[&str]| match fields.get(field) {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(word)) if known.contains(&word.as_str()) => Ok(()),
        Some(other) => {
            let place = format!("reasoning.{field}");
            Err(WireRefusal::at(
                place,
                format!(
                    "Invalid value: {other}. Supported values are: {}.",
                    known.join(", ")
                ),
            ))
        }
    };
    one_of("effort", EFFORTS)?;
    one_of("summary", &["auto", "concise", "detailed"])?;
    Ok(fields.get("effort").and_then(Value::as_str))
}

/// Checks the sampling parameters and the token limit. Reasoning models choose the sampling
/// parameters themselves and refuse them.
fn sampling(
    body: &Map<String, Value>,
    model: &str,
    effort: Option<&str>,
) -> Result<(), WireRefusal> {
    let reasons = ["gpt-5", "gpt-6", "o1", "o3", "o4"]
        .iter()
        .any(|start| model.starts_with(start))
        && effort != Some("none");
    for (field, most) in [("temperature", 2.0), ("top_p", 1.0)] {
        let Some(given) = body.get(field).filter(|value| !value.is_null()) else {
            continue;
        };
        if reasons {
            return Err(WireRefusal::at(
                field,
                format!("Unsupported parameter: '{field}' is not supported with this model."),
            ));
        }
        if !given
            .as_f64()
            .is_some_and(|number| (0.0..=most).contains(&number))
        {
            return Err(WireRefusal::at(
                field,
                format!("Invalid '{field}': expected a number from 0 to {most}."),
            ));
        }
    }
    match body
        .get("max_output_tokens")
        .filter(|value| !value.is_null())
    {
        Some(tokens) if tokens.as_u64().is_none_or(|tokens| tokens < 16) => {
            let message = format!(
                "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got {tokens}."
            );
            Err(WireRefusal::at("max_output_tokens", message))
        }
        Some(_) | None => Ok(()),
    }
}

const TOOL_FIELDS: &[&str] = &["type", "name", "description", "parameters", "strict"];

const TOOL_REFUSALS: [&str; 2] = [
    "Invalid type for 'tools': expected an array.",
    "Function names must be unique.",
];

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
    only_fields(fields, TOOL_FIELDS)
        .map_err(|field| at(field, format!("Unknown parameter: '{place}.{field}'.")))?;
    if !wire::good_name(name, 64, "") {
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
    wire::check_schema(schema)?;
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
