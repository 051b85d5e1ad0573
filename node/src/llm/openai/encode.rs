//! A conversation as chat completions take it.

use bytes::Bytes;
use planck_common::message::{Body, Part, Source};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Dialect;
use crate::llm::{
    Encoder, Head,
    catalogue::{Entry, Thinking},
    encode::{NOTHING, Side, cannot_show, data_url, file_text, is_blank, named_text, put, put_open, result_text, side_of},
    function::Tool,
    opts::{Opts, set},
};

#[derive(Debug)]
pub struct Messages {
    /// Up to and with `"messages":[` and the system prompt.
    prefix: Vec<u8>,
    /// The messages, each with a comma before it but for a first one.
    messages: Vec<u8>,
    comma: bool,
    images: bool,
    /// Whether the model is shown its own thinking; a template of llama.cpp may want it, OpenAI refuses it.
    shows_thinking: bool,
}

impl Messages {
    pub fn new(head: Head, entry: &Entry, dialect: Dialect) -> Self {
        let comma = !head.system_prompt.trim().is_empty();
        let shows_thinking = dialect == Dialect::LlamaCpp;
        Self { prefix: prefix(head, entry, dialect), messages: Vec::new(), comma, images: entry.images, shows_thinking }
    }

    fn put(&mut self, message: &Message<'_>) {
        if self.comma {
            self.messages.push(b',');
        }
        self.comma = true;
        put(&mut self.messages, message);
    }

    fn push_assistant(&mut self, parts: &[Part]) {
        let content = text(parts);
        let tool_calls: Vec<Call<'_>> = parts.iter().filter_map(call).collect();
        if content.is_empty() && tool_calls.is_empty() {
            return;
        }
        let reasoning_content = if self.shows_thinking { thinking(parts) } else { String::new() };
        self.put(&Message::Assistant { content: (!content.is_empty()).then_some(content), reasoning_content, tool_calls });
    }

    fn push_results(&mut self, parts: &[Part]) {
        for part in parts {
            if let Part::ToolResult { id, text, error, .. } = part {
                self.put(&Message::Tool { tool_call_id: id, content: &result_text(text, *error) });
            }
        }
    }
}

impl Encoder for Messages {
    fn push(&mut self, message: &Body) {
        match side_of(message) {
            Some(Side::User) => self.put(&Message::User { content: content(&message.content, self.images) }),
            Some(Side::Assistant) => self.push_assistant(&message.content),
            Some(Side::Results) => self.push_results(&message.content),
            None => {}
        }
    }

    fn request(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.prefix.len() + self.messages.len() + 2);
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(&self.messages);
        out.extend_from_slice(b"]}");
        Bytes::from(out)
    }
}

fn prefix(head: Head, entry: &Entry, dialect: Dialect) -> Vec<u8> {
    let mut out = Vec::new();
    put_open(&mut out, &settings(head.model, Opts::read(head.opts), entry, dialect));
    if !head.tools.is_empty() {
        out.extend_from_slice(br#","tools":"#);
        put(&mut out, &head.tools.iter().map(Tool::from).collect::<Vec<_>>());
    }
    out.extend_from_slice(br#","messages":["#);
    if !head.system_prompt.trim().is_empty() {
        put(&mut out, &Message::System { content: &head.system_prompt });
    }
    out
}

fn settings(model: String, opts: Opts, entry: &Entry, dialect: Dialect) -> Map<String, Value> {
    let mut members = opts.rest;
    if let Some(budget) = opts.thinking_budget {
        ask_to_think(&mut members, budget, entry, dialect);
    }
    let limit = if has_new_limit(&model, dialect) { "max_completion_tokens" } else { "max_tokens" };
    set(&mut members, limit, opts.max_output_tokens);
    if !matches!(entry.thinking, Thinking::Adaptive | Thinking::Bound) {
        set(&mut members, "temperature", opts.temperature);
        set(&mut members, "top_p", opts.top_p);
    } else if opts.temperature.is_some() || opts.top_p.is_some() {
        tracing::warn!(%model, "temperature and top_p cannot be set for a model that thinks; left out");
    }
    set(&mut members, "stop", (!opts.stop.is_empty()).then_some(opts.stop));
    members.insert("model".into(), model.into());
    members.insert("stream".into(), true.into());
    members.insert("stream_options".into(), json!({"include_usage": true}));
    members
}

/// OpenAI's own models know `max_completion_tokens` (the reasoning ones nothing else); other servers often know only `max_tokens`.
fn has_new_limit(model: &str, dialect: Dialect) -> bool {
    let name = model.strip_prefix("openai/").unwrap_or(model);
    let reasoning = name.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let own = reasoning || (name.starts_with("gpt-") && !name.starts_with("gpt-oss")) || name.starts_with("chatgpt-");
    own && dialect == Dialect::OpenAi
}

fn ask_to_think(members: &mut Map<String, Value>, budget: u64, entry: &Entry, dialect: Dialect) {
    match dialect {
        Dialect::LlamaCpp => {
            members.entry("chat_template_kwargs").or_insert(json!({"enable_thinking": budget > 0}));
        }
        Dialect::OpenAi if entry.thinking == Thinking::None => {}
        Dialect::OpenAi => {
            members.entry("reasoning_effort").or_insert(effort(budget).into());
        }
    }
}

/// Chat completions take a word instead of a number of tokens.
fn effort(budget: u64) -> &'static str {
    match budget {
        0..=2_048 => "low",
        2_049..=8_192 => "medium",
        8_193.. => "high",
    }
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Message<'a> {
    System {
        content: &'a str,
    },
    User {
        content: Content<'a>,
    },
    Assistant {
        /// Null beside calls: an empty text is refused by some servers.
        content: Option<String>,
        #[serde(skip_serializing_if = "String::is_empty")]
        reasoning_content: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(&'a str),
    Items(Vec<Item<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Text { text: std::borrow::Cow<'a, str> },
    ImageUrl { image_url: Url<'a> },
    File { file: FileData<'a> },
}

#[derive(Serialize)]
struct Url<'a> {
    url: std::borrow::Cow<'a, str>,
}

#[derive(Serialize)]
struct FileData<'a> {
    filename: &'a str,
    file_data: String,
}

#[derive(Serialize)]
struct Call<'a> {
    id: &'a str,
    r#type: &'static str,
    function: Called<'a>,
}

#[derive(Serialize)]
struct Called<'a> {
    name: &'a str,
    /// JSON as text.
    arguments: &'a str,
}

fn content(parts: &[Part], images: bool) -> Content<'_> {
    let shown: Vec<&Part> = parts.iter().filter(|part| !is_blank(part)).collect();
    match shown.as_slice() {
        [] => Content::Text(NOTHING),
        [Part::Text { text, .. }] => Content::Text(text),
        many => Content::Items(many.iter().filter_map(|part| item(part, images)).collect()),
    }
}

fn item(part: &Part, images: bool) -> Option<Item<'_>> {
    match part {
        Part::Text { text, .. } => Some(Item::Text { text: text.into() }),
        Part::Image { mime, source } if images => Some(Item::ImageUrl { image_url: Url { url: url(mime, source) } }),
        Part::Image { mime, source } => Some(Item::Text { text: cannot_show("image", None, mime, source).into() }),
        Part::File { mime, name, source } => Some(file(mime, name.as_deref(), source)),
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => None,
    }
}

fn url<'a>(mime: &str, source: &'a Source) -> std::borrow::Cow<'a, str> {
    match source {
        Source::Url(url) => url.into(),
        Source::Data(data) => data_url(mime, data).into(),
    }
}

fn file<'a>(mime: &'a str, name: Option<&'a str>, source: &'a Source) -> Item<'a> {
    if let Some(text) = file_text(mime, source) {
        return Item::Text { text: named_text(name, &text).into() };
    }
    match source {
        Source::Data(data) if mime == "application/pdf" => {
            Item::File { file: FileData { filename: name.unwrap_or("file.pdf"), file_data: data_url(mime, data) } }
        }
        Source::Data(_) | Source::Url(_) => Item::Text { text: cannot_show("file", name, mime, source).into() },
    }
}

fn call(part: &Part) -> Option<Call<'_>> {
    let Part::ToolCall { id, name, args, .. } = part else { return None };
    Some(Call { id, r#type: "function", function: Called { name, arguments: args.get() } })
}

fn text(parts: &[Part]) -> String {
    planck_common::message::text_of(parts)
}

fn thinking(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Thinking { text, .. } => Some(text.as_str()),
        Part::Text { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } | Part::Image { .. } | Part::File { .. } => None,
    });
    texts.collect()
}
