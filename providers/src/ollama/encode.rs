//! Encodes a conversation in Ollama's format.

use std::collections::HashMap;

use planck_common::message::{MediaSource, MessageBody, Part, text_of};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    Encoder, RequestHead, WireRequest,
    catalogue::{ModelFacts, Thinking},
    encode::{
        NOTHING, Speaker, cannot_show, file_text, legal_name, named_text, put, put_open,
        result_text, side_of,
    },
    function::FunctionTool,
    opts::{Opts, set},
};

/// The options that are fields of the request itself. All others are fields of its `options`.
const BESIDE: &[&str] = &["format", "keep_alive", "think"];

#[derive(Debug)]
pub struct OllamaMessages {
    /// The start of the body, up to and including `"messages":[` and the system prompt.
    prefix: Vec<u8>,
    messages: Vec<u8>,
    comma: bool,
    /// The names of the last round's calls by call id. Ollama matches results to calls by name.
    calls: HashMap<String, String>,
    images: bool,
}

impl OllamaMessages {
    pub fn new(head: RequestHead, entry: &ModelFacts) -> Self {
        let comma = !head.system_prompt.trim().is_empty();
        let images = entry.images;
        Self {
            prefix: prefix(head, entry),
            messages: Vec::new(),
            comma,
            calls: HashMap::new(),
            images,
        }
    }

    fn put(&mut self, message: &OllamaRequestMessage<'_>) {
        if self.comma {
            self.messages.push(b',');
        }
        self.comma = true;
        put(&mut self.messages, message);
    }

    fn push_user(&mut self, parts: &[Part]) {
        let texts: Vec<String> = parts
            .iter()
            .filter_map(|part| user_text(part, self.images))
            .collect();
        let images: Vec<&str> = parts
            .iter()
            .filter_map(image)
            .filter(|_| self.images)
            .collect();
        let text = texts.join("\n\n");
        let content = if text.trim().is_empty() && images.is_empty() {
            NOTHING.to_owned()
        } else {
            text
        };
        self.put(&OllamaRequestMessage::User { content, images });
    }

    fn push_assistant(&mut self, parts: &[Part]) {
        let content = text_of(parts);
        let tool_calls: Vec<OllamaRequestCall<'_>> = parts.iter().filter_map(call).collect();
        if content.is_empty() && tool_calls.is_empty() {
            return;
        }
        self.calls = parts.iter().filter_map(named).collect();
        self.put(&OllamaRequestMessage::Assistant {
            content,
            thinking: thinking(parts),
            tool_calls,
        });
    }

    fn push_results(&mut self, parts: &[Part]) {
        let calls = std::mem::take(&mut self.calls);
        for part in parts {
            if let Part::ToolResult {
                id, text, error, ..
            } = part
            {
                let tool_name = calls.get(id).map_or(id.as_str(), String::as_str);
                self.put(&OllamaRequestMessage::Tool {
                    tool_name,
                    content: &result_text(text, *error),
                });
            }
        }
    }
}

impl Encoder for OllamaMessages {
    fn push(&mut self, message: &MessageBody) {
        match side_of(message) {
            Some(Speaker::User) => self.push_user(&message.content),
            Some(Speaker::Assistant) => self.push_assistant(&message.content),
            Some(Speaker::Results) => self.push_results(&message.content),
            None => {}
        }
    }

    fn request(&self) -> WireRequest {
        [&self.prefix, &self.messages, b"]}".as_slice()]
            .concat()
            .into()
    }
}

fn prefix(head: RequestHead, entry: &ModelFacts) -> Vec<u8> {
    let mut out = Vec::new();
    put_open(
        &mut out,
        &settings(head.model, Opts::read(head.opts), entry),
    );
    if !head.tools.is_empty() {
        out.extend_from_slice(br#","tools":"#);
        put(
            &mut out,
            &head
                .tools
                .iter()
                .map(FunctionTool::from)
                .collect::<Vec<_>>(),
        );
    }
    out.extend_from_slice(br#","messages":["#);
    if !head.system_prompt.trim().is_empty() {
        put(
            &mut out,
            &OllamaRequestMessage::System {
                content: &head.system_prompt,
            },
        );
    }
    out
}

/// Returns the fields of a request other than messages and tools. They always include the size of
/// the context, because Ollama's default silently cuts a prompt at a few thousand tokens.
fn settings(model: String, opts: Opts, entry: &ModelFacts) -> Map<String, Value> {
    let (mut members, mut options): (Map<_, _>, Map<_, _>) = opts
        .rest
        .into_iter()
        .partition(|(name, _)| BESIDE.contains(&name.as_str()));
    options
        .entry("num_ctx")
        .or_insert(entry.context_window.into());
    set(&mut options, "temperature", opts.temperature);
    set(&mut options, "top_p", opts.top_p);
    set(&mut options, "num_predict", opts.max_output_tokens);
    set(
        &mut options,
        "stop",
        (!opts.stop.is_empty()).then_some(opts.stop),
    );
    if let Some(budget) = opts
        .thinking_budget
        .filter(|_| entry.thinking != Thinking::None)
    {
        members.entry("think").or_insert(json!(budget > 0));
    }
    members.insert("options".into(), Value::Object(options));
    members.insert("model".into(), model.into());
    members.insert("stream".into(), true.into());
    members
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum OllamaRequestMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        images: Vec<&'a str>,
    },
    Assistant {
        content: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        thinking: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<OllamaRequestCall<'a>>,
    },
    Tool {
        tool_name: &'a str,
        content: &'a str,
    },
}

#[derive(Serialize)]
struct OllamaRequestCall<'a> {
    function: OllamaRequestFunction<'a>,
}

#[derive(Serialize)]
struct OllamaRequestFunction<'a> {
    name: std::borrow::Cow<'a, str>,
    arguments: &'a RawValue,
}

/// Returns the text of a part of a user message, or `None` if Ollama receives the part in another
/// field or not at all.
fn user_text(part: &Part, images: bool) -> Option<String> {
    match part {
        Part::Text { text, .. } => Some(text.clone()),
        Part::Image {
            source: MediaSource::Data(_),
            ..
        } if images => None,
        Part::Image { mime, source } => Some(cannot_show("image", None, mime, source)),
        Part::File { mime, name, source } => {
            let text = file_text(mime, source).map(|text| named_text(name.as_deref(), &text));
            Some(text.unwrap_or_else(|| cannot_show("file", name.as_deref(), mime, source)))
        }
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => None,
    }
}

fn image(part: &Part) -> Option<&str> {
    let Part::Image {
        source: MediaSource::Data(data),
        ..
    } = part
    else {
        return None;
    };
    Some(data)
}

fn call(part: &Part) -> Option<OllamaRequestCall<'_>> {
    let Part::ToolCall { name, args, .. } = part else {
        return None;
    };
    Some(OllamaRequestCall {
        function: OllamaRequestFunction {
            name: legal_name(name),
            arguments: args,
        },
    })
}

fn named(part: &Part) -> Option<(String, String)> {
    let Part::ToolCall { id, name, .. } = part else {
        return None;
    };
    Some((id.clone(), legal_name(name).into_owned()))
}

fn thinking(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Thinking { text, .. } => Some(text.as_str()),
        Part::Text { .. }
        | Part::ToolCall { .. }
        | Part::ToolResult { .. }
        | Part::Image { .. }
        | Part::File { .. } => None,
    });
    texts.collect()
}
