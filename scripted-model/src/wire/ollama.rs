//! Ollama's chat API, which streams lines of JSON. The real server accepts messages in almost any
//! order, although a wrong order confuses the model. The scripted model refuses a wrong order.

use serde_json::{Value, json};

use super::{Heading, PreparedPart, PreparedReply, Wire};
use crate::{
    play::{
        FramePiece::{self, Json, Number, Raw},
        FrameWriter, chunks,
    },
    request::{ModelRequest, RequestMessage, ToolCall, ToolResult, WireRefusal},
    script::{Auth, Stop},
};

pub static WIRE: Wire = Wire {
    serves: |path| path == "/api/chat",
    authorise,
    read: |body, _| read(body),
    refuse,
    write,
    error_event,
    content_type: "application/x-ndjson",
    call_id: |serial, index, _| format!("call_{serial:08x}{index:02x}"),
};

/// Checks the key. A local Ollama server requires none. If the script sets one, the request must
/// carry it as a bearer token, as for Ollama's cloud.
fn authorise(auth: &Auth, heading: &Heading<'_>) -> Result<(), WireRefusal> {
    let given = heading
        .header("authorization")
        .and_then(|value| value.strip_prefix("Bearer "));
    match auth {
        Auth::Key(key) if given != Some(key) => Err(WireRefusal::auth(401, "unauthorized")),
        Auth::Key(_) | Auth::Present | Auth::Off => Ok(()),
    }
}

fn refuse(refusal: &WireRefusal) -> String {
    json!({"error": refusal.message}).to_string()
}

fn read(body: &Value) -> Result<ModelRequest, WireRefusal> {
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
        || !super::good_name(name, 128, ".")
    {
        return Err(WireRefusal::invalid(format!("invalid tool {name:?}")));
    }
    let schema = tool.pointer("/function/parameters").unwrap_or(&Value::Null);
    super::check_schema(schema)
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
    if !super::good_name(name, 128, ".") {
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

fn write(speech: &PreparedReply, out: &mut FrameWriter) {
    for (index, part) in speech.parts.iter().enumerate() {
        match part {
            PreparedPart::Text(text) => {
                for text in chunks(text, speech.chunk) {
                    line(speech, &[Raw("\"content\":"), Json(text)], out);
                }
            }
            PreparedPart::Thinking(text) => {
                for text in chunks(text, speech.chunk) {
                    line(
                        speech,
                        &[Raw("\"content\":\"\",\"thinking\":"), Json(text)],
                        out,
                    );
                }
            }
            PreparedPart::Redacted(_) => (), // Ollama has no redacted thinking
            PreparedPart::Call { id, name, args } => {
                let call = [
                    Raw("\"content\":\"\",\"tool_calls\":[{\"id\":"),
                    Json(id),
                    Raw(",\"function\":{\"index\":"),
                ];
                out.pieces(&begin(speech));
                out.pieces(&call);
                out.pieces(&[
                    Number(index as u64),
                    Raw(",\"name\":"),
                    Json(name),
                    Raw(",\"arguments\":"),
                    Raw(args),
                ]);
                out.frame(&[Raw("}}]},\"done\":false}\n")]);
            }
        }
    }
    end(speech, out);
}

fn begin(speech: &PreparedReply) -> [FramePiece<'_>; 3] {
    let rest =
        ",\"created_at\":\"2026-01-01T00:00:00.000000Z\",\"message\":{\"role\":\"assistant\",";
    [Raw("{\"model\":"), Json(&speech.model), Raw(rest)]
}

fn line(speech: &PreparedReply, message: &[FramePiece<'_>], out: &mut FrameWriter) {
    out.pieces(&begin(speech));
    out.pieces(message);
    out.frame(&[Raw("},\"done\":false}\n")]);
}

fn end(speech: &PreparedReply, out: &mut FrameWriter) {
    let reason = match speech.stop {
        Stop::End | Stop::ToolUse | Stop::Refusal => "stop",
        Stop::Length => "length",
    };
    out.pieces(&begin(speech));
    out.frame(&[
        Raw("\"content\":\"\"},\"done\":true,\"done_reason\":"),
        Json(reason),
        Raw(",\"total_duration\":1000000,\"load_duration\":1000,\"prompt_eval_count\":"),
        Number(speech.usage.input),
        Raw(",\"prompt_eval_duration\":1000,\"eval_count\":"),
        Number(speech.usage.output),
        Raw(",\"eval_duration\":1000}\n"),
    ]);
}

fn error_event(message: &str, out: &mut FrameWriter) {
    out.frame(&[Raw("{\"error\":"), Json(message), Raw("}\n")]);
}
