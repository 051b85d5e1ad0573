//! User messages in chat completions.

use std::borrow::Cow;

use planck_common::message::{MediaSource, Part};
use serde::Serialize;

use crate::encode::{
    NOTHING, cannot_show, data_url, file_text, is_blank, media_url, named_text, put,
};

/// A user message: either text alone, or a list of items. Some servers accept only text, so items
/// are used only for several parts or for a part that is not text.
#[derive(Debug, Clone)]
pub enum UserMessage {
    Text(String),
    /// The items as JSON, separated by commas and without the enclosing brackets.
    Items(Vec<u8>),
}

impl UserMessage {
    pub fn of(parts: &[Part], images: bool) -> Self {
        let shown: Vec<&Part> = parts.iter().filter(|part| !is_blank(part)).collect();
        match shown.as_slice() {
            [] => Self::Text(NOTHING.to_owned()),
            [Part::Text { text, .. }] => Self::Text(text.clone()),
            many => {
                let mut items = Vec::new();
                for item in many.iter().filter_map(|part| item(part, images)) {
                    put_item(&mut items, &item);
                }
                Self::Items(items)
            }
        }
    }

    pub fn joined(self, other: Self) -> Self {
        match (self, other) {
            (Self::Text(one), Self::Text(two)) => Self::Text(format!("{one}\n\n{two}")),
            (one, two) => Self::Items([one.items(), two.items()].join(&b',')),
        }
    }

    fn items(self) -> Vec<u8> {
        match self {
            Self::Items(items) => items,
            Self::Text(text) => {
                let mut items = Vec::new();
                put_item(&mut items, &UserItem::Text { text: text.into() });
                items
            }
        }
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => put(
                out,
                &TextMessage {
                    role: "user",
                    content: text,
                },
            ),
            Self::Items(items) => {
                out.extend_from_slice(br#"{"role":"user","content":["#);
                out.extend_from_slice(items);
                out.extend_from_slice(b"]}");
            }
        }
    }
}

fn put_item(items: &mut Vec<u8>, item: &UserItem<'_>) {
    if !items.is_empty() {
        items.push(b',');
    }
    put(items, item);
}

/// A message whose content is a plain string.
#[derive(Serialize)]
struct TextMessage<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum UserItem<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: Url<'a> },
    File { file: FileData<'a> },
}

#[derive(Serialize)]
struct Url<'a> {
    url: Cow<'a, str>,
}

#[derive(Serialize)]
struct FileData<'a> {
    filename: &'a str,
    file_data: String,
}

fn item(part: &Part, images: bool) -> Option<UserItem<'_>> {
    match part {
        Part::Text { text, .. } => Some(UserItem::Text { text: text.into() }),
        Part::Image { mime, source } if images => Some(UserItem::ImageUrl {
            image_url: Url {
                url: media_url(mime, source),
            },
        }),
        Part::Image { mime, source } => Some(UserItem::Text {
            text: cannot_show("image", None, mime, source).into(),
        }),
        Part::File { mime, name, source } => Some(file(mime, name.as_deref(), source)),
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => None,
    }
}

fn file<'a>(mime: &'a str, name: Option<&'a str>, source: &'a MediaSource) -> UserItem<'a> {
    if let Some(text) = file_text(mime, source) {
        return UserItem::Text {
            text: named_text(name, &text).into(),
        };
    }
    match source {
        MediaSource::Data(data) if mime == "application/pdf" => UserItem::File {
            file: FileData {
                filename: name.unwrap_or("file.pdf"),
                file_data: data_url(mime, data),
            },
        },
        MediaSource::Data(_) | MediaSource::Url(_) => UserItem::Text {
            text: cannot_show("file", name, mime, source).into(),
        },
    }
}
