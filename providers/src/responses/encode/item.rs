//! The input items and the tools of a request.

use std::borrow::Cow;

use planck_common::message::{MediaSource, Part};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    call_ids::CallIds,
    encode::{cannot_show, data_url, file_text, is_blank, legal_name, media_url, named_text},
    responses::{
        sealed::{self, opened},
        strict,
    },
};
use planck_agent::model::ToolSpec;

#[derive(Serialize)]
pub struct ResponsesTool<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: Cow<'a, RawValue>,
    strict: bool,
}

impl<'a> From<&'a ToolSpec> for ResponsesTool<'a> {
    fn from(tool: &'a ToolSpec) -> Self {
        let (parameters, strict) = strict::parameters(&tool.parameters);
        Self {
            r#type: "function",
            name: &tool.name,
            description: &tool.description,
            parameters,
            strict,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponsesItem<'a> {
    Message {
        role: &'static str,
        content: MessageText<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        phase: Option<String>,
    },
    Reasoning {
        id: String,
        summary: Vec<ReasoningText<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<ReasoningText<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
    FunctionCall {
        call_id: Cow<'a, str>,
        name: Cow<'a, str>,
        arguments: &'a str,
    },
    FunctionCallOutput {
        call_id: String,
        output: Cow<'a, str>,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ReasoningText<'a> {
    SummaryText { text: &'a str },
    ReasoningText { text: &'a str },
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub enum ResponsesContent<'a> {
    #[serde(rename = "input_text")]
    Text { text: Cow<'a, str> },
    #[serde(rename = "input_image")]
    Image {
        image_url: Cow<'a, str>,
        detail: &'static str,
    },
    #[serde(rename = "input_file")]
    File {
        #[serde(flatten)]
        file: ResponsesFile<'a>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
pub enum ResponsesFile<'a> {
    Data {
        filename: &'a str,
        file_data: String,
    },
    Url {
        file_url: &'a str,
    },
}

/// The content of a message: items for the user, and plain text for the assistant. For items of the
/// assistant, the API would require their ids, which exist only if the server stores them.
#[derive(Serialize)]
#[serde(untagged)]
pub enum MessageText<'a> {
    Text(&'a str),
    Items(Vec<ResponsesContent<'a>>),
}

impl ResponsesItem<'_> {
    pub fn is_reasoning(&self) -> bool {
        matches!(self, Self::Reasoning { .. })
    }
}

/// Encodes a part of an assistant message.
pub fn encode_assistant_part<'a>(
    part: &'a Part,
    ids: &mut CallIds,
    label: &str,
    reasons: bool,
) -> Option<ResponsesItem<'a>> {
    match part {
        Part::Text { .. } if is_blank(part) => None,
        Part::Text { text, signature } => {
            let phase = opened::<sealed::MessagePhase>(label, signature.as_deref())
                .map(|spoken| spoken.phase);
            Some(ResponsesItem::Message {
                role: "assistant",
                content: MessageText::Text(text),
                phase,
            })
        }
        Part::Thinking {
            text, signature, ..
        } if reasons => {
            let sealed::SealedReasoning {
                id,
                encrypted_content,
            } = opened(label, signature.as_deref())?;
            let thought = Some(text.as_str()).filter(|text| !text.trim().is_empty());
            let (summary, content) = match &encrypted_content {
                Some(_) => (
                    thought.map(|text| ReasoningText::SummaryText { text }),
                    None,
                ),
                None => (None, Some(ReasoningText::ReasoningText { text: thought? })),
            };
            let (summary, content) = (summary.into_iter().collect(), content.into_iter().collect());
            Some(ResponsesItem::Reasoning {
                id,
                summary,
                content,
                encrypted_content,
            })
        }
        Part::ToolCall {
            id,
            call_id,
            name,
            args,
            ..
        } => Some(ResponsesItem::FunctionCall {
            call_id: ids.of_call(id, call_id),
            name: legal_name(name),
            arguments: args.get(),
        }),
        Part::Thinking { .. }
        | Part::ToolResult { .. }
        | Part::Image { .. }
        | Part::File { .. } => None,
    }
}

/// Encodes a part of a user message.
pub fn encode_user_part(part: &Part, images: bool) -> Option<ResponsesContent<'_>> {
    match part {
        Part::Text { text, .. } => Some(ResponsesContent::Text { text: text.into() }),
        Part::Image { mime, source } if images => Some(ResponsesContent::Image {
            image_url: media_url(mime, source),
            detail: "auto",
        }),
        Part::Image { mime, source } => Some(ResponsesContent::Text {
            text: cannot_show("image", None, mime, source).into(),
        }),
        Part::File { mime, name, source } => Some(file(mime, name.as_deref(), source)),
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => None,
    }
}

fn file<'a>(mime: &'a str, name: Option<&'a str>, source: &'a MediaSource) -> ResponsesContent<'a> {
    if let Some(text) = file_text(mime, source) {
        return ResponsesContent::Text {
            text: named_text(name, &text).into(),
        };
    }
    match source {
        MediaSource::Data(data) if mime == "application/pdf" => {
            let file_data = data_url(mime, data);
            ResponsesContent::File {
                file: ResponsesFile::Data {
                    filename: name.unwrap_or("file.pdf"),
                    file_data,
                },
            }
        }
        MediaSource::Url(file_url) if mime == "application/pdf" => ResponsesContent::File {
            file: ResponsesFile::Url { file_url },
        },
        MediaSource::Data(_) | MediaSource::Url(_) => ResponsesContent::Text {
            text: cannot_show("file", name, mime, source).into(),
        },
    }
}
