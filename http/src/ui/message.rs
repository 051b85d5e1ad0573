//! A message as a client of the stream has it: the chunks of a turn put together, or a prompt.

use planck_common::message::{MediaSource, Part};
use serde_json::{Map, Value, json};

use super::{data::with, ids};

/// Puts the chunks of one turn together, as the clients of the stream do. Chunks that a client shows
/// once and does not keep are dropped.
#[derive(Debug, Default)]
pub struct AssistantMessage {
    id: Value,
    metadata: Map<String, Value>,
    parts: Vec<Value>,
    /// The place of the part that text is added to.
    open: usize,
}

impl AssistantMessage {
    pub fn take(&mut self, chunk: &Value) {
        let kind = chunk["type"].as_str().unwrap_or_default();
        match kind {
            "start" => {
                self.id = chunk["messageId"].clone();
                self.describe(chunk);
            }
            "finish" => self.describe(chunk),
            "error" => {
                let error = chunk["errorText"].clone();
                self.metadata.insert("error".into(), error);
            }
            "start-step" => self.parts.push(json!({"type": "step-start"})),
            "reset-step" => {
                let is_start = |part: &Value| part["type"] == "step-start";
                let start = self.parts.iter().rposition(is_start);
                self.parts.truncate(start.map_or(0, |at| at + 1));
            }
            "text-start" => self.open_text(json!({"type": "text"})),
            "reasoning-start" => {
                self.open_text(json!({"type": "reasoning", "id": chunk["id"]}));
            }
            "text-delta" | "reasoning-delta" => self.add_text(chunk),
            "text-end" | "reasoning-end" => {
                if let Some(part) = self.parts.get_mut(self.open) {
                    put(part, "state", "done");
                }
            }
            _ if kind.starts_with("tool-") => self.tool(kind, chunk),
            _ if kind.starts_with("data-") && chunk["transient"] != true => self.data(chunk),
            _ => {}
        }
    }

    pub fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    pub fn has_failed(&self) -> bool {
        self.metadata.contains_key("error")
    }

    /// Returns the message as JSON.
    pub fn json(self) -> Value {
        json!({"id": self.id, "role": "assistant", "metadata": self.metadata, "parts": self.parts})
    }

    fn describe(&mut self, chunk: &Value) {
        if let Some(metadata) = chunk["messageMetadata"].as_object() {
            self.metadata.extend(metadata.clone());
        }
    }

    fn open_text(&mut self, part: Value) {
        self.open = self.parts.len();
        let part = with(with(part, "text", ""), "state", "streaming");
        self.parts.push(part);
    }

    fn add_text(&mut self, chunk: &Value) {
        let part = self.parts.get_mut(self.open);
        if let Some(Value::String(text)) = part.and_then(|part| part.get_mut("text")) {
            text.push_str(chunk["delta"].as_str().unwrap_or_default());
        }
    }

    fn tool(&mut self, kind: &str, chunk: &Value) {
        let state = match kind {
            "tool-input-available" => return self.parts.push(called(chunk, "input-available")),
            "tool-input-error" => {
                let part = called(chunk, "output-error");
                return self
                    .parts
                    .push(with(part, "errorText", chunk["errorText"].clone()));
            }
            "tool-approval-request" => "approval-requested",
            "tool-approval-response" => "approval-responded",
            "tool-output-denied" => "output-denied",
            "tool-output-available" => "output-available",
            "tool-output-error" => "output-error",
            _ => return,
        };
        let Some(part) = self.parts.iter_mut().rfind(|part| is_about(part, chunk)) else {
            return;
        };
        put(part, "state", state);
        match kind {
            "tool-approval-request" => {
                let approval = json!({"id": chunk["approvalId"],
                    "descriptor": chunk["approvalDescriptor"], "requestReason": chunk["reason"]});
                put(part, "approval", approval);
            }
            "tool-approval-response" => {
                if let Some(approval) = part.get_mut("approval") {
                    put(approval, "approved", chunk["approved"].clone());
                    if let Some(reason) = chunk.get("reason") {
                        put(approval, "reason", reason.clone());
                    }
                }
            }
            "tool-output-available" => put(part, "output", chunk["output"].clone()),
            "tool-output-error" => put(part, "errorText", chunk["errorText"].clone()),
            _ => {}
        }
    }

    /// Takes a part with data, which replaces an earlier one with the same id.
    fn data(&mut self, chunk: &Value) {
        let is_same =
            |part: &&mut Value| part["type"] == chunk["type"] && part["id"] == chunk["id"];
        match self.parts.iter_mut().find(is_same) {
            Some(part) => *part = chunk.clone(),
            None => self.parts.push(chunk.clone()),
        }
    }
}

/// Sets a field of an object.
fn put(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(key.to_owned(), value.into());
    }
}

/// Returns whether a chunk is about the call of a part, which it names or whose approval it names.
fn is_about(part: &Value, chunk: &Value) -> bool {
    match chunk.get("toolCallId") {
        Some(call) => part.get("toolCallId") == Some(call),
        None => part.pointer("/approval/id") == chunk.get("approvalId"),
    }
}

/// Returns the part of a call.
fn called(chunk: &Value, state: &str) -> Value {
    let name = chunk["toolName"].as_str().unwrap_or_default();
    let part = json!({"toolCallId": chunk["toolCallId"], "state": state, "input": chunk["input"]});
    let part = match chunk["dynamic"] == true {
        true => with(with(part, "type", "dynamic-tool"), "toolName", name),
        false => with(part, "type", format!("tool-{name}")),
    };
    match chunk.get("providerExecuted") {
        Some(is) => with(part, "providerExecuted", is.clone()),
        None => part,
    }
}

/// Returns the message of the user that became the prompt `id`.
pub fn of_user(id: &str, content: &[Part]) -> Value {
    let parts: Vec<Value> = content.iter().filter_map(user_part).collect();
    json!({"id": ids::base_of(id), "role": "user", "parts": parts})
}

fn user_part(part: &Part) -> Option<Value> {
    match part {
        Part::Text { text, .. } => Some(json!({"type": "text", "text": text})),
        Part::Image { mime, source } => Some(file(mime, source)),
        Part::File { mime, name, source } => Some(match name {
            Some(name) => with(file(mime, source), "filename", name.as_str()),
            None => file(mime, source),
        }),
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => None,
    }
}

fn file(mime: &str, source: &MediaSource) -> Value {
    let url = match source {
        MediaSource::Data(data) => format!("data:{mime};base64,{data}"),
        MediaSource::Url(url) => url.clone(),
    };
    json!({"type": "file", "mediaType": mime, "url": url})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_become_the_parts_that_a_client_keeps() {
        let chunks = [
            json!({"type": "start", "messageId": "s-1", "messageMetadata": {"turn": 1}}),
            json!({"type": "start-step"}),
            json!({"type": "text-start", "id": "text-1"}),
            json!({"type": "text-delta", "id": "text-1", "delta": "void"}),
            json!({"type": "reset-step"}),
            json!({"type": "reasoning-start", "id": "reasoning-2"}),
            json!({"type": "reasoning-delta", "id": "reasoning-2", "delta": "Hm"}),
            json!({"type": "data-agent", "id": "a", "data": {"state": "working"}}),
            json!({"type": "reasoning-delta", "id": "reasoning-2", "delta": "m."}),
            json!({"type": "reasoning-end", "id": "reasoning-2"}),
            json!({"type": "tool-input-available", "toolCallId": "c1", "toolName": "read",
                "input": {}, "dynamic": true, "providerExecuted": true}),
            json!({"type": "data-progress", "data": {}, "transient": true}),
            json!({"type": "tool-output-error", "toolCallId": "c1", "errorText": "no file"}),
            json!({"type": "tool-input-error", "toolCallId": "c2", "toolName": "read",
                "input": "{", "errorText": "no JSON", "dynamic": true, "providerExecuted": true}),
            json!({"type": "data-agent", "id": "a", "data": {"state": "idle"}}),
            json!({"type": "finish-step"}),
            json!({"type": "finish", "messageMetadata": {"outcome": "completed"}}),
        ];
        let mut message = AssistantMessage::default();
        chunks.iter().for_each(|chunk| message.take(chunk));
        let parts = json!([
            {"type": "step-start"},
            {"type": "reasoning", "id": "reasoning-2", "text": "Hmm.", "state": "done"},
            {"type": "data-agent", "id": "a", "data": {"state": "idle"}},
            {"type": "dynamic-tool", "toolName": "read", "toolCallId": "c1", "input": {},
                "state": "output-error", "errorText": "no file", "providerExecuted": true},
            {"type": "dynamic-tool", "toolName": "read", "toolCallId": "c2", "input": "{",
                "state": "output-error", "errorText": "no JSON", "providerExecuted": true},
        ]);
        let metadata = json!({"turn": 1, "outcome": "completed"});
        assert_eq!(
            message.json(),
            json!({"id": "s-1", "role": "assistant", "metadata": metadata, "parts": parts})
        );
    }

    #[test]
    fn prompt_becomes_the_message_that_was_sent() {
        let content = [
            Part::text("Look."),
            Part::Image {
                mime: "image/png".into(),
                source: MediaSource::Data("AAAA".into()),
            },
            Part::File {
                mime: "text/csv".into(),
                name: Some("a.csv".into()),
                source: MediaSource::Url("https://example.org/a.csv".into()),
            },
        ];
        let parts = json!([
            {"type": "text", "text": "Look."},
            {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"},
            {"type": "file", "mediaType": "text/csv", "url": "https://example.org/a.csv",
                "filename": "a.csv"},
        ]);
        assert_eq!(
            of_user("m1_r7", &content),
            json!({"id": "m1", "role": "user", "parts": parts})
        );
    }
}
