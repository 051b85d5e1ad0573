//! The content blocks of a message.

use std::borrow::Cow;

use planck_common::message::{MediaSource, Part};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    call_ids::CallIds,
    encode::{cannot_show, file_text, is_blank, legal_name, named_text},
    seal,
};

/// A content block. Every block is serialised as an object, so a cache mark can be inserted before
/// the closing `}`.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock<'a> {
    Text {
        text: Cow<'a, str>,
    },
    Thinking {
        thinking: &'a str,
        /// The signature. It is empty if the server, which need not be Anthropic's, sent none.
        signature: &'a str,
    },
    RedactedThinking {
        data: &'a str,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        input: &'a RawValue,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        content: &'a str,
        is_error: bool,
    },
    Image {
        source: ContentSource<'a>,
    },
    Document {
        source: ContentSource<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<&'a str>,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentSource<'a> {
    Base64 { media_type: &'a str, data: &'a str },
    Url { url: &'a str },
}

impl ContentBlock<'_> {
    pub fn is_thinking(&self) -> bool {
        matches!(self, Self::Thinking { .. } | Self::RedactedThinking { .. })
    }
}

pub fn block<'a>(
    part: &'a Part,
    images: bool,
    label: &str,
    ids: &mut CallIds,
) -> Option<ContentBlock<'a>> {
    match part {
        Part::Text { .. } if is_blank(part) => None,
        Part::Text { text, .. } => Some(ContentBlock::Text { text: text.into() }),
        Part::Thinking {
            text,
            signature,
            redacted,
        } => {
            let signature = seal::open(label, signature.as_deref()?)?;
            Some(if *redacted {
                ContentBlock::RedactedThinking { data: signature }
            } else {
                ContentBlock::Thinking {
                    thinking: text,
                    signature,
                }
            })
        }
        Part::ToolCall {
            id,
            call_id,
            name,
            args,
            ..
        } => Some(ContentBlock::ToolUse {
            id: ids.of_call(id, call_id),
            name: legal_name(name),
            input: args,
        }),
        Part::ToolResult {
            id,
            call_id,
            text,
            error,
        } => {
            let tool_use_id = ids.of_result(id, call_id).to_owned().into();
            Some(ContentBlock::ToolResult {
                tool_use_id,
                content: text,
                is_error: *error,
            })
        }
        Part::Image { mime, source } if images => Some(ContentBlock::Image {
            source: origin(mime, source),
        }),
        Part::Image { mime, source } => Some(ContentBlock::Text {
            text: cannot_show("image", None, mime, source).into(),
        }),
        Part::File { mime, name, source } => Some(file(mime, name.as_deref(), source)),
    }
}

fn file<'a>(mime: &'a str, name: Option<&'a str>, source: &'a MediaSource) -> ContentBlock<'a> {
    if mime == "application/pdf" {
        return ContentBlock::Document {
            source: origin(mime, source),
            title: name,
        };
    }
    let text = file_text(mime, source).map(|text| named_text(name, &text));
    ContentBlock::Text {
        text: text
            .unwrap_or_else(|| cannot_show("file", name, mime, source))
            .into(),
    }
}

fn origin<'a>(mime: &'a str, source: &'a MediaSource) -> ContentSource<'a> {
    match source {
        MediaSource::Data(data) => ContentSource::Base64 {
            media_type: mime,
            data,
        },
        MediaSource::Url(url) => ContentSource::Url { url },
    }
}
