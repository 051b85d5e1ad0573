//! Writes a segment as a chat completion, or as its chunks.

use planck_common::usage::Usage;
use serde_json::{Map, Value, json};

use crate::openai::{
    ids::ToolCallId,
    opening::Opened,
    segment::{EndKind, PieceKind, SegmentEnd, SegmentEvent},
};

/// What separates the texts of two replies.
const BREAK: &str = "\n\n";

/// Returns the reason that clients read, or `None` for a turn that failed.
fn finish_reason(how: &EndKind) -> Option<&'static str> {
    match how {
        EndKind::Done | EndKind::Aborted => Some("stop"),
        EndKind::Cut => Some("length"),
        EndKind::Refused => Some("content_filter"),
        EndKind::Called => Some("tool_calls"),
        EndKind::Taken | EndKind::Failed { .. } => None,
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.context_tokens(),
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.tokens(),
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    })
}

/// Writes the chunks of a stream.
pub struct ChunkWriter {
    head: Head,
    wants_usage: bool,
    calls: usize,
    /// The stage of the last text that was sent.
    stage: Option<u64>,
}

/// What all chunks have, and the completion.
struct Head {
    id: String,
    created: i64,
    model: String,
    opened: ResponsePlace,
}

/// What the ids of tool calls are made from.
struct ResponsePlace {
    session: planck_common::SessionId,
    place: planck_common::Seq,
}

impl Head {
    fn new(opened: &Opened, created: i64) -> Self {
        let id = opened.id.to_string();
        Self {
            id: format!("chatcmpl-{}", id.trim_start_matches("resp_")),
            created,
            model: opened.model.clone(),
            opened: ResponsePlace {
                session: opened.id.session.clone(),
                place: opened.id.place,
            },
        }
    }

    fn call(&self, call: planck_common::CallId, name: String, args: String) -> Value {
        let id = ToolCallId {
            session: self.opened.session.clone(),
            place: self.opened.place,
            call,
        };
        json!({"id": id.to_string(), "type": "function",
            "function": {"name": name, "arguments": args}})
    }
}

impl ChunkWriter {
    pub fn new(opened: &Opened, created: i64, wants_usage: bool) -> Self {
        Self {
            head: Head::new(opened, created),
            wants_usage,
            calls: 0,
            stage: None,
        }
    }

    /// Returns the first chunk.
    pub fn first(&self) -> Value {
        self.chunk(&json!({"role": "assistant", "content": ""}), None)
    }

    fn chunk(&self, delta: &Value, finish: Option<&str>) -> Value {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish, "logprobs": null});
        self.object(&json!([choice]))
    }

    fn object(&self, choices: &Value) -> Value {
        let Head {
            id, created, model, ..
        } = &self.head;
        json!({"id": id, "object": "chat.completion.chunk", "created": created, "model": model,
            "choices": choices})
    }

    /// Returns the chunks for an event. Text that was sent cannot be taken back: if a request is
    /// made again, its text follows in a new paragraph.
    pub fn write(&mut self, event: SegmentEvent) -> Vec<Value> {
        match event {
            SegmentEvent::Piece {
                kind: PieceKind::Text,
                place,
                text,
            } => {
                let is_new = self
                    .stage
                    .replace(place.stage)
                    .is_some_and(|last| last != place.stage);
                let text = if is_new {
                    format!("{BREAK}{text}")
                } else {
                    text
                };
                vec![self.chunk(&json!({"content": text}), None)]
            }
            SegmentEvent::Piece {
                kind: PieceKind::Reasoning,
                text,
                ..
            } => vec![self.chunk(&json!({"reasoning_content": text}), None)],
            SegmentEvent::Waits { id, title } => {
                let text = format!("Waits for a person: {title} (`planck answer {id}`)\n");
                vec![self.chunk(&json!({"reasoning_content": text}), None)]
            }
            SegmentEvent::Called {
                call_id,
                name,
                args,
                ..
            } => {
                let mut call = self.head.call(call_id, name, args);
                if let Some(call) = call.as_object_mut() {
                    call.insert("index".to_owned(), json!(self.calls));
                }
                self.calls += 1;
                vec![self.chunk(&json!({"tool_calls": [call]}), None)]
            }
            SegmentEvent::End(end) => self.end(&end),
            SegmentEvent::Began { .. } | SegmentEvent::Void | SegmentEvent::Saved => Vec::new(),
        }
    }

    fn end(&self, end: &SegmentEnd) -> Vec<Value> {
        let Some(reason) = finish_reason(&end.how) else {
            return Vec::new();
        };
        let mut chunks = vec![self.chunk(&json!({}), Some(reason))];
        if self.wants_usage {
            let mut chunk = self.object(&json!([]));
            if let Some(chunk) = chunk.as_object_mut() {
                chunk.insert("usage".to_owned(), usage(&end.usage));
            }
            chunks.push(chunk);
        }
        chunks
    }
}

/// Collects a completion.
pub struct Completion {
    head: Head,
    /// The texts of the replies, and the text of the one that is not saved.
    texts: Vec<String>,
    text: String,
    reasoning: String,
    calls: Vec<Value>,
}

impl Completion {
    pub fn new(opened: &Opened, created: i64) -> Self {
        Self {
            head: Head::new(opened, created),
            texts: Vec::new(),
            text: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
        }
    }

    /// Takes an event. Returns the end of the segment if the event is that.
    pub fn take(&mut self, event: SegmentEvent) -> Option<SegmentEnd> {
        match event {
            SegmentEvent::Piece {
                kind: PieceKind::Text,
                text,
                ..
            } => self.text.push_str(&text),
            SegmentEvent::Piece {
                kind: PieceKind::Reasoning,
                text,
                ..
            } => self.reasoning.push_str(&text),
            SegmentEvent::Void => self.text.clear(),
            SegmentEvent::Saved => {
                let text = std::mem::take(&mut self.text);
                self.texts.extend((!text.is_empty()).then_some(text));
            }
            SegmentEvent::Called {
                call_id,
                name,
                args,
                ..
            } => self.calls.push(self.head.call(call_id, name, args)),
            SegmentEvent::End(end) => return Some(end),
            SegmentEvent::Began { .. } | SegmentEvent::Waits { .. } => {}
        }
        None
    }

    /// Returns the completion.
    pub fn finish(self, end: &SegmentEnd) -> Value {
        let text = self.texts.join(BREAK);
        let content = if text.is_empty() && !self.calls.is_empty() {
            Value::Null
        } else {
            Value::String(text)
        };
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        message.insert("content".to_owned(), content);
        message.insert("refusal".to_owned(), Value::Null);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), json!(self.reasoning));
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".to_owned(), json!(self.calls));
        }
        let Head {
            id, created, model, ..
        } = self.head;
        json!({"id": id, "object": "chat.completion", "created": created, "model": model,
            "choices": [{"index": 0, "message": message, "logprobs": null,
                "finish_reason": finish_reason(&end.how)}],
            "usage": usage(&end.usage)})
    }
}
