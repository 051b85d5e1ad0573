//! Reads the items of a request. Every call must have its output, and reasoning must precede the
//! item that followed it originally.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{Follower, ciphertext, thought_of_call};
use crate::{
    request::{ModelRequest, RequestMessage, ToolCall, ToolResult, WireRefusal, only_fields},
    wire::good_name,
};

pub fn read(items: &[Value], asked: &mut ModelRequest) -> Result<(), WireRefusal> {
    let mut reader = InputItemReader {
        asked,
        waiting: Vec::new(),
        calls: HashSet::new(),
        thoughts: Vec::new(),
        open: None,
    };
    for (index, item) in items.iter().enumerate() {
        reader.item(&format!("input[{index}]"), item)?;
    }
    reader.follows(Follower::Nothing)?;
    match reader.waiting.first() {
        Some(id) => Err(WireRefusal::at(
            "input",
            format!("No tool output found for function call {id}."),
        )),
        None => Ok(()),
    }
}

struct InputItemReader<'a> {
    asked: &'a mut ModelRequest,
    /// The calls that have no output yet.
    waiting: Vec<String>,
    calls: HashSet<String>,
    thoughts: Vec<String>,
    /// The last reasoning item, if no item has followed it yet.
    open: Option<String>,
}

impl InputItemReader<'_> {
    fn item(&mut self, place: &str, item: &Value) -> Result<(), WireRefusal> {
        let fields = item
            .as_object()
            .ok_or_else(|| WireRefusal::at(place, format!("Invalid type for '{place}'.")))?;
        let kind = fields
            .get("type")
            .map_or(Some("message"), Value::as_str)
            .unwrap_or_default();
        let known: &[&str] = match kind {
            "message" => &["type", "role", "content", "id", "status", "phase"],
            "reasoning" => &[
                "type",
                "id",
                "summary",
                "content",
                "encrypted_content",
                "status",
            ],
            "function_call" => &["type", "id", "call_id", "name", "arguments", "status"],
            "function_call_output" => &["type", "id", "call_id", "output", "status"],
            other => {
                let message = format!(
                    "Invalid value: '{other}'. Supported values are: 'message', 'reasoning', 'function_call', and \
                     'function_call_output'."
                );
                return Err(WireRefusal::at(place, message));
            }
        };
        only_fields(fields, known).map_err(|field| unknown(place, field))?;
        match kind {
            "message" => self.message(place, fields),
            "reasoning" => self.reasoning(place, fields),
            "function_call" => self.call(place, fields),
            _ => self.output(place, fields),
        }
    }

    /// Refuses the request if a reasoning item comes just before and `next` is not the kind of item
    /// that originally followed it.
    fn follows(&mut self, next: Follower) -> Result<(), WireRefusal> {
        let Some(id) = self.open.take() else {
            return Ok(());
        };
        if next != Follower::Nothing && Follower::told(&id).is_none_or(|told| told == next) {
            return Ok(());
        }
        let message = format!(
            "Item '{id}' of type 'reasoning' was provided without its required following item."
        );
        Err(WireRefusal::at("input", message))
    }

    fn message(&mut self, place: &str, fields: &Map<String, Value>) -> Result<(), WireRefusal> {
        let role = string(place, fields, "role")?;
        self.follows(if role == "assistant" {
            Follower::Message
        } else {
            Follower::Nothing
        })?;
        let text = content(place, fields, role == "assistant")?;
        match fields.get("phase") {
            None => {}
            Some(phase)
                if role == "assistant" && (phase == "commentary" || phase == "final_answer") => {}
            Some(phase) => {
                let message = format!(
                    "Invalid value: {phase}. Supported values are: 'commentary' and 'final_answer'."
                );
                return Err(WireRefusal::at(format!("{place}.phase"), message));
            }
        }
        match role {
            "user" => self.asked.messages.push(RequestMessage::User(text)),
            "assistant" => self.answer(&text, None),
            "system" | "developer" => {
                let gap = if self.asked.system.is_empty() {
                    ""
                } else {
                    "\n"
                };
                self.asked.system.push_str(gap);
                self.asked.system.push_str(&text);
            }
            other => {
                let message = format!(
                    "Invalid value: '{other}'. Supported values are: 'assistant', 'system', 'developer', and 'user'."
                );
                return Err(WireRefusal::at(format!("{place}.role"), message));
            }
        }
        Ok(())
    }

    /// Adds a text or a call to the answer that is being read. The items of one answer are
    /// adjacent, so they form one message.
    fn answer(&mut self, more: &str, called: Option<ToolCall>) {
        match self.asked.messages.last_mut() {
            Some(RequestMessage::Model { text, calls }) => {
                text.push_str(more);
                calls.extend(called);
            }
            Some(RequestMessage::User(_) | RequestMessage::Results(_)) | None => {
                self.asked.messages.push(RequestMessage::Model {
                    text: more.to_owned(),
                    calls: called.into_iter().collect(),
                });
            }
        }
    }

    fn reasoning(&mut self, place: &str, fields: &Map<String, Value>) -> Result<(), WireRefusal> {
        self.follows(Follower::Reasoning)?;
        let id = string(place, fields, "id")?;
        if !id.starts_with("rs_") {
            let message =
                format!("Invalid '{place}.id': '{id}'. Expected an ID that begins with 'rs'.");
            return Err(WireRefusal::at(format!("{place}.id"), message));
        }
        if self.thoughts.iter().any(|known| known == id) {
            return Err(WireRefusal::at(
                "input",
                format!(
                    "Duplicate item found with id {id}. Remove duplicate items from your input."
                ),
            ));
        }
        let Some(given) = fields
            .get("encrypted_content")
            .filter(|given| !given.is_null())
        else {
            let message = format!(
                "Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with `store` \
                 set to true, or remove this item from your input."
            );
            return Err(WireRefusal::at("input", message));
        };
        if given.as_str() != Some(&ciphertext(id)) {
            let message = format!("The encrypted content for item {id} could not be verified.");
            return Err(WireRefusal::at(
                format!("{place}.encrypted_content"),
                message,
            ));
        }
        let summary = fields
            .get("summary")
            .and_then(Value::as_array)
            .ok_or_else(|| missing(place, "summary"))?;
        let is_text = |part: &Value| part["type"] == "summary_text" && part["text"].is_string();
        if !summary.iter().all(is_text) {
            return Err(WireRefusal::at(
                format!("{place}.summary"),
                "Supported values are: 'summary_text'.",
            ));
        }
        self.thoughts.push(id.to_owned());
        self.open = Some(id.to_owned());
        Ok(())
    }

    fn call(&mut self, place: &str, fields: &Map<String, Value>) -> Result<(), WireRefusal> {
        self.follows(Follower::Call)?;
        let (id, name) = (call_id(place, fields)?, string(place, fields, "name")?);
        if !good_name(name, 64, "") {
            let message = format!(
                "Invalid '{place}.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
            );
            return Err(WireRefusal::at(format!("{place}.name"), message));
        }
        let arguments = string(place, fields, "arguments")?;
        if !serde_json::from_str(arguments).is_ok_and(|arguments: Value| arguments.is_object()) {
            let message =
                format!("Invalid '{place}.arguments': expected a string that holds a JSON object.");
            return Err(WireRefusal::at(format!("{place}.arguments"), message));
        }
        if let Some(thought) = thought_of_call(id)
            .filter(|thought| !self.thoughts.iter().any(|id| id.starts_with(thought)))
        {
            let message = format!(
                "Item '{id}' of type 'function_call' was provided without its required 'reasoning' item: '{thought}'."
            );
            return Err(WireRefusal::at("input", message));
        }
        if !self.calls.insert(id.to_owned()) {
            return Err(WireRefusal::at(
                "input",
                format!("Duplicate function call id {id}."),
            ));
        }
        self.waiting.push(id.to_owned());
        let called = ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
        };
        self.answer("", Some(called));
        Ok(())
    }

    fn output(&mut self, place: &str, fields: &Map<String, Value>) -> Result<(), WireRefusal> {
        self.follows(Follower::Nothing)?;
        let id = call_id(place, fields)?;
        let text = match fields.get("output") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => heard(place, "output", parts)?,
            Some(_) | None => return Err(missing(place, "output")),
        };
        let Some(found) = self.waiting.iter().position(|waiting| waiting == id) else {
            return Err(WireRefusal::at(
                "input",
                format!("No tool call found for function call output with call_id {id}."),
            ));
        };
        self.waiting.remove(found);
        let name = self.asked.name_of_call(id).unwrap_or_default().to_owned();
        self.asked.push_result(ToolResult {
            id: id.to_owned(),
            name,
            text,
        });
        Ok(())
    }
}

fn call_id<'a>(place: &str, fields: &'a Map<String, Value>) -> Result<&'a str, WireRefusal> {
    let id = string(place, fields, "call_id")?;
    match good_name(id, 64, "") {
        true => Ok(id),
        false => {
            let message = format!(
                "Invalid '{place}.call_id': expected 1 to 64 letters, digits, '_' and '-'."
            );
            Err(WireRefusal::at(format!("{place}.call_id"), message))
        }
    }
}

fn content(
    place: &str,
    fields: &Map<String, Value>,
    is_answer: bool,
) -> Result<String, WireRefusal> {
    match fields.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) if !parts.is_empty() && is_answer => said(place, parts),
        Some(Value::Array(parts)) if !parts.is_empty() => heard(place, "content", parts),
        Some(_) | None => Err(missing(place, "content")),
    }
}

fn said(place: &str, parts: &[Value]) -> Result<String, WireRefusal> {
    let texts = parts.iter().enumerate().map(|(index, part)| {
        let place = format!("{place}.content[{index}]");
        let fields = part.as_object().ok_or_else(|| missing(&place, "type"))?;
        match string(&place, fields, "type")? {
            "output_text" if !fields.get("annotations").is_some_and(Value::is_array) => {
                Err(missing(&place, "annotations"))
            }
            "output_text" => Ok(string(&place, fields, "text")?.to_owned()),
            "refusal" => Ok(string(&place, fields, "refusal")?.to_owned()),
            other => {
                let message = format!(
                    "Invalid value: '{other}'. Supported values are: 'output_text' and 'refusal'."
                );
                Err(WireRefusal::at(place, message))
            }
        }
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.concat())
}

fn heard(place: &str, field: &str, parts: &[Value]) -> Result<String, WireRefusal> {
    let texts = parts.iter().enumerate().map(|(index, part)| {
        let place = format!("{place}.{field}[{index}]");
        let fields = part.as_object().ok_or_else(|| missing(&place, "type"))?;
        let kind = string(&place, fields, "type")?;
        let known: &[&str] = match kind {
            "input_text" => &["type", "text", "prompt_cache_breakpoint"],
            "input_image" => &["type", "image_url", "file_id", "detail", "prompt_cache_breakpoint"],
            "input_file" => &["type", "filename", "file_data", "file_id", "file_url", "prompt_cache_breakpoint"],
            other => {
                let message =
                    format!("Invalid value: '{other}'. Supported values are: 'input_text', 'input_image', and 'input_file'.");
                return Err(WireRefusal::at(place, message));
            }
        };
        only_fields(fields, known).map_err(|field| unknown(&place, field))?;
        match kind {
            "input_text" => return Ok(string(&place, fields, "text")?.to_owned()),
            "input_image" => drop(string(&place, fields, "image_url")?),
            _ if fields.contains_key("file_data") => drop(string(&place, fields, "filename")?),
            _ => drop(string(&place, fields, "file_url")?),
        }
        Ok(format!("[{kind}]"))
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

fn string<'a>(
    place: &str,
    fields: &'a Map<String, Value>,
    field: &str,
) -> Result<&'a str, WireRefusal> {
    fields
        .get(field)
        .and_then(Value::as_str)
        .ok_or_else(|| missing(place, field))
}

fn missing(place: &str, field: &str) -> WireRefusal {
    WireRefusal::at(
        format!("{place}.{field}"),
        format!("Missing required parameter: '{place}.{field}'."),
    )
}

fn unknown(place: &str, field: &str) -> WireRefusal {
    WireRefusal::at(
        format!("{place}.{field}"),
        format!("Unknown parameter: '{place}.{field}'."),
    )
}
