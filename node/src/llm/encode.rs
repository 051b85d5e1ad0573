//! Shared by the encoders of all providers: writes JSON into bytes, and selects the parts of a
//! message that a model is shown.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use planck_common::message::{Body, Custom, Part, Role, Source};
use serde::Serialize;
use serde_json::{Map, Value};

/// Writes a value. Serialising our own types into memory cannot fail but for a bug, which must not
/// break the JSON around it.
pub fn put<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let start = out.len();
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        out.truncate(start);
        out.extend_from_slice(b"null");
        tracing::error!(%error, "a part of a request could not be serialised");
    }
}

/// Writes an object without its closing brace; more members may follow after a comma.
pub fn put_open(out: &mut Vec<u8>, members: &Map<String, Value>) {
    put(out, members);
    out.pop();
}

/// Who speaks, as providers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    User,
    Assistant,
    Results,
}

/// The side of a message; `None` if it does not reach the model.
pub fn side_of(message: &Body) -> Option<Side> {
    match message.role {
        Role::User => Some(Side::User),
        Role::Assistant => Some(Side::Assistant),
        Role::ToolResult => Some(Side::Results),
        Role::Custom => match message.custom {
            Some(Custom::Summary | Custom::AgentMessage) => Some(Side::User),
            Some(Custom::Other(_)) | None => None,
        },
    }
}

/// Replaces a message of the user that has nothing to show: providers refuse an empty one, and a
/// missing one breaks the order.
pub const NOTHING: &str = "(empty message)";

/// The text of a tool's result for a provider that has no flag for errors.
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

/// The text of a file that is text.
pub fn file_text(mime: &str, source: &Source) -> Option<String> {
    let Source::Data(data) = source else {
        return None;
    };
    let textual = mime.starts_with("text/")
        || ["application/json", "application/xml", "application/toml"].contains(&mime);
    if !textual {
        return None;
    }
    String::from_utf8(STANDARD.decode(data).ok()?).ok()
}

/// A file's text as a part of a prompt.
pub fn named_text(name: Option<&str>, text: &str) -> String {
    name.map_or_else(|| text.to_owned(), |name| format!("File {name}:\n{text}"))
}

/// Replaces something the provider cannot be shown.
pub fn cannot_show(what: &str, name: Option<&str>, mime: &str, source: &Source) -> String {
    let place = match source {
        Source::Url(url) => format!(" at {url}"),
        Source::Data(_) => String::new(),
    };
    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
    format!("[{what}{name} ({mime}){place}: this model cannot be shown it]")
}

/// A `data:` URL.
pub fn data_url(mime: &str, data: &str) -> String {
    format!("data:{mime};base64,{data}")
}

/// The longest name of a function that every provider takes.
const LONGEST_NAME: usize = 64;

/// The name of a call as every provider takes it. A model may have called what no tool is named;
/// its next request must not be refused for that.
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

/// Whether a part is text with nothing in it.
pub fn is_blank(part: &Part) -> bool {
    matches!(part, Part::Text { text, .. } if text.trim().is_empty())
}

#[cfg(test)]
mod tests;
