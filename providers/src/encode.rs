//! The code that the encoders of all providers share. It reads the options of a member, writes JSON
//! into byte buffers and selects the parts of a message that a model sees.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};

use planck_agent::model::ToolSpec;
use planck_common::message::{Custom, MediaSource, MessageBody, MessageRole, Part};

/// Writes a value as JSON. Serialising Planck's own types into memory fails only because of a bug.
/// After such a failure, `null` is written, so that the surrounding JSON stays valid.
pub fn put<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let start = out.len();
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        out.truncate(start);
        out.extend_from_slice(b"null");
        tracing::error!(%error, "a part of a request could not be serialised");
    }
}

/// Writes an object without its closing brace. The caller appends more members after a comma.
pub fn put_open(out: &mut Vec<u8>, members: &Map<String, Value>) {
    put(out, members);
    out.pop();
}

/// Begins a request with its settings and its tools, if there are any, up to the list of its messages.
pub fn open_messages(settings: &Map<String, Value>, tools: &[ToolSpec]) -> Vec<u8> {
    let mut out = Vec::new();
    put_open(&mut out, settings);
    if !tools.is_empty() {
        out.extend_from_slice(br#","tools":"#);
        put(
            &mut out,
            &tools.iter().map(EncodedFunction::from).collect::<Vec<_>>(),
        );
    }
    out.extend_from_slice(br#","messages":["#);
    out
}

/// Adds a member to the object that ends the buffer.
pub fn add_member<T: Serialize + ?Sized>(out: &mut Vec<u8>, name: &str, value: &T) {
    out.pop();
    out.push(b',');
    put(out, name);
    out.push(b':');
    put(out, value);
    out.push(b'}');
}

/// The role of a message in a provider's conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    User,
    Assistant,
    Results,
}

/// Returns the role of a message, or `None` if the message is not sent to the model.
pub fn side_of(message: &MessageBody) -> Option<Speaker> {
    match message.role {
        MessageRole::User => Some(Speaker::User),
        MessageRole::Assistant => Some(Speaker::Assistant),
        MessageRole::ToolResult => Some(Speaker::Results),
        MessageRole::Custom => match message.custom {
            Some(Custom::Summary | Custom::AgentMessage) => Some(Speaker::User),
            Some(Custom::Other(_)) | None => None,
        },
    }
}

/// The text that replaces a user message without visible content. Providers refuse an empty
/// message, and leaving it out would break the alternation of roles.
pub const NOTHING: &str = "(empty message)";

/// Returns the text of a tool result for a provider that has no flag for errors. The text of an
/// error begins with `error`.
pub fn result_text(text: &str, error: bool) -> std::borrow::Cow<'_, str> {
    let says_so = text
        .get(..5)
        .is_some_and(|start| start.eq_ignore_ascii_case("error"));
    if error && !says_so {
        format!("error: {text}").into()
    } else {
        text.into()
    }
}

/// Returns the text of an attached file, or `None` if the file is given by its URL or is not a text
/// file in UTF-8.
pub fn file_text(mime: &str, source: &MediaSource) -> Option<String> {
    let MediaSource::Data(data) = source else {
        return None;
    };
    let textual = mime.starts_with("text/")
        || ["application/json", "application/xml", "application/toml"].contains(&mime);
    if !textual {
        return None;
    }
    String::from_utf8(STANDARD.decode(data).ok()?).ok()
}

/// Returns the text of a file, with its name, as it stands in a prompt.
pub fn named_text(name: Option<&str>, text: &str) -> String {
    name.map_or_else(|| text.to_owned(), |name| format!("File {name}:\n{text}"))
}

/// Returns the text that replaces an attachment of a kind that the provider does not support.
pub fn cannot_show(what: &str, name: Option<&str>, mime: &str, source: &MediaSource) -> String {
    let place = match source {
        MediaSource::Url(url) => format!(" at {url}"),
        MediaSource::Data(_) => String::new(),
    };
    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
    format!("[{what}{name} ({mime}){place}: this model cannot be shown it]")
}

/// Returns the URL of an image or a file. Inline data becomes a `data:` URL.
pub fn media_url<'a>(mime: &str, source: &'a MediaSource) -> Cow<'a, str> {
    match source {
        MediaSource::Url(url) => url.into(),
        MediaSource::Data(data) => data_url(mime, data).into(),
    }
}

/// Returns a `data:` URL for Base64 data.
pub fn data_url(mime: &str, data: &str) -> String {
    format!("data:{mime};base64,{data}")
}

/// The maximum length in bytes of a function name that every provider accepts.
const LONGEST_NAME: usize = 64;

/// Returns the name of a call in a form that every provider accepts. A model may have called a tool
/// that does not exist. The provider must not refuse the next request because of that name.
pub fn legal_name(name: &str) -> std::borrow::Cow<'_, str> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(is_legal) {
        return name.into();
    }
    let made: String = name
        .chars()
        .take(LONGEST_NAME)
        .map(|c| if is_legal(c) { c } else { '_' })
        .collect();
    if made.is_empty() {
        "_".into()
    } else {
        made.into()
    }
}

/// Returns whether a part is text that is empty or consists of white space.
pub fn is_blank(part: &Part) -> bool {
    matches!(part, Part::Text { text, .. } if text.trim().is_empty())
}

// Encodes a tool in the format of chat completions, which Ollama uses too: a function with a
// schema.

#[derive(Serialize)]
struct EncodedFunction<'a> {
    r#type: &'static str,
    function: FunctionSpec<'a>,
}

#[derive(Serialize)]
struct FunctionSpec<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

impl<'a> From<&'a ToolSpec> for EncodedFunction<'a> {
    fn from(tool: &'a ToolSpec) -> Self {
        let function = FunctionSpec {
            name: &tool.name,
            description: &tool.description,
            parameters: &tool.parameters,
        };
        Self {
            r#type: "function",
            function,
        }
    }
}

// Reads the model options (`opts`) of a member. Options that several providers share become typed
// fields. The encoders add all other options to the request.

/// The sampling options and limits of a member's requests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Opts {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub max_output_tokens: Option<u64>,
    pub thinking_budget: Option<u64>,
    pub stop: Vec<String>,
    /// How long the provider caches the prompt. Only the encoder of Anthropic's wire format uses
    /// this option.
    pub cache: Cache,
    /// All other options. The encoder of each wire format adds them to the request.
    pub rest: Map<String, Value>,
}

/// How long the provider caches a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cache {
    #[default]
    FiveMinutes,
    OneHour,
    Off,
}

/// The fields of a request that a member's options may not set, because Planck sets them.
const OURS: &[&str] = &[
    "model",
    "messages",
    "contents",
    "input",
    "system",
    "systemInstruction",
    "instructions",
    "tools",
    "stream",
    "stream_options",
    "store",
    "include",
    "conversation",
    "previous_response_id",
];

impl Opts {
    /// Reads the known options. An option that is listed in [`OURS`], or that must be a number and
    /// is none, is dropped with a warning.
    pub fn read(mut opts: Map<String, Value>) -> Self {
        let mut take = |name: &str| opts.remove(name).filter(|value| !value.is_null());
        let read = Self {
            temperature: number(take("temperature"), "temperature", Value::as_f64),
            top_p: number(take("top_p"), "top_p", Value::as_f64),
            max_output_tokens: number(
                take("max_output_tokens"),
                "max_output_tokens",
                Value::as_u64,
            ),
            thinking_budget: number(take("thinking_budget"), "thinking_budget", Value::as_u64),
            stop: take("stop").map(strings).unwrap_or_default(),
            cache: take("cache").map(cache).unwrap_or_default(),
            rest: Map::new(),
        };
        opts.retain(|name, _| {
            let kept = !OURS.contains(&name.as_str());
            if !kept {
                tracing::warn!(
                    opt = name,
                    "left out an option of an agent: it would overwrite the request"
                );
            }
            kept
        });
        Self { rest: opts, ..read }
    }
}

fn number<T>(value: Option<Value>, name: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
    let value = value?;
    let number = read(&value);
    if number.is_none() {
        tracing::warn!(opt = name, %value, "left out an option of an agent: its value is not a number in range");
    }
    number
}

fn cache(value: Value) -> Cache {
    match value.as_str() {
        Some("5m") => Cache::FiveMinutes,
        Some("1h") => Cache::OneHour,
        Some("off") => Cache::Off,
        Some(_) | None => {
            tracing::warn!(opt = "cache", %value, "an option of an agent must be 5m, 1h or off; using 5m");
            Cache::FiveMinutes
        }
    }
}

fn strings(value: Value) -> Vec<String> {
    match value {
        Value::String(one) => vec![one],
        Value::Array(many) => many
            .into_iter()
            .filter_map(|item| item.as_str().map(str::to_owned))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

/// Sets a field of an object if there is a value.
pub fn set<T: Into<Value>>(object: &mut Map<String, Value>, name: &str, value: Option<T>) {
    if let Some(value) = value {
        object.insert(name.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests;
