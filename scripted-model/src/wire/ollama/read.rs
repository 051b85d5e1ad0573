//! Reads a request. The real server accepts messages in almost any order, although a wrong order
//! confuses the model. The scripted model refuses a wrong order.

use serde_json::Value;

use crate::{
    refusal::WireRefusal,
    request::{ModelRequest, RequestMessage, ToolCall, ToolResult},
    wire::tool_schema,
};

pub fn read(body: &Value) -> Result<ModelRequest, WireRefusal> {
    let model = body
        .get("model")
        .and_then(Value::as_str)
        .filter(|model| !model.is_empty());
    let mut asked = ModelRequest {
        model: model
            .ok_or_else(|| WireRefusal::invalid("model is required"))?
            .to_owned(),
        stream: body.get("stream").and_then(Value::as_bool).unwrap_or(true),
        ..ModelRequest::default()
    };
    for tool in body
        .get("tools")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        asked.tools.push(tool_name(tool)?);
    }
    let messages = body
        .get("messages")
        .and_then(Value::as_array)
        .filter(|messages| !messages.is_empty());
    let mut waiting = Vec::new();
    for message in messages.ok_or_else(|| WireRefusal::invalid("messages must not be empty"))? {
        read_message(message, &mut waiting, &mut asked)?;
    }
    unanswered(&waiting)?;
    Ok(asked)
}

fn tool_name(tool: &Value) -> Result<String, WireRefusal> {
    let name = tool
        .pointer("/function/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if tool.get("type").and_then(Value::as_str) != Some("function")
        || !tool_schema::good_name(name, 128, ".")
    {
        return Err(WireRefusal::invalid(format!("invalid tool {name:?}")));
    }
    let schema = tool.pointer("/function/parameters").unwrap_or(&Value::Null);
    tool_schema::check(schema)
        .map_err(|error| WireRefusal::invalid(format!("tool {name:?}: {error}")))?;
    Ok(name.to_owned())
}

fn read_message(
    message: &Value,
    waiting: &mut Vec<ToolCall>,
    asked: &mut ModelRequest,
) -> Result<(), WireRefusal> {
    let text = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        None => String::new(),
        Some(_) => return Err(unmarshal("content", "string")),
    };
    match message
        .get("role")
        .and_then(Value::as_str)
        .unwrap_or_default()
    {
        "system" => {
            unanswered(waiting)?;
            asked.system.push_str(&text);
        }
        "user" => {
            unanswered(waiting)?;
            asked.messages.push(RequestMessage::User(text));
        }
        "assistant" => {
            unanswered(waiting)?;
            let calls = message
                .get("tool_calls")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(read_call);
            let calls: Vec<ToolCall> = calls.collect::<Result<_, _>>()?;
            waiting.clone_from(&calls);
            asked.messages.push(RequestMessage::Model { text, calls });
        }
        "tool" => result(message, text, waiting, asked)?,
        other => return Err(WireRefusal::invalid(format!("invalid role: {other}"))),
    }
    Ok(())
}

fn read_call(call: &Value) -> Result<ToolCall, WireRefusal> {
    let name = call
        .pointer("/function/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !tool_schema::good_name(name, 128, ".") {
        return Err(WireRefusal::invalid(format!("invalid tool call {name:?}")));
    }
    if !call
        .pointer("/function/arguments")
        .is_some_and(Value::is_object)
    {
        return Err(unmarshal(
            "tool_calls.function.arguments",
            "api.ToolCallFunctionArguments",
        ));
    }
    let id = call.get("id").and_then(Value::as_str).unwrap_or_default();
    Ok(ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
    })
}

/// Reads a result, which names its call by id or its tool by name. A result that names neither
/// answers the first call that waits.
fn result(
    message: &Value,
    text: String,
    waiting: &mut Vec<ToolCall>,
    asked: &mut ModelRequest,
) -> Result<(), WireRefusal> {
    let id = message
        .get("tool_call_id")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let name = message
        .get("tool_name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let answers = |call: &ToolCall| {
        (id.is_empty() || call.id == id) && (name.is_empty() || call.name == name)
    };
    let found = waiting.iter().position(answers);
    let found = found.ok_or_else(|| {
        WireRefusal::invalid(format!("tool result for {name:?} {id:?} answers no call"))
    })?;
    let ToolCall { id, name } = waiting.remove(found);
    asked.push_result(ToolResult { id, name, text });
    Ok(())
}

fn unanswered(waiting: &[ToolCall]) -> Result<(), WireRefusal> {
    match waiting.first() {
        Some(call) => Err(WireRefusal::invalid(format!(
            "tool call {:?} was not answered before the next message",
            call.name
        ))),
        None => Ok(()),
    }
}

fn unmarshal(field: &str, kind: &str) -> WireRefusal {
    WireRefusal::invalid(format!(
        "json: cannot unmarshal value into Go struct field ChatRequest.messages.{field} of type {kind}"
    ))
}
