//! Writes a segment as a chat completion, or as its chunks.

use planck_common::usage::Usage;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::openai::{
    ids::ToolCallId,
    opening::OpenedResponse,
    segment::{EndKind, SegmentEnd, SegmentEvent, SegmentPieceKind},
};

/// The separator between the texts of two replies.
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

/// A chat completion.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ChatCompletion {
    id: String,
    /// Always `chat.completion`.
    object: &'static str,
    /// The time in seconds.
    created: i64,
    model: String,
    /// Always one choice.
    choices: Vec<ChatChoice>,
    usage: ChatUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChatChoice {
    index: u32,
    message: ChatAnswer,
    logprobs: (),
    /// `stop`, `length`, `content_filter` or `tool_calls`.
    finish_reason: Option<&'static str>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChatAnswer {
    /// Always `assistant`.
    role: &'static str,
    /// The text of all replies of the orchestrator's last turn that said something. It is null if
    /// there is none, and tools are called.
    content: Option<String>,
    refusal: (),
    /// The model's reasoning, and what the orchestrator said in earlier turns.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    reasoning_content: String,
    /// The calls of the client's tools.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    tool_calls: Vec<ChatToolCall>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChatToolCall {
    /// The place of the call among those of the answer. Only chunks have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    /// Always `function`.
    r#type: &'static str,
    function: CalledFunction,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CalledFunction {
    name: String,
    /// The arguments, as the text of a JSON object.
    arguments: String,
}

/// The tokens of the orchestrator's requests, in all turns of the answer.
#[derive(Debug, Serialize, JsonSchema)]
struct ChatUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: CachedTokens,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CachedTokens {
    cached_tokens: u64,
}

fn usage(usage: &Usage) -> ChatUsage {
    ChatUsage {
        prompt_tokens: usage.context_tokens(),
        completion_tokens: usage.output_tokens,
        total_tokens: usage.tokens(),
        prompt_tokens_details: CachedTokens {
            cached_tokens: usage.cache_read_tokens,
        },
    }
}

/// Writes the chunks of a stream.
pub struct ChunkWriter {
    head: Head,
    wants_usage: bool,
    calls: usize,
    /// The stage of the last text that was sent.
    stage: Option<u64>,
}

/// The fields that all chunks and the completion have.
struct Head {
    id: String,
    created: i64,
    model: String,
    opened: ResponsePlace,
}

/// The place of a response, from which the ids of its tool calls are made.
struct ResponsePlace {
    session: planck_common::SessionId,
    place: planck_common::Seq,
}

impl Head {
    fn new(opened: &OpenedResponse, created: i64) -> Self {
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

    fn call(&self, call: planck_common::CallId, name: String, arguments: String) -> ChatToolCall {
        let id = ToolCallId {
            session: self.opened.session.clone(),
            place: self.opened.place,
            call,
        };
        ChatToolCall {
            index: None,
            id: id.to_string(),
            r#type: "function",
            function: CalledFunction { name, arguments },
        }
    }
}

impl ChunkWriter {
    pub fn new(opened: &OpenedResponse, created: i64, wants_usage: bool) -> Self {
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
    /// made again, its text follows in a new paragraph. So does the text of a later turn, because it
    /// is not known before whether one follows.
    pub fn write(&mut self, event: SegmentEvent) -> Vec<Value> {
        match event {
            SegmentEvent::Piece {
                kind: SegmentPieceKind::Text,
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
                kind: SegmentPieceKind::Reasoning,
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
                call.index = Some(self.calls);
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
                chunk.insert("usage".to_owned(), json!(usage(&end.usage)));
            }
            chunks.push(chunk);
        }
        chunks
    }
}

/// Collects a completion.
pub struct Completion {
    head: Head,
    /// The turns that have ended, and the turn that is being read.
    earlier: Vec<SpokenTurn>,
    turn: SpokenTurn,
    calls: Vec<ChatToolCall>,
}

/// The texts of a turn.
#[derive(Debug, Default)]
struct SpokenTurn {
    /// The texts of the replies, and the text of the one that is not saved.
    texts: Vec<String>,
    text: String,
    reasoning: String,
}

impl SpokenTurn {
    /// Returns everything as reasoning.
    fn thoughts(self) -> String {
        let all = [self.reasoning, self.texts.join(BREAK)];
        let all: Vec<_> = all.into_iter().filter(|text| !text.is_empty()).collect();
        all.join(BREAK)
    }
}

impl Completion {
    pub fn new(opened: &OpenedResponse, created: i64) -> Self {
        Self {
            head: Head::new(opened, created),
            earlier: Vec::new(),
            turn: SpokenTurn::default(),
            calls: Vec::new(),
        }
    }

    /// Takes an event. Returns the end of the segment if the event is that.
    pub fn take(&mut self, event: SegmentEvent) -> Option<SegmentEnd> {
        match event {
            SegmentEvent::Piece {
                kind: SegmentPieceKind::Text,
                text,
                ..
            } => self.turn.text.push_str(&text),
            SegmentEvent::Piece {
                kind: SegmentPieceKind::Reasoning,
                text,
                ..
            } => self.turn.reasoning.push_str(&text),
            SegmentEvent::Void => self.turn.text.clear(),
            SegmentEvent::Saved => {
                let text = std::mem::take(&mut self.turn.text);
                self.turn.texts.extend((!text.is_empty()).then_some(text));
            }
            SegmentEvent::Began { .. } => self.earlier.push(std::mem::take(&mut self.turn)),
            SegmentEvent::Called {
                call_id,
                name,
                args,
                ..
            } => self.calls.push(self.head.call(call_id, name, args)),
            SegmentEvent::End(end) => return Some(end),
            SegmentEvent::Waits { .. } => {}
        }
        None
    }

    /// Returns the completion.
    pub fn finish(mut self, end: &SegmentEnd) -> ChatCompletion {
        self.earlier.push(self.turn);
        let spoke = |turn: &SpokenTurn| !turn.texts.is_empty();
        let last = self.earlier.iter().rposition(spoke);
        let answer = last.and_then(|last| self.earlier.get_mut(last));
        let text = answer.map(|turn| std::mem::take(&mut turn.texts).join(BREAK));
        let text = text.unwrap_or_default();
        let thoughts = self.earlier.into_iter().map(SpokenTurn::thoughts);
        let thoughts: Vec<_> = thoughts.filter(|text| !text.is_empty()).collect();
        let is_only_calls = text.is_empty() && !self.calls.is_empty();
        let message = ChatAnswer {
            role: "assistant",
            content: (!is_only_calls).then_some(text),
            refusal: (),
            reasoning_content: thoughts.join(BREAK),
            tool_calls: self.calls,
        };
        let Head {
            id, created, model, ..
        } = self.head;
        ChatCompletion {
            id,
            object: "chat.completion",
            created,
            model,
            choices: vec![ChatChoice {
                index: 0,
                message,
                logprobs: (),
                finish_reason: finish_reason(&end.how),
            }],
            usage: usage(&end.usage),
        }
    }
}
