//! The request of a client, the same for both wires: the messages of the conversation, the headers,
//! and how the content of messages is read.

use axum::http::{HeaderMap, HeaderName};
use planck_common::{
    message::{MediaSource, Part},
    spec::{ClientTool, OutputSpec},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    error::OpenAiError,
    ids::{ResponseId, ToolCallId},
};
use crate::turn::Until;

/// A request, as far as it does not depend on the wire.
#[derive(Debug)]
pub struct Ask {
    pub model: String,
    /// The system messages, or the `instructions`.
    pub instructions: Option<String>,
    /// Whether the instructions are for this request, and not for the whole conversation.
    pub instructs_anew: bool,
    /// The turns that the client believes to have happened.
    pub history: Vec<Said>,
    pub latest: Latest,
    pub tools: Vec<ClientTool>,
    /// The shape of the answer.
    pub output: Option<OutputSpec>,
    pub target: ContinuedSession,
    pub until: Until,
    pub origin: Origin,
    /// Sentences about what had no effect.
    pub warnings: Vec<String>,
}

/// The claims of a client about itself and about the session.
#[derive(Debug, Default)]
pub struct Origin {
    /// The person at the client, and the client's own name for the conversation.
    pub user: String,
    pub workspace: Option<String>,
    pub dir: Option<String>,
    pub idempotency_key: Option<String>,
    /// Whether an SDK says that it sends the request again.
    pub is_retry: bool,
    /// The client's name of a task, for example a title for a conversation.
    pub task: Option<String>,
}

/// A turn of the history that a client sends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    pub user: String,
    pub assistant: String,
}

/// The part of the conversation that the request adds. If it has both, the turn of the results ends
/// before that of the prompt begins.
#[derive(Debug, Default)]
pub struct Latest {
    pub results: Vec<ClientToolResult>,
    pub prompt: Vec<Part>,
}

/// The result of a call of a client's tool.
#[derive(Debug)]
pub struct ClientToolResult {
    pub id: ToolCallId,
    pub text: String,
}

/// The session that the request continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContinuedSession {
    /// The session whose turns are the history, or a new one.
    History,
    /// The session after this response.
    Response(ResponseId),
    /// The session with this id or name. `may_start` is whether it is started if there is none.
    Session { name: String, may_start: bool },
}

/// The format of an answer: `response_format`, or the `format` of `text`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiFormat")]
pub struct Format {
    /// `text`, `json_object` or `json_schema`.
    r#type: String,
    /// The schema with its name, in chat completions.
    json_schema: Option<FormatSchema>,
    /// The same in responses.
    #[serde(flatten)]
    named: FormatSchema,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiFormatSchema")]
pub struct FormatSchema {
    name: Option<String>,
    schema: Option<Value>,
}

impl Format {
    /// Returns the shape of the answer. `param` is the parameter that has the format.
    pub fn shape(
        format: Option<Self>,
        param: &'static str,
    ) -> Result<Option<OutputSpec>, OpenAiError> {
        let Some(format) = format else {
            return Ok(None);
        };
        match format.r#type.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(OutputSpec {
                schema: json!({ "type": "object" }),
                name: None,
            })),
            "json_schema" => {
                let FormatSchema { name, schema } = format.json_schema.unwrap_or(format.named);
                let schema = schema.ok_or_else(|| {
                    OpenAiError::parameter(param, "a `json_schema` has a `schema`")
                })?;
                Ok(Some(OutputSpec { schema, name }))
            }
            other => Err(OpenAiError::parameter(
                param,
                format!(
                    "there is no format `{other}`; there are `text`, `json_object` and `json_schema`"
                ),
            )),
        }
    }
}

/// Reads the fields that both wires have.
pub fn origin(headers: &HeaderMap, metadata: &Map<String, Value>, user: &Option<String>) -> Origin {
    let header = |name: &str| headers.get(name)?.to_str().ok().map(str::to_owned);
    let text = |name: &str| metadata.get(name)?.as_str().map(str::to_owned);
    // Open WebUI sends these if it is set to.
    let known = ["x-openwebui-user-id", "x-openwebui-chat-id"].map(header);
    let names = known.into_iter().chain([user.clone()]).flatten();
    let retries = header("x-stainless-retry-count");
    Origin {
        user: names.collect::<Vec<_>>().join(" "),
        workspace: text("workspace"),
        dir: text("dir"),
        idempotency_key: header("idempotency-key"),
        is_retry: retries.is_some_and(|count| count.parse().is_ok_and(|count: u32| count > 0)),
        task: None,
    }
}

/// Returns the session that the header `x-planck-session` or the metadata name.
pub fn named_session(headers: &HeaderMap, metadata: &Map<String, Value>) -> Option<String> {
    let header = headers.get(super::SESSION);
    let header = header.and_then(|name| name.to_str().ok());
    let text = metadata.get("session").and_then(Value::as_str);
    header.or(text).map(str::to_owned)
}

/// Stands for an image in the text of a message.
const IMAGE: &str = "[image]";
/// Stands for a file in the text of a message.
const FILE: &str = "[file]";

/// The content of a message: a text, or parts.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiContent")]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a message, in the forms of both wires.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiContentPart")]
pub struct ContentPart {
    #[serde(default)]
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
    image_url: Option<ImageUrl>,
    file: Option<FileContent>,
    #[serde(flatten)]
    named: FileContent,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiImageUrl")]
#[serde(untagged)]
enum ImageUrl {
    Url(String),
    Object { url: String },
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiFile")]
struct FileContent {
    file_data: Option<String>,
    file_url: Option<String>,
    filename: Option<String>,
}

impl Content {
    /// Returns the texts of the content, and a mark for everything else, as [`marked`] does.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts = parts.iter().map(|part| match (&part.text, &part.refusal) {
                    (Some(text), _) | (None, Some(text)) => text.clone(),
                    (None, None) => match part.r#type.as_str() {
                        "image_url" | "input_image" => IMAGE.to_owned(),
                        "file" | "input_file" => FILE.to_owned(),
                        other => format!("[{other}]"),
                    },
                });
                texts.collect::<Vec<_>>().join("\n")
            }
        }
    }

    /// Returns the content as parts of a prompt.
    pub fn parts(self) -> Result<Vec<Part>, OpenAiError> {
        match self {
            Self::Text(text) => Ok(vec![Part::text(text)]),
            Self::Parts(parts) => parts.into_iter().map(part).collect(),
        }
    }
}

/// Returns the texts of a prompt, and a mark for each image and file. A client's message is compared
/// with a logged prompt in this form.
pub fn marked(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        Part::Image { .. } => Some(IMAGE),
        Part::File { .. } => Some(FILE),
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn part(part: ContentPart) -> Result<Part, OpenAiError> {
    match part.r#type.as_str() {
        "text" | "input_text" | "output_text" => {
            let text = part.text.ok_or_else(|| missing("text"))?;
            Ok(Part::text(text))
        }
        "image_url" | "input_image" => {
            let url = match part.image_url {
                Some(ImageUrl::Url(url) | ImageUrl::Object { url }) => url,
                None => return Err(missing("image_url")),
            };
            let (mime, source) = media(&url, "image/jpeg")?;
            Ok(Part::Image { mime, source })
        }
        "file" | "input_file" => {
            let file = part.file.unwrap_or(part.named);
            let url = file.file_data.or(file.file_url);
            let url = url.ok_or_else(|| missing("file_data"))?;
            let (mime, source) = media(&url, "application/pdf")?;
            let name = file.filename;
            Ok(Part::File { mime, name, source })
        }
        other => Err(OpenAiError::parameter(
            "content",
            format!(
                "content of type `{}` cannot be sent to an agent; send text, images or files",
                other.chars().take(40).collect::<String>()
            ),
        )),
    }
}

fn missing(field: &str) -> OpenAiError {
    OpenAiError::parameter("content", format!("a part of the content has no `{field}`"))
}

/// Reads the address of an image or a file: its data, or where it is.
fn media(url: &str, usual: &str) -> Result<(String, MediaSource), OpenAiError> {
    if let Some(data) = url.strip_prefix("data:") {
        let read = data.split_once(";base64,");
        let (mime, data) = read.ok_or_else(|| {
            OpenAiError::parameter(
                "content",
                "a `data:` address must be `data:TYPE;base64,DATA`",
            )
        })?;
        let source = MediaSource::Data(data.to_owned());
        return match source.fault() {
            Some(fault) => Err(OpenAiError::parameter("content", fault)),
            None => Ok((mime.to_owned(), source)),
        };
    }
    if url.starts_with("https://") || url.starts_with("http://") {
        return Ok((usual.to_owned(), MediaSource::Url(url.to_owned())));
    }
    Err(OpenAiError::parameter(
        "content",
        "an image or a file needs an address that begins with `data:` or `https://`",
    ))
}

/// Reads a tool of the client. Both wires describe it by the same fields.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "OpenAiFunction")]
pub struct FunctionTool {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
}

impl From<FunctionTool> for ClientTool {
    fn from(tool: FunctionTool) -> Self {
        let nothing = || serde_json::json!({"type": "object", "properties": {}});
        Self {
            name: tool.name,
            description: tool.description.unwrap_or_default(),
            parameters: tool.parameters.unwrap_or_else(nothing),
        }
    }
}

/// Names the parameters that have no effect on a team, because its members say what they use.
pub fn without_effect<'a>(names: impl IntoIterator<Item = &'a String>) -> Option<String> {
    let names: Vec<String> = names
        .into_iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic()))
        .take(32)
        .map(|name| format!("`{}`", name.chars().take(40).collect::<String>()))
        .collect();
    (!names.is_empty()).then(|| format!("without effect: {}", names.join(", ")))
}

/// Returns a text whose words are separated by single spaces, so that texts can be compared that
/// clients have trimmed.
pub fn normal(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ChatMessage {
    pub role: String,
    pub content: Option<Content>,
    pub tool_call_id: Option<String>,
}

/// The messages of a request, by their meaning.
pub struct ClientConversation {
    pub instructions: Option<String>,
    pub history: Vec<Said>,
    pub latest: Latest,
}

/// The messages since the last answer.
#[derive(Default)]
struct UnansweredMessages {
    text: Vec<String>,
    parts: Vec<Part>,
    results: Vec<ClientToolResult>,
    has_results: bool,
    /// The texts of system messages after an answer.
    notes: Vec<String>,
}

/// Reads messages. `param` is the name of the parameter that has them.
pub fn read_conversation(
    messages: Vec<ChatMessage>,
    param: &'static str,
) -> Result<ClientConversation, OpenAiError> {
    let mut instructions = Vec::new();
    let mut history: Vec<Said> = Vec::new();
    let mut pending = UnansweredMessages::default();
    let last_answer = messages
        .iter()
        .rposition(|message| message.role == "assistant");
    for (at, message) in messages.into_iter().enumerate() {
        let is_new = last_answer.is_none_or(|last| at > last);
        match message.role.as_str() {
            "system" | "developer" => {
                let text = message.content.map(|content| content.text());
                match history.is_empty() {
                    true => instructions.extend(text),
                    false => pending.notes.extend(text),
                }
            }
            "user" => pending.user(message.content, is_new, param)?,
            "assistant" => {
                let text = message.content.map(|content| content.text());
                instructions.extend(pending.take_notes(false));
                answer(&mut history, &mut pending, text.unwrap_or_default());
            }
            "tool" if is_new => {
                let id = message.tool_call_id.unwrap_or_default();
                let id = ToolCallId::parse(&id)?;
                let text = message.content.map(|content| content.text());
                let text = text.unwrap_or_default();
                pending.has_results = true;
                pending.results.push(ClientToolResult { id, text });
            }
            // The agent has the results of earlier calls.
            "tool" => pending.has_results = true,
            other => {
                let other: String = other.chars().take(40).collect();
                let text = format!("there is no role `{other}`");
                return Err(OpenAiError::parameter(param, text));
            }
        }
    }
    instructions.extend(pending.take_notes(true));
    let text = |texts: Vec<String>| (!texts.is_empty()).then(|| texts.join("\n\n"));
    Ok(ClientConversation {
        instructions: text(instructions).filter(|text| !text.trim().is_empty()),
        history,
        latest: pending.latest(param)?,
    })
}

/// Adds an answer to the history. Several answers without a message of the user between them are
/// one turn.
fn answer(history: &mut Vec<Said>, pending: &mut UnansweredMessages, text: String) {
    let user = std::mem::take(&mut pending.text).join("\n\n");
    pending.has_results = false;
    match history.last_mut().filter(|_| user.is_empty()) {
        Some(last) if last.assistant.is_empty() => last.assistant = text,
        Some(_) if text.is_empty() => {}
        Some(last) => {
            last.assistant.push_str("\n\n");
            last.assistant.push_str(&text);
        }
        None => history.push(Said {
            user,
            assistant: text,
        }),
    }
}

impl UnansweredMessages {
    /// Returns the system messages after an answer, which are instructions. If nothing else follows
    /// the answer, they are messages of the user instead: some clients say in this way that an answer
    /// was of no use to them.
    fn take_notes(&mut self, is_new: bool) -> Vec<String> {
        let notes = std::mem::take(&mut self.notes);
        if self.has_results || !self.text.is_empty() {
            return notes;
        }
        if is_new && !notes.is_empty() {
            self.parts.push(Part::text(notes.join("\n\n")));
        }
        self.text = notes;
        Vec::new()
    }

    fn user(
        &mut self,
        content: Option<Content>,
        is_new: bool,
        param: &'static str,
    ) -> Result<(), OpenAiError> {
        let Some(content) = content else {
            return Err(OpenAiError::parameter(
                param,
                "a message of the user has no content",
            ));
        };
        self.text.push(content.text());
        if is_new {
            if !self.parts.is_empty() {
                self.parts.push(Part::text("\n\n"));
            }
            self.parts.extend(content.parts()?);
        }
        Ok(())
    }

    fn latest(self, param: &'static str) -> Result<Latest, OpenAiError> {
        if self.parts.is_empty() && self.results.is_empty() {
            return Err(OpenAiError::parameter(
                param,
                "the last message must be one of the user, or the result of a tool",
            ));
        }
        Ok(Latest {
            results: self.results,
            prompt: self.parts,
        })
    }
}

/// Names what the client asks beside the conversation of a person, for example a title for it. A
/// client whose template has no name for a request sends the header without a value.
const TASK: HeaderName = HeaderName::from_static("x-planck-task");
/// Says what happens to the turn if the client closes the connection.
const ON_DISCONNECT: HeaderName = HeaderName::from_static("x-planck-on-disconnect");

/// Returns the name of the task that a request is for, or `None` for a conversation.
pub fn task(headers: &HeaderMap) -> Option<String> {
    let name = headers.get(TASK)?.to_str().ok()?.trim();
    (!name.is_empty()).then(|| name.chars().take(80).collect())
}

/// Returns whether the turn is aborted if the client closes the connection.
pub fn aborts_on_disconnect(headers: &HeaderMap) -> Result<bool, OpenAiError> {
    match headers.get(ON_DISCONNECT).map(|value| value.as_bytes()) {
        None | Some(b"" | b"continue") => Ok(false),
        Some(b"abort") => Ok(true),
        Some(_) => Err(OpenAiError::parameter(
            "x-planck-on-disconnect",
            "the header `x-planck-on-disconnect` must be `abort` or `continue`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn parts(json: &str) -> Result<String, String> {
        let content: Content = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let parts = content
            .parts()
            .map_err(|error| error.body().message.clone())?;
        Ok(planck_common::event::json(&parts))
    }

    #[test]
    fn content_of_both_wires_is_read() {
        for (json, expected) in [
            (r#""a""#, r#"[{"type":"text","text":"a"}]"#),
            (
                r#"[{"type":"input_text","text":"a"},{"type":"text","text":"b"}]"#,
                r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#,
            ),
            (
                r#"[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA==","detail":"low"}}]"#,
                r#"[{"type":"image","mime":"image/png","data":"AA=="}]"#,
            ),
            (
                r#"[{"type":"input_image","image_url":"https://example.com/a"}]"#,
                r#"[{"type":"image","mime":"image/jpeg","url":"https://example.com/a"}]"#,
            ),
            (
                r#"[{"type":"file","file":{"file_data":"data:text/plain;base64,AA==","filename":"a"}}]"#,
                r#"[{"type":"file","mime":"text/plain","name":"a","data":"AA=="}]"#,
            ),
            (
                r#"[{"type":"input_file","file_data":"data:text/plain;base64,AA=="}]"#,
                r#"[{"type":"file","mime":"text/plain","data":"AA=="}]"#,
            ),
        ] {
            assert_eq!(parts(json).as_deref(), Ok(expected), "{json}");
        }
    }

    #[test]
    fn data_that_is_not_base64_is_refused() {
        for data in ["%%%", ""] {
            let json = format!(
                r#"[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]"#
            );
            let refused = parts(&json).unwrap_err();
            assert!(refused.contains("must be Base64"), "{refused}");
        }
    }

    /// The text of a message chooses the session, so it has to be that of the logged prompt.
    #[test]
    fn text_of_a_message_is_that_of_its_prompt() {
        for (json, expected) in [
            (r#""a""#, "a"),
            (
                r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]"#,
                "a\n[image]",
            ),
            (
                r#"[{"type":"input_file","file_data":"data:text/plain;base64,AA=="},{"type":"input_text","text":"a"},{"type":"text","text":"b"}]"#,
                "[file]\na\nb",
            ),
        ] {
            let content: Content = serde_json::from_str(json).unwrap();
            assert_eq!(content.text(), expected);
            assert_eq!(marked(&content.parts().unwrap()), expected);
        }
    }

    #[test]
    fn content_that_no_agent_takes_is_refused() {
        for json in [
            r#"[{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}}]"#,
            r#"[{"type":"text"}]"#,
            r#"[{"type":"image_url"}]"#,
            r#"[{"type":"image_url","image_url":"file:///etc/passwd"}]"#,
            r#"[{"type":"image_url","image_url":"data:image/png,AA"}]"#,
            r#"[{"type":"file","file":{"file_id":"f"}}]"#,
            r#"[{}]"#,
        ] {
            assert!(parts(json).is_err(), "{json}");
        }
    }

    #[test]
    fn headers_say_what_the_wire_cannot() {
        for (name, value, expected_task, aborts) in [
            (
                TASK,
                "title_generation",
                Some("title_generation"),
                Some(false),
            ),
            (TASK, "", None, Some(false)),
            (TASK, "  ", None, Some(false)),
            (ON_DISCONNECT, "abort", None, Some(true)),
            (ON_DISCONNECT, "continue", None, Some(false)),
            (ON_DISCONNECT, "explode", None, None),
        ] {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            assert_eq!(task(&headers).as_deref(), expected_task, "{headers:?}");
            assert_eq!(aborts_on_disconnect(&headers).ok(), aborts, "{headers:?}");
        }
    }
}
