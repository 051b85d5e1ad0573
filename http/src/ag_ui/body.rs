//! Reads the body of `POST /ag-ui/{team}`, as `HttpAgent` of the npm package `@ag-ui/client` writes it.

use std::collections::{HashMap, HashSet};

use planck_common::{
    CallId, SessionId,
    command::{Answer, WaitRow},
    event::json,
    message::{MediaSource, Part},
    permission::PermissionMode,
    spec::ClientTool,
    wait::{WaitDecision, WaitKind},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    problem::Problem,
    ui::{PromptMessage, StartFields, ids},
};

/// The maximum number of messages.
const MESSAGES: usize = 10_000;
/// The beginning of the part of a prompt that has the context of the client's application.
const CONTEXT: &str = "Context from the client's application:\n";

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "AgUiRun")]
#[serde(rename_all = "camelCase")]
pub struct RunInput {
    /// The id or the name of the session.
    thread_id: String,
    run_id: String,
    parent_run_id: Option<String>,
    #[serde(default)]
    messages: Vec<AgUiMessage>,
    /// The tools of the client, which a new session gets.
    tools: Option<Vec<AgUiTool>>,
    /// What the agent reads before the prompt.
    context: Option<Vec<AgUiContext>>,
    /// The settings of a new session.
    forwarded_props: Option<ForwardedProps>,
    /// The answers to interrupts.
    resume: Option<Vec<ResumeEntry>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "AgUiForwardedProps")]
struct ForwardedProps {
    workspace: Option<String>,
    dir: Option<String>,
    permissions: Option<PermissionMode>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AgUiMessage {
    id: String,
    role: String,
    content: Option<Value>,
    tool_calls: Option<Vec<Value>>,
    tool_call_id: Option<String>,
    error: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct AgUiTool {
    name: String,
    #[serde(default)]
    description: String,
    parameters: Option<Value>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct AgUiContext {
    description: String,
    value: String,
}

/// The answer to an interrupt.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "AgUiResume")]
#[serde(rename_all = "camelCase")]
pub struct ResumeEntry {
    interrupt_id: String,
    status: ResumeStatus,
    payload: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(rename = "AgUiResumeStatus")]
#[serde(rename_all = "snake_case")]
enum ResumeStatus {
    Resolved,
    Cancelled,
}

/// The request of a client.
#[derive(Debug)]
pub struct RunRequest {
    pub thread: SessionId,
    /// The fields by which the client knows its run.
    pub run: Value,
    pub start: StartFields,
    /// The last message, if it is the user's.
    pub prompt: Option<PromptMessage>,
    /// What the agent reads before the prompt.
    context: Option<Part>,
    pub resume: Vec<ResumeEntry>,
    pub known: KnownMessages,
}

impl RunInput {
    /// Returns what the body asks for.
    pub fn read(self) -> Result<RunRequest, Problem> {
        let thread = SessionId::parse(&self.thread_id).map_err(|_| {
            Problem::bad_request(format!(
                "malformed threadId `{}`: expected 1 to 64 characters of A-Z a-z 0-9 _ -",
                cut(&self.thread_id)
            ))
        })?;
        if self.messages.len() > MESSAGES {
            return Err(Problem::bad_request(format!(
                "`messages` has more than {MESSAGES} messages; send the last one"
            )));
        }
        let resume = self.resume.unwrap_or_default();
        let prompt = match resume.is_empty() {
            true => prompt(&self.messages)?,
            false => None,
        };
        let mut run = json!({"threadId": self.thread_id, "runId": self.run_id});
        if let (Some(parent), Some(fields)) = (self.parent_run_id, run.as_object_mut()) {
            fields.insert("parentRunId".into(), parent.into());
        }
        let props = self.forwarded_props.unwrap_or_default();
        let tools = self.tools.unwrap_or_default().into_iter();
        let start = StartFields {
            team: None,
            workspace: props.workspace,
            dir: props.dir,
            permissions: props.permissions,
            client_tools: tools.map(ClientTool::from).collect(),
        };
        Ok(RunRequest {
            thread,
            run,
            start,
            prompt,
            context: context(&self.context.unwrap_or_default()),
            resume,
            known: KnownMessages::of(self.messages),
        })
    }
}

impl RunRequest {
    /// Returns the content of the prompt, with the context before it.
    pub fn content(&self, message: &PromptMessage) -> Vec<Part> {
        let context = self.context.iter().cloned();
        context.chain(message.content.iter().cloned()).collect()
    }
}

impl From<AgUiTool> for ClientTool {
    fn from(tool: AgUiTool) -> Self {
        let any = || json!({"type": "object"});
        Self {
            name: tool.name,
            description: tool.description,
            parameters: tool.parameters.unwrap_or_else(any),
        }
    }
}

fn context(entries: &[AgUiContext]) -> Option<Part> {
    if entries.is_empty() {
        return None;
    }
    let entries = entries.iter();
    let lines = entries.map(|entry| format!("\n{}: {}\n", entry.description, entry.value));
    Some(Part::text(CONTEXT.to_owned() + &lines.collect::<String>()))
}

/// Returns the content of a prompt without the context that was added to it.
pub fn without_context(content: &[Part]) -> &[Part] {
    match content.split_first() {
        Some((Part::Text { text, .. }, rest)) if text.starts_with(CONTEXT) && !rest.is_empty() => {
            rest
        }
        _ => content,
    }
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Returns the last message as a prompt if it is the user's.
fn prompt(messages: &[AgUiMessage]) -> Result<Option<PromptMessage>, Problem> {
    let mut said = messages
        .iter()
        .filter(|message| matches!(message.role.as_str(), "user" | "assistant" | "tool"));
    let Some(last) = said.next_back().filter(|last| last.role == "user") else {
        return Ok(None);
    };
    let before = messages.iter().filter(|message| message.role == "user");
    let mut before: Vec<String> = before.map(|message| message.id.clone()).collect();
    before.pop();
    Ok(Some(PromptMessage {
        id: last.id.clone(),
        content: content(last.content.as_ref())?,
        replaces: false,
        before: (!before.is_empty()).then_some(before),
    }))
}

fn content(content: Option<&Value>) -> Result<Vec<Part>, Problem> {
    let parts = match content {
        Some(Value::String(text)) => vec![Part::text(text)],
        Some(Value::Array(parts)) => parts.iter().map(part).collect::<Result<_, _>>()?,
        _ => Vec::new(),
    };
    let is_empty = |part: &Part| matches!(part, Part::Text { text, .. } if text.trim().is_empty());
    if parts.iter().all(is_empty) {
        return Err(Problem::bad_request("the message of the user is empty"));
    }
    Ok(parts)
}

fn part(part: &Value) -> Result<Part, Problem> {
    let text = |pointer: &str| part.pointer(pointer).and_then(Value::as_str);
    let kind = text("/type").unwrap_or_default();
    let needed = |pointer: &str| {
        text(pointer).ok_or_else(|| {
            let (kind, field) = (cut(kind), pointer.replace('/', " ").trim().to_owned());
            Problem::bad_request(format!("a part of type `{kind}` needs `{field}`"))
        })
    };
    match kind {
        "text" => return Ok(Part::text(needed("/text")?)),
        "image" | "audio" | "video" | "document" => {}
        other => {
            return Err(Problem::bad_request(format!(
                "a message of the user has no part of type `{}`; known are text, image, audio, \
                 video, document",
                cut(other)
            )));
        }
    }
    let value = needed("/source/value")?.to_owned();
    let source = match text("/source/type") {
        Some("data") => MediaSource::Data(value),
        Some("url") if value.starts_with("https://") || value.starts_with("http://") => {
            MediaSource::Url(value)
        }
        _ => {
            return Err(Problem::bad_request(
                "the `source` of a part has the type `data`, or `url` with an address that begins \
                 with https:// or http://",
            ));
        }
    };
    if let Some(fault) = source.fault() {
        return Err(Problem::bad_request(fault));
    }
    let mime = needed("/source/mimeType")?.to_owned();
    Ok(match kind {
        "image" => Part::Image { mime, source },
        _ => Part::File {
            mime,
            name: None,
            source,
        },
    })
}

/// Returns the message of the user that became a prompt.
pub fn message_of_user(id: &str, content: &[Part]) -> Value {
    let content = match without_context(content) {
        [Part::Text { text, .. }] => Value::from(text.as_str()),
        parts => parts.iter().filter_map(written).collect(),
    };
    json!({"id": id, "role": "user", "content": content})
}

fn written(part: &Part) -> Option<Value> {
    let (kind, mime, source) = match part {
        Part::Text { text, .. } => return Some(json!({"type": "text", "text": text})),
        Part::Image { mime, source } => ("image", mime, source),
        Part::File { mime, source, .. } => ("document", mime, source),
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => return None,
    };
    let (origin, value) = match source {
        MediaSource::Data(data) => ("data", data),
        MediaSource::Url(url) => ("url", url),
    };
    let source = json!({"type": origin, "value": value, "mimeType": mime});
    Some(json!({"type": kind, "source": source}))
}

/// What a client knows of the thread. It decides only which messages the client is sent again.
#[derive(Debug, Default)]
pub struct KnownMessages {
    /// The contents of messages with their calls, by their ids.
    contents: HashMap<String, (Value, Vec<Value>)>,
    /// The ids of the user's messages by the names that these have in ids of prompts.
    prompts: HashMap<String, String>,
    reasoning: HashSet<String>,
    /// Whether the client has a message that is void.
    is_stale: bool,
    results: HashMap<String, ToolResult>,
}

/// What a client says to be the result of a call.
#[derive(Debug)]
struct ToolResult {
    text: String,
    error: Option<String>,
}

impl KnownMessages {
    fn of(messages: Vec<AgUiMessage>) -> Self {
        let mut known = Self::default();
        for message in messages {
            let content = message.content.unwrap_or_else(|| Value::from(""));
            match (message.role.as_str(), message.tool_call_id) {
                ("tool", Some(call)) => {
                    let text = content.as_str().map(str::to_owned);
                    let result = ToolResult {
                        text: text.unwrap_or_else(|| content.to_string()),
                        error: message.error,
                    };
                    known.results.insert(call, result);
                }
                ("reasoning", _) => _ = known.reasoning.insert(message.id),
                ("user", _) => {
                    known.prompts.insert(ids::base(&message.id), message.id);
                }
                _ => {
                    let said = (content, message.tool_calls.unwrap_or_default());
                    known.contents.insert(message.id, said);
                }
            }
        }
        known
    }

    /// Returns whether the client has a message of the thread. Clients need not keep reasoning and
    /// activities.
    pub fn has(&self, message: &Value) -> bool {
        if self.is_stale {
            return false;
        }
        let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("role") {
            "user" => self.prompts.contains_key(&ids::base(text("id"))),
            "tool" => self.results.contains_key(text("toolCallId")),
            "assistant" => self
                .contents
                .get(text("id"))
                .is_some_and(|(content, calls)| {
                    let sent = message.get("toolCalls").and_then(Value::as_array);
                    let sent = sent.into_iter().flatten().map(arguments);
                    content.as_str() == Some(text("content"))
                        && sent.eq(calls.iter().map(arguments))
                }),
            _ => true,
        }
    }

    /// Returns the client's own id of a message of the user.
    pub fn id_of_prompt(&self, base: &str) -> Option<&str> {
        self.prompts.get(base).map(String::as_str)
    }

    pub fn reasoning(&self) -> impl Iterator<Item = &String> {
        self.reasoning.iter()
    }

    /// Takes that the client has been sent a piece of reasoning.
    pub fn add_reasoning(&mut self, id: String) {
        self.reasoning.insert(id);
    }

    /// Takes that the client needs all messages again.
    pub fn forget(&mut self) {
        self.is_stale = true;
    }

    /// Returns whether the client has sent the result of a call.
    pub fn has_result(&self, call: &CallId) -> bool {
        self.results.contains_key(call.as_str())
    }
}

fn arguments(call: &Value) -> Option<&str> {
    call.pointer("/function/arguments")?.as_str()
}

/// Returns the answers to the open waits, from the answers to interrupts and from the results of the
/// client's tools.
pub fn answers(
    open: &[WaitRow],
    resume: &[ResumeEntry],
    known: &KnownMessages,
) -> Result<Vec<Answer>, Problem> {
    let mut answers = Vec::new();
    for wait in open {
        let entry = resume.iter().find_map(|entry| entry.about(&wait.id));
        if let Some((entry, digest)) = entry {
            answers.push(answer(wait, entry, digest)?);
        } else if let (WaitKind::ClientTool, Some(result)) =
            (wait.kind, known.results.get(wait.id.as_str()))
        {
            answers.push(result.answer(wait));
        }
    }
    Ok(answers)
}

impl ResumeEntry {
    /// Returns the entry with the digest of what was shown, if it is about this wait.
    fn about(&self, wait: &CallId) -> Option<(&Self, &str)> {
        let (id, digest) = ids::approval(&self.interrupt_id)?;
        (id == *wait).then_some((self, digest))
    }

    /// Returns the id that names no interrupt of this front.
    pub fn stranger(&self) -> Option<String> {
        let known = ids::approval(&self.interrupt_id);
        known.is_none().then(|| cut(&self.interrupt_id))
    }
}

impl ToolResult {
    fn answer(&self, wait: &WaitRow) -> Answer {
        let (decision, value) = match &self.error {
            Some(_) => (WaitDecision::Error, None),
            None => (WaitDecision::Answer, raw(&json(&self.text))),
        };
        Answer {
            value,
            reason: self.error.clone(),
            ..decided(wait, decision)
        }
    }
}

fn raw(json: &str) -> Option<Box<RawValue>> {
    RawValue::from_string(json.to_owned()).ok()
}

fn decided(wait: &WaitRow, decision: WaitDecision) -> Answer {
    Answer {
        wait: wait.id.clone(),
        decision,
        args: None,
        value: None,
        reason: None,
        scope: None,
        digest: None,
        by: None,
    }
}

/// Returns the answer that an entry of `resume` is. Only `"approved": true` allows anything.
fn answer(wait: &WaitRow, entry: &ResumeEntry, digest: &str) -> Result<Answer, Problem> {
    let refused = |needed: &str| {
        let text = format!("the `payload` for interrupt `{}` must be {needed}", wait.id);
        Problem::bad_request(text)
    };
    let field = |name: &str| entry.payload.as_ref().and_then(|payload| payload.get(name));
    let field = |name: &str| field(name).filter(|value| !value.is_null());
    let decision = match (wait.kind, entry.status, field("approved")) {
        (WaitKind::ClientTool, ResumeStatus::Cancelled, _) => WaitDecision::Error,
        (_, ResumeStatus::Cancelled, _) => WaitDecision::Deny,
        (WaitKind::Question | WaitKind::ClientTool, ..) => WaitDecision::Answer,
        (_, _, Some(Value::Bool(true))) => WaitDecision::Allow,
        (_, _, Some(Value::Bool(false))) => WaitDecision::Deny,
        _ => return Err(refused("an object with `\"approved\": true` or `false`")),
    };
    let value = match (wait.kind, decision) {
        (WaitKind::Question | WaitKind::ClientTool, WaitDecision::Answer) => {
            let payload = entry.payload.as_ref();
            Some(payload.ok_or_else(|| refused("the answer, or its status `cancelled`"))?)
        }
        (WaitKind::Budget, WaitDecision::Allow) => field("value"),
        _ => None,
    };
    let args = field("editedArgs").filter(|_| decision == WaitDecision::Allow);
    let reason = field("reason").filter(|_| decision == WaitDecision::Deny);
    Ok(Answer {
        args: args.and_then(|args| raw(&args.to_string())),
        value: value.and_then(|value| raw(&value.to_string())),
        reason: reason.and_then(Value::as_str).map(str::to_owned),
        digest: Some(digest.to_owned()),
        ..decided(wait, decision)
    })
}
