//! The code that the encoders of all providers share. It writes JSON into byte buffers and selects
//! the parts of a message that a model sees.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use planck_common::message::{Custom, MediaSource, MessageBody, MessageRole, Part};
use serde::Serialize;
use serde_json::{Map, Value};

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

#[cfg(test)]
mod tests;
