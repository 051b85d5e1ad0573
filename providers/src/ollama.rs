//! The wire format of Ollama's own chat API, which sends each piece of a reply as a line of JSON.

use std::{collections::HashMap, sync::Arc};

use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderName},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};

use planck_agent::model::{Chunk, Failure, Finish, Names, ToolSpec};
use planck_common::message::{MediaSource, MessageBody, Part, StopReason, text_of};

use crate::{
    Encoder, RequestHead, WireRequest,
    catalogue::{ModelFacts, Thinking},
    decode::{
        Decoder, Decoding, EventDecoder, PartKind, PartNumbers, broken, parse, stop_of, usage,
    },
    encode::{
        NOTHING, Opts, Speaker, add_member, cannot_show, file_text, legal_name, named_text,
        open_messages, put, result_text, set, side_of,
    },
    error_body::ProviderError,
    frames::Ndjson,
    lenient::{BorrowedWord, count},
    wire::{WireFormat, WireTarget, below},
};

#[derive(Debug)]
pub struct Ollama;

impl WireFormat for Ollama {
    fn url(&self, base: &Url, _: &str, _: &WireTarget) -> Url {
        below(base, "/api", "/chat")
    }

    /// Returns the header for the key. Ollama's hosted service needs a key, and so do some proxies.
    fn key_header(&self, _: &WireTarget) -> (HeaderName, &'static str) {
        (AUTHORIZATION, "Bearer ")
    }

    fn encoder(&self, head: RequestHead, entry: &ModelFacts, _: &WireTarget) -> Box<dyn Encoder> {
        Box::new(OllamaMessages::new(head, entry))
    }

    fn decoder(&self, _: &WireTarget) -> Box<dyn Decoder> {
        Box::new(Decoding::<Ndjson, OllamaReply>::new(OllamaReply::default()))
    }
}

// Encodes a conversation in Ollama's format.

/// The options that are fields of the request itself. All others are fields of its `options`.
const BESIDE: &[&str] = &["format", "keep_alive", "think"];

#[derive(Debug)]
struct OllamaMessages {
    /// The start of the body, up to and including `"messages":[` and the system prompt.
    prefix: Vec<u8>,
    messages: Vec<u8>,
    comma: bool,
    /// The names of the last round's calls by call id. Ollama matches results to calls by name.
    calls: HashMap<String, String>,
    images: bool,
    tools: Arc<[ToolSpec]>,
}

impl OllamaMessages {
    fn new(head: RequestHead, entry: &ModelFacts) -> Self {
        let comma = !head.system_prompt.trim().is_empty();
        let images = entry.images;
        Self {
            tools: Arc::clone(&head.tools),
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

    /// The API knows no tool that a model must call. A reply in the format of the tool's arguments
    /// is as good as a call.
    fn request(&self, demanded: Option<&str>) -> WireRequest {
        let mut out = [&self.prefix, &self.messages, b"]}".as_slice()].concat();
        let tool = demanded.and_then(|name| self.tools.iter().find(|tool| tool.name == name));
        if let Some(tool) = tool {
            add_member(&mut out, "format", &*tool.parameters);
        }
        out.into()
    }
}

fn prefix(head: RequestHead, entry: &ModelFacts) -> Vec<u8> {
    let settings = settings(head.model, Opts::read(head.opts), entry);
    let mut out = open_messages(&settings, &head.tools);
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

// Decodes the lines of Ollama's stream, which are parsed without copying their strings. A call
// arrives whole.

/// The state of a reply that is being decoded.
#[derive(Debug, Default)]
struct OllamaReply {
    parts: PartNumbers,
    calls: bool,
    end: Option<Finish>,
    names: Names,
}

impl EventDecoder for OllamaReply {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let line: OllamaLine<'_> = parse(data)?;
        if line.error.is_some() {
            return Err(ProviderError::read(data)
                .map_or_else(|| broken("an error without words"), ProviderError::midway));
        }
        self.names.note(None, line.model);
        if let Some(message) = line.message {
            self.message(message, chunks);
        }
        if line.done {
            let stop = line
                .done_reason
                .map_or(StopReason::End, |reason| stop_reason(&reason.0));
            // `prompt_eval_count` is absent if the whole prompt was cached.
            let usage = usage(
                count(&line.prompt_eval_count, &[]),
                0,
                count(&line.eval_count, &[]),
            );
            self.end = Some(Finish::new(stop_of(stop, self.calls), usage));
        }
        Ok(())
    }

    fn end(&self) -> Option<Finish> {
        self.end.clone()
    }

    fn is_whole(&self) -> bool {
        self.end.is_some()
    }

    fn names(&self) -> Names {
        self.names.clone()
    }
}

impl OllamaReply {
    fn message(&mut self, message: OllamaMessage<'_>, chunks: &mut Vec<Chunk>) {
        if let Some(text) = message.thinking.filter(|text| !text.is_empty()) {
            chunks.push(Chunk::Thinking {
                part: self.parts.of(PartKind::Thinking),
                text,
            });
        }
        if let Some(text) = message.content.filter(|text| !text.is_empty()) {
            chunks.push(Chunk::Text {
                part: self.parts.of(PartKind::Text),
                text,
            });
        }
        for call in message.tool_calls.into_iter().flatten() {
            self.calls = true;
            let part = self.parts.begin(PartKind::Call);
            let json = call.function.arguments.map_or("{}", RawValue::get);
            chunks.push(Chunk::Call {
                part,
                id: call.id.unwrap_or_default(),
                name: call.function.name,
            });
            chunks.push(Chunk::Args {
                part,
                json: if json == "null" { "{}" } else { json }.to_owned(),
            });
        }
    }
}

fn stop_reason(word: &str) -> StopReason {
    if word == "length" {
        StopReason::Length
    } else {
        StopReason::End
    }
}

#[derive(Deserialize)]
struct OllamaLine<'a> {
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<OllamaMessage<'a>>,
    #[serde(default)]
    done: bool,
    #[serde(borrow, default)]
    done_reason: Option<BorrowedWord<'a>>,
    #[serde(default)]
    prompt_eval_count: Value,
    #[serde(default)]
    eval_count: Value,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct OllamaMessage<'a> {
    content: Option<String>,
    thinking: Option<String>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<OllamaCall<'a>>>,
}

#[derive(Deserialize)]
struct OllamaCall<'a> {
    id: Option<String>,
    #[serde(borrow)]
    function: OllamaFunction<'a>,
}

#[derive(Deserialize)]
struct OllamaFunction<'a> {
    name: String,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests;
