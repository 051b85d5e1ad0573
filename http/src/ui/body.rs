//! Reads the body of `POST /ui/chat`, as `DefaultChatTransport` of the npm package `ai` writes it.
//! Of the client's history only the ids of the messages are used, and what the last message says.

use std::collections::{HashMap, HashSet};

use planck_common::{
    CallId, SessionId,
    command::{Answer, WaitRow},
    message::{MediaSource, Part},
    permission::PermissionMode,
    spec::ClientTool,
    wait::{WaitDecision, WaitKind},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{chunks::Continued, ids};
use crate::problem::Problem;

/// The maximum number of messages.
const MESSAGES: usize = 10_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UiChatRequest")]
#[serde(rename_all = "camelCase")]
pub struct ChatBody {
    id: String,
    #[serde(default)]
    messages: Vec<UiMessage>,
    /// The last message, from clients that send no history.
    message: Option<UiMessage>,
    trigger: Option<String>,
    message_id: Option<String>,
    #[serde(flatten)]
    start: StartFields,
}

/// The settings of a new session. A session that exists is not changed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartFields {
    pub team: Option<String>,
    pub workspace: Option<String>,
    pub dir: Option<String>,
    pub permissions: Option<PermissionMode>,
    #[serde(default)]
    pub client_tools: Vec<ClientTool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct UiMessage {
    #[serde(default)]
    id: String,
    role: String,
    #[serde(default)]
    parts: Vec<Value>,
}

/// A request of a chat.
#[derive(Debug)]
pub struct UiRequest {
    pub chat: SessionId,
    pub start: StartFields,
    pub asks: Asks,
}

/// The purpose of a request.
#[derive(Debug)]
pub enum Asks {
    Prompt(PromptMessage),
    Answer(AnsweringMessage),
}

/// A message of the user.
#[derive(Debug)]
pub struct PromptMessage {
    pub id: String,
    pub content: Vec<Part>,
    /// Whether the message takes the place of an earlier one with the same id, or is to be answered
    /// again.
    pub replaces: bool,
    /// The ids of the user's messages before this one. `None` if the client sent no history.
    pub before: Option<Vec<String>>,
}

/// A message of the assistant with answers of the client.
#[derive(Debug)]
pub struct AnsweringMessage {
    pub id: String,
    pub calls: Vec<ToolPart>,
}

/// A tool call in a message of the assistant.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolPart {
    pub call: String,
    /// The id of the request for approval.
    pub approval: Option<String>,
    pub state: ToolState,
    /// Whether the call is in the last step of the message.
    pub is_latest: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ToolState {
    Approved {
        approved: bool,
        reason: Option<String>,
    },
    Output(Value),
    Error(String),
    Open,
}

impl ChatBody {
    /// Returns what the body asks for.
    pub fn read(self) -> Result<UiRequest, Problem> {
        let chat = chat_id(&self.id)?;
        let is_again = is_again(self.trigger.as_deref())?;
        let mut messages = self.messages;
        if messages.len() > MESSAGES {
            return Err(Problem::bad_request(format!(
                "the history has more than {MESSAGES} messages; send the last one as `message`"
            )));
        }
        messages.extend(self.message);
        if let Some(message) = messages.iter().find(|message| !message.has_role()) {
            return Err(Problem::bad_request(format!(
                "unknown role `{}`; known are user, assistant, system",
                cut(&message.role)
            )));
        }
        messages.retain(|message| message.role != "system");
        let Some(last) = messages.pop() else {
            return Err(Problem::bad_request("the body has no message of the user"));
        };
        let asks = match last.role.as_str() {
            "user" => {
                let is_edit = self.message_id.is_some_and(|id| id == last.id);
                let before = messages
                    .into_iter()
                    .filter(|message| message.role == "user");
                let before: Vec<String> = before.map(|message| message.id).collect();
                Asks::Prompt(PromptMessage {
                    content: content(&last.parts)?,
                    id: last.id,
                    replaces: is_again || is_edit,
                    before: (!before.is_empty()).then_some(before),
                })
            }
            _ if is_again => {
                return Err(Problem::bad_request(
                    "`regenerate-message` needs the user's message last",
                ));
            }
            _ => Asks::Answer(AnsweringMessage {
                calls: calls(&last.parts)?,
                id: last.id,
            }),
        };
        let start = self.start;
        Ok(UiRequest { chat, start, asks })
    }
}

fn chat_id(id: &str) -> Result<SessionId, Problem> {
    SessionId::parse(id).map_err(|_| {
        Problem::bad_request(format!(
            "malformed chat id `{}`: expected 1 to 64 characters of A-Z a-z 0-9 _ -",
            cut(id)
        ))
    })
}

/// Returns whether a trigger asks to answer a message again.
fn is_again(trigger: Option<&str>) -> Result<bool, Problem> {
    match trigger {
        None | Some("submit-message") => Ok(false),
        Some("regenerate-message") => Ok(true),
        Some(other) => Err(Problem::bad_request(format!(
            "unknown trigger `{}`; known are submit-message, regenerate-message",
            cut(other)
        ))),
    }
}

impl UiMessage {
    fn has_role(&self) -> bool {
        matches!(self.role.as_str(), "user" | "assistant" | "system")
    }
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}

fn text<'a>(part: &'a Value, key: &str) -> Option<&'a str> {
    part.get(key).and_then(Value::as_str)
}

fn needed<'a>(part: &'a Value, key: &str) -> Result<&'a str, Problem> {
    text(part, key).ok_or_else(|| {
        let kind = text(part, "type").unwrap_or_default();
        Problem::bad_request(format!("a part of type `{}` needs `{key}`", cut(kind)))
    })
}

/// Returns the content of a prompt.
fn content(parts: &[Value]) -> Result<Vec<Part>, Problem> {
    let content: Vec<Part> = parts.iter().map(part).collect::<Result<_, _>>()?;
    let is_empty = |part: &Part| matches!(part, Part::Text { text, .. } if text.trim().is_empty());
    if content.iter().all(is_empty) {
        return Err(Problem::bad_request("the message of the user is empty"));
    }
    Ok(content)
}

fn part(part: &Value) -> Result<Part, Problem> {
    match text(part, "type").unwrap_or_default() {
        "text" => Ok(Part::text(needed(part, "text")?)),
        "file" => file(part),
        other => Err(Problem::bad_request(format!(
            "a message of the user has no part of type `{}`; known are text, file",
            cut(other)
        ))),
    }
}

fn file(part: &Value) -> Result<Part, Problem> {
    let url = needed(part, "url")?;
    let (mime, source) = match url.strip_prefix("data:") {
        Some(data) => {
            let (mime, data) = decoded(data)?;
            let source = MediaSource::Data(data.to_owned());
            if let Some(fault) = source.fault() {
                return Err(Problem::bad_request(fault));
            }
            (mime, source)
        }
        None if url.starts_with("https://") || url.starts_with("http://") => {
            (None, MediaSource::Url(url.to_owned()))
        }
        None => {
            return Err(Problem::bad_request(
                "the `url` of a file begins with data:, https:// or http://",
            ));
        }
    };
    let mime = match mime {
        Some(mime) => mime.to_owned(),
        None => needed(part, "mediaType")?.to_owned(),
    };
    if mime.starts_with("image/") {
        return Ok(Part::Image { mime, source });
    }
    let name = text(part, "filename").map(str::to_owned);
    Ok(Part::File { mime, name, source })
}

/// Returns the media type and the Base64 text of a data URL, without its scheme.
fn decoded(url: &str) -> Result<(Option<&str>, &str), Problem> {
    let wrong = || Problem::bad_request("a data URL must be `data:TYPE;base64,DATA`");
    let (head, data) = url.split_once(',').ok_or_else(wrong)?;
    let mime = head.strip_suffix(";base64").ok_or_else(wrong)?;
    let mime = mime.split(';').next().filter(|mime| mime.contains('/'));
    Ok((mime, data))
}

/// Returns the tool calls of a message of the assistant.
fn calls(parts: &[Value]) -> Result<Vec<ToolPart>, Problem> {
    let is_step = |part: &Value| text(part, "type") == Some("step-start");
    let latest = parts.iter().rposition(is_step).unwrap_or_default();
    let calls: Vec<ToolPart> = parts
        .iter()
        .enumerate()
        .filter_map(|(at, part)| call(part, at >= latest))
        .collect();
    if calls.is_empty() {
        return Err(Problem::bad_request(
            "the last message is the assistant's and has no tool call; send a message of the user",
        ));
    }
    Ok(calls)
}

fn call(part: &Value, is_latest: bool) -> Option<ToolPart> {
    let kind = text(part, "type")?;
    if kind != "dynamic-tool" && !kind.starts_with("tool-") {
        return None;
    }
    let approval = part.get("approval");
    let state = match text(part, "state")? {
        "approval-responded" => approval.map_or(ToolState::Open, |approval| ToolState::Approved {
            // Only a clear yes is read as an approval.
            approved: approval.get("approved") == Some(&Value::Bool(true)),
            reason: text(approval, "reason").map(str::to_owned),
        }),
        "output-available" => ToolState::Output(part.get("output").cloned().unwrap_or_default()),
        "output-error" => {
            let why = text(part, "errorText").unwrap_or("the client's tool failed");
            ToolState::Error(why.to_owned())
        }
        _ => ToolState::Open,
    };
    Some(ToolPart {
        call: text(part, "toolCallId")?.to_owned(),
        approval: approval
            .and_then(|approval| text(approval, "id"))
            .map(str::to_owned),
        state,
        is_latest,
    })
}

/// Returns the answers to the open waits.
pub fn answers(open: &[WaitRow], calls: &[ToolPart]) -> Result<Vec<Answer>, Problem> {
    let answers = open.iter().filter_map(|wait| {
        let call = calls.iter().find(|call| call.call == wait.id.as_str())?;
        answer(wait, call).transpose()
    });
    answers.collect()
}

fn answer(wait: &WaitRow, call: &ToolPart) -> Result<Option<Answer>, Problem> {
    let digest = match wait.kind {
        WaitKind::Approval => approved_digest(wait, call)?,
        WaitKind::Question | WaitKind::ClientTool | WaitKind::Budget | WaitKind::Change => None,
    };
    let (decision, value, reason) = match (wait.kind, &call.state) {
        (WaitKind::Approval, ToolState::Approved { approved: true, .. }) => {
            (WaitDecision::Allow, None, None)
        }
        (
            _,
            ToolState::Approved {
                approved: false,
                reason,
            },
        ) => (WaitDecision::Deny, None, reason.clone()),
        (WaitKind::Question | WaitKind::ClientTool, ToolState::Output(output)) => {
            (WaitDecision::Answer, raw(output), None)
        }
        (WaitKind::ClientTool, ToolState::Error(why)) => {
            (WaitDecision::Error, None, Some(why.clone()))
        }
        (WaitKind::Question, ToolState::Error(why)) => {
            (WaitDecision::Deny, None, Some(why.clone()))
        }
        // No other state is an answer, least of all an approval.
        (
            WaitKind::Approval | WaitKind::Budget | WaitKind::Change,
            ToolState::Output(_) | ToolState::Error(_) | ToolState::Open,
        )
        | (
            WaitKind::Question | WaitKind::ClientTool | WaitKind::Budget | WaitKind::Change,
            ToolState::Approved { .. },
        )
        | (WaitKind::Question | WaitKind::ClientTool, ToolState::Open) => return Ok(None),
    };
    Ok(Some(Answer {
        wait: wait.id.clone(),
        decision,
        args: None,
        value,
        reason,
        scope: None,
        digest,
        by: None,
    }))
}

/// Returns the digest of what the client has approved or denied.
fn approved_digest(wait: &WaitRow, call: &ToolPart) -> Result<Option<String>, Problem> {
    let ToolState::Approved { .. } = call.state else {
        return Ok(None);
    };
    let id = call.approval.as_deref().unwrap_or_default();
    match ids::approval(id) {
        Some((call, digest)) if call == wait.id => Ok(Some(digest.to_owned())),
        Some(_) | None => Err(Problem::bad_request(format!(
            "the approval of call {} has an id that this front did not send",
            wait.id
        ))),
    }
}

fn raw(value: &Value) -> Option<Box<RawValue>> {
    serde_json::value::to_raw_value(value).ok()
}

/// Returns what the client already has of the turn. `answered` are the waits that it answers now. If
/// there are none, it repeats a request, and has answered the calls of the last step.
pub fn continued(answered: &[Answer], calls: &[ToolPart]) -> Option<Continued> {
    let mut ids: HashSet<CallId> = answered.iter().map(|answer| answer.wait.clone()).collect();
    if ids.is_empty() {
        let latest = calls
            .iter()
            .filter(|call| call.is_latest && call.is_answered());
        ids.extend(latest.filter_map(|call| CallId::parse(&call.call).ok()));
    }
    let approvals: HashMap<CallId, String> = calls
        .iter()
        .filter_map(|call| Some((CallId::parse(&call.call).ok()?, call.approval.clone()?)))
        .collect();
    (!ids.is_empty()).then_some(Continued {
        answered: ids,
        approvals,
    })
}

impl ToolPart {
    fn is_answered(&self) -> bool {
        match self.state {
            ToolState::Approved { .. } | ToolState::Output(_) | ToolState::Error(_) => true,
            ToolState::Open => false,
        }
    }
}

#[cfg(test)]
mod tests;
