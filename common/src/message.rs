//! Messages, which are the input and output of a model. Their parts keep the order and the wording
//! of the provider.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{AgentId, CallId, InputId, Seq, Timestamp};

/// A saved message. Its id is its place in the session's log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Message {
    pub id: Seq,
    pub agent_id: AgentId,
    pub at: Timestamp,
    pub role: MessageRole,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom: Option<Custom>,
    pub content: Vec<Part>,
    #[serde(default, skip_serializing_if = "MessageMetadata::is_empty")]
    pub metadata: MessageMetadata,
}

impl Message {
    /// Returns whether the runtime wrote a message that the model reads as the user's, for example to
    /// demand an answer in a shape.
    pub fn is_from_runtime(&self) -> bool {
        self.role == MessageRole::User && self.metadata.inputs.is_empty()
    }
}

/// A message as it is stored. The other fields of [`Message`] are added when the message is read or
/// published.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MessageBody {
    pub role: MessageRole,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom: Option<Custom>,
    pub content: Vec<Part>,
    #[serde(default, skip_serializing_if = "MessageMetadata::is_empty")]
    pub metadata: MessageMetadata,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", schemars(rename = "Role"))]
pub enum MessageRole {
    User,
    Assistant,
    ToolResult,
    Custom,
}

/// The kind of a custom message. `summary` and `agent_message` reach the model as user messages;
/// the others do not reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Custom {
    Summary,
    AgentMessage,
    #[serde(untagged)]
    Other(String),
}

/// What is known of a message besides its content. Fields that do not apply are absent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[cfg_attr(feature = "schema", schemars(rename = "Metadata"))]
pub struct MessageMetadata {
    /// Whether the reply was cut off by an abort or a failure. The content is what had arrived.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// The inputs from which this message was made. The runtime wrote a message of the role `user`
    /// that has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputId>,
    /// For an agent's message: the agent that sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Sender>,
    /// For a prompt: the name of the person or program that sent it, as the prompt says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// For an assistant's message: why the model stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReason>,
    /// For a summary: the id of the last message that it replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub covers: Option<Seq>,
    /// For a summary: the number of characters to which the model's view shortens the tool results
    /// between `covers` and the summary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_results: Option<usize>,
}

impl MessageMetadata {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The agent that sent a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sender {
    pub id: AgentId,
    pub name: String,
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model had finished.
    End,
    ToolUse,
    /// The output limit cut the answer off.
    Length,
    /// The provider withheld the rest.
    Refusal,
}

/// One part of a message's content.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(!try_from))]
#[serde(tag = "type", rename_all = "snake_case", try_from = "part::Flat")]
pub enum Part {
    Text {
        text: String,
        /// The provider's opaque token for this part, if the provider wants it back.
        #[serde(skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    Thinking {
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
        /// Whether the provider withheld the text. Then `signature` is its ciphertext.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        redacted: bool,
    },
    ToolCall {
        /// The provider's own id, made unique within the message.
        id: String,
        call_id: CallId,
        name: String,
        /// A JSON object, byte for byte as the model wrote it.
        #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
        args: Box<RawValue>,
        /// The text that the model sent instead of a JSON object. Then `args` is `{}`.
        #[serde(skip_serializing_if = "Option::is_none")]
        invalid: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    ToolResult {
        id: String,
        call_id: CallId,
        text: String,
        error: bool,
    },
    Image {
        mime: String,
        #[serde(flatten)]
        source: MediaSource,
    },
    File {
        mime: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        #[serde(flatten)]
        source: MediaSource,
    },
}

/// The bytes of an image or a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", schemars(rename = "Source"))]
pub enum MediaSource {
    /// The bytes as Base64.
    Data(String),
    Url(String),
}

impl Part {
    /// Returns a plain text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text {
            text: text.into(),
            signature: None,
        }
    }
}

impl MediaSource {
    /// Returns what is wrong with the bytes of an image or a file, or `None` if they are Base64. A
    /// provider refuses every request with a message whose bytes are not.
    pub fn fault(&self) -> Option<&'static str> {
        match self {
            Self::Data(data) if !is_base64(data) => {
                Some("the data of an image or a file must be Base64 with padding, and not empty")
            }
            Self::Data(_) | Self::Url(_) => None,
        }
    }
}

/// Returns whether a text is Base64 of at least one byte, with the standard alphabet and padding.
fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    text.len().is_multiple_of(4)
        && !digits.is_empty()
        && text.len() - digits.len() <= 2
        && digits.bytes().all(is_digit)
}

/// Returns the text parts of a message's content, joined without a separator.
pub fn text_of(content: &[Part]) -> String {
    let texts = content.iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        Part::Thinking { .. }
        | Part::ToolCall { .. }
        | Part::ToolResult { .. }
        | Part::Image { .. }
        | Part::File { .. } => None,
    });
    texts.collect()
}

/// Reads a part through a flat struct. For a tagged enum serde buffers the content, and a
/// [`RawValue`] cannot be read from that buffer.
mod part {
    use super::{MediaSource, Part};
    use crate::CallId;
    use serde::Deserialize;
    use serde_json::value::RawValue;

    #[derive(Deserialize)]
    pub(super) struct Flat {
        r#type: String,
        text: Option<String>,
        signature: Option<String>,
        #[serde(default)]
        redacted: bool,
        id: Option<String>,
        call_id: Option<CallId>,
        name: Option<String>,
        args: Option<Box<RawValue>>,
        invalid: Option<String>,
        #[serde(default)]
        error: bool,
        mime: Option<String>,
        data: Option<String>,
        url: Option<String>,
    }

    fn need<T>(field: Option<T>, kind: &str, name: &str) -> Result<T, String> {
        field.ok_or_else(|| format!("a part of type `{kind}` needs `{name}`"))
    }

    impl TryFrom<Flat> for Part {
        type Error = String;

        fn try_from(flat: Flat) -> Result<Self, String> {
            let kind = flat.r#type.as_str();
            let source = || match (flat.data.clone(), flat.url.clone()) {
                (Some(data), None) => Ok(MediaSource::Data(data)),
                (None, Some(url)) => Ok(MediaSource::Url(url)),
                (Some(_), Some(_)) | (None, None) => Err(format!(
                    "a part of type `{kind}` needs one of `data` and `url`"
                )),
            };
            Ok(match kind {
                "text" => Self::Text {
                    text: need(flat.text, kind, "text")?,
                    signature: flat.signature,
                },
                "thinking" => Self::Thinking {
                    text: need(flat.text, kind, "text")?,
                    signature: flat.signature,
                    redacted: flat.redacted,
                },
                "tool_call" => Self::ToolCall {
                    id: need(flat.id, kind, "id")?,
                    call_id: need(flat.call_id, kind, "call_id")?,
                    name: need(flat.name, kind, "name")?,
                    args: need(flat.args, kind, "args")?,
                    invalid: flat.invalid,
                    signature: flat.signature,
                },
                "tool_result" => Self::ToolResult {
                    id: need(flat.id, kind, "id")?,
                    call_id: need(flat.call_id, kind, "call_id")?,
                    text: need(flat.text, kind, "text")?,
                    error: flat.error,
                },
                "image" => Self::Image {
                    mime: need(flat.mime.clone(), kind, "mime")?,
                    source: source()?,
                },
                "file" => Self::File {
                    mime: need(flat.mime.clone(), kind, "mime")?,
                    name: flat.name.clone(),
                    source: source()?,
                },
                other => {
                    return Err(format!(
                        "unknown part type `{other}`; known are text, thinking, tool_call, tool_result, image, file"
                    ));
                }
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_keeps_the_bytes_of_the_model() {
        let text = r#"{"type":"tool_call","id":"x","call_id":"c","name":"read","args":{"b": 1.0,"a":12345678901234567890}}"#;
        let part: Part = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&part).unwrap(), text);
    }

    #[test]
    fn parts_round_trip() {
        for text in [
            r#"{"type":"text","text":"a"}"#,
            r#"{"type":"thinking","text":"a","signature":"s"}"#,
            r#"{"type":"tool_result","id":"x","call_id":"c","text":"t","error":true}"#,
            r#"{"type":"image","mime":"image/png","data":"AA=="}"#,
            r#"{"type":"file","mime":"text/plain","name":"n","url":"https://x"}"#,
        ] {
            let part: Part = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&part).unwrap(), text);
        }
    }

    #[test]
    fn error_about_a_part_names_the_fault() {
        let error =
            serde_json::from_str::<Part>(r#"{"type":"image","mime":"image/png"}"#).unwrap_err();
        assert!(
            error.to_string().contains("needs one of `data` and `url`"),
            "{error}"
        );
    }

    #[test]
    fn data_that_is_not_base64_is_a_fault() {
        let fault = |data: &str| MediaSource::Data(data.into()).fault();
        for data in ["AA==", "AAA=", "AAAA", "+/+/AA=="] {
            assert_eq!(fault(data), None, "{data}");
        }
        for data in [
            "", "====", "A===", "AA", "AAAAA", "%%%%", "AA-_", "A=AA", " AAA", "AAA\n",
        ] {
            assert!(fault(data).is_some(), "{data:?}");
        }
        assert_eq!(MediaSource::Url("https://x".into()).fault(), None);
    }

    #[test]
    fn custom_kinds() {
        let other: Custom = serde_json::from_str(r#""note""#).unwrap();
        assert_eq!(other, Custom::Other("note".into()));
        assert_eq!(
            serde_json::to_string(&Custom::AgentMessage).unwrap(),
            r#""agent_message""#
        );
    }
}
