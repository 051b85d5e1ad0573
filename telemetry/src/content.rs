//! Records message texts as attributes of spans, if `telemetry.content` is set and there is a
//! collector. Long texts are cut, and the oldest messages of a long request are left out.

use std::sync::atomic::{AtomicBool, Ordering};

use planck_common::message::{MessageBody, MessageRole, Part};
use serde_json::{Value, json};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use planck_agent::model::Chunk;

const SYSTEM: &str = "gen_ai.system_instructions";
const INPUT: &str = "gen_ai.input.messages";
const OUTPUT: &str = "gen_ai.output.messages";
const ARGUMENTS: &str = "gen_ai.tool.call.arguments";
const RESULT: &str = "gen_ai.tool.call.result";

/// The maximum sizes in bytes of one text, and of all messages of a request. Collectors accept
/// spans of some hundred kilobytes.
const LONGEST: usize = 16 << 10;
const MOST: usize = 64 << 10;

static ASKED: AtomicBool = AtomicBool::new(false);

pub(super) fn ask(asked: bool) {
    ASKED.store(asked, Ordering::Relaxed);
}

/// Returns whether message texts are recorded.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Records a request to a model: the system prompt, and as many of the latest messages as fit into
/// the limit.
pub fn request<'a>(
    span: &Span,
    system: &str,
    messages: impl DoubleEndedIterator<Item = &'a MessageBody>,
) {
    if !is_asked() {
        return;
    }
    let mut left = MOST;
    let mut shown = Vec::new();
    for message in messages.rev() {
        let message = written(message);
        let Some(rest) = left.checked_sub(message.to_string().len()) else {
            break;
        };
        left = rest;
        shown.push(message);
    }
    shown.reverse();
    span.set_attribute(SYSTEM, json!([text(system)]).to_string());
    span.set_attribute(INPUT, Value::from(shown).to_string());
}

/// Records the arguments of a tool call.
pub fn arguments(span: &Span, args: &str) {
    if is_asked() {
        span.set_attribute(ARGUMENTS, cut(args).to_owned());
    }
}

/// Records the result of a tool call.
pub fn result(span: &Span, text: &str) {
    if is_asked() {
        span.set_attribute(RESULT, cut(text).to_owned());
    }
}

/// Collects the content of a reply while it is streamed.
#[derive(Debug, Default)]
pub struct ReplyContent {
    text: String,
    /// The part number, the name and the arguments of each call.
    calls: Vec<(usize, String, String)>,
}

impl ReplyContent {
    /// Creates an empty collector. Returns `None` if message texts are not recorded.
    pub fn begin() -> Option<Self> {
        is_asked().then(Self::default)
    }

    pub fn take(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            match chunk {
                Chunk::Text { text, .. } if self.text.len() < LONGEST => self.text.push_str(text),
                Chunk::Call { part, name, .. } => {
                    match self.calls.iter_mut().rev().find(|(of, ..)| of == part) {
                        Some((_, known, _)) => known.clone_from(name),
                        None => self.calls.push((*part, name.clone(), String::new())),
                    }
                }
                Chunk::Args { part, json } => {
                    let call = self.calls.iter_mut().rev().find(|(of, ..)| of == part);
                    if let Some((_, _, args)) = call.filter(|(_, _, args)| args.len() < LONGEST) {
                        args.push_str(json);
                    }
                }
                Chunk::Text { .. }
                | Chunk::Thinking { .. }
                | Chunk::Signature { .. }
                | Chunk::Redacted { .. } => {}
            }
        }
    }

    pub fn note(&self, span: &Span) {
        let content = Some(&self.text)
            .filter(|content| !content.is_empty())
            .map(|content| text(content));
        let calls = self.calls.iter().map(
            |(_, name, args)| json!({ "type": "tool_call", "name": name, "arguments": cut(args) }),
        );
        let parts: Vec<Value> = content.into_iter().chain(calls).collect();
        span.set_attribute(
            OUTPUT,
            json!([{ "role": "assistant", "parts": parts }]).to_string(),
        );
    }
}

fn written(message: &MessageBody) -> Value {
    let role = match message.role {
        MessageRole::Assistant => "assistant",
        MessageRole::ToolResult => "tool",
        MessageRole::User | MessageRole::Custom => "user",
    };
    let parts: Vec<Value> = message.content.iter().filter_map(part).collect();
    json!({ "role": role, "parts": parts })
}

/// Converts a part of a message for a span. Returns `None` for thoughts, images and files, which
/// are left out.
fn part(part: &Part) -> Option<Value> {
    match part {
        Part::Text { text: content, .. } => Some(text(content)),
        Part::ToolCall {
            call_id,
            name,
            args,
            ..
        } => Some(
            json!({ "type": "tool_call", "id": call_id, "name": name, "arguments": cut(args.get()) }),
        ),
        Part::ToolResult { call_id, text, .. } => {
            Some(json!({ "type": "tool_call_response", "id": call_id, "response": cut(text) }))
        }
        Part::Thinking { .. } | Part::Image { .. } | Part::File { .. } => None,
    }
}

fn text(content: &str) -> Value {
    json!({ "type": "text", "content": cut(content) })
}

fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LONGEST))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_assembled() {
        let mut content = ReplyContent::default();
        content.take(&[
            Chunk::Text {
                part: 0,
                text: "he".into(),
            },
            Chunk::Thinking {
                part: 1,
                text: "hm".into(),
            },
        ]);
        content.take(&[
            Chunk::Text {
                part: 0,
                text: "y".into(),
            },
            Chunk::Call {
                part: 2,
                id: String::new(),
                name: "bash".into(),
            },
            Chunk::Call {
                part: 3,
                id: String::new(),
                name: "read".into(),
            },
        ]);
        content.take(&[
            Chunk::Args {
                part: 2,
                json: "{\"a\"".into(),
            },
            Chunk::Args {
                part: 3,
                json: "{}".into(),
            },
            Chunk::Args {
                part: 2,
                json: ":1}".into(),
            },
        ]);
        assert_eq!(
            (content.text.as_str(), content.calls),
            (
                "hey",
                vec![
                    (2, "bash".into(), "{\"a\":1}".into()),
                    (3, "read".into(), "{}".into())
                ]
            )
        );
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut(&"é".repeat(LONGEST)).len(), LONGEST);
        assert_eq!(cut(&format!("a{}", "é".repeat(LONGEST))).len(), LONGEST - 1);
    }
}
