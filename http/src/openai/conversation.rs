//! Reads the messages of a request, in which clients send the whole conversation each time.

use planck_common::message::Part;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    ask::{Content, Latest, Said, ToolResult},
    error::ApiError,
    ids::ToolCallId,
};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ChatMessage {
    pub role: String,
    pub content: Option<Content>,
    pub tool_call_id: Option<String>,
}

/// The messages of a request, by their meaning.
pub struct Conversation {
    pub instructions: Option<String>,
    pub history: Vec<Said>,
    pub latest: Latest,
}

/// The messages since the last answer.
#[derive(Default)]
struct Pending {
    text: Vec<String>,
    parts: Vec<Part>,
    results: Vec<ToolResult>,
}

/// Reads messages. `param` is the name of the parameter that has them.
pub fn read(messages: Vec<ChatMessage>, param: &'static str) -> Result<Conversation, ApiError> {
    let mut instructions = Vec::new();
    let mut history: Vec<Said> = Vec::new();
    let mut pending = Pending::default();
    let last_answer = messages
        .iter()
        .rposition(|message| message.role == "assistant");
    for (at, message) in messages.into_iter().enumerate() {
        let is_new = last_answer.is_none_or(|last| at > last);
        match message.role.as_str() {
            "system" | "developer" => instructions.extend(message.content.map(|text| text.text())),
            "user" => pending.user(message.content, is_new, param)?,
            "assistant" => {
                let text = message.content.map(|content| content.text());
                answer(&mut history, &mut pending, text.unwrap_or_default());
            }
            "tool" if is_new => {
                let id = message.tool_call_id.unwrap_or_default();
                let id = ToolCallId::parse(&id)?;
                let text = message.content.map(|content| content.text());
                let text = text.unwrap_or_default();
                pending.results.push(ToolResult { id, text });
            }
            // The agent has the results of earlier calls.
            "tool" => {}
            other => {
                let other: String = other.chars().take(40).collect();
                let text = format!("there is no role `{other}`");
                return Err(ApiError::parameter(param, text));
            }
        }
    }
    let text = |texts: Vec<String>| (!texts.is_empty()).then(|| texts.join("\n\n"));
    Ok(Conversation {
        instructions: text(instructions).filter(|text| !text.trim().is_empty()),
        history,
        latest: pending.latest(param)?,
    })
}

/// Adds an answer to the history. Several answers without a message of the user between them are
/// one turn.
fn answer(history: &mut Vec<Said>, pending: &mut Pending, text: String) {
    let user = std::mem::take(&mut pending.text).join("\n\n");
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

impl Pending {
    fn user(
        &mut self,
        content: Option<Content>,
        is_new: bool,
        param: &'static str,
    ) -> Result<(), ApiError> {
        let Some(content) = content else {
            return Err(ApiError::parameter(
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

    fn latest(self, param: &'static str) -> Result<Latest, ApiError> {
        match (self.parts.is_empty(), self.results.is_empty()) {
            (false, true) => Ok(Latest::Prompt(self.parts)),
            (true, false) => Ok(Latest::Results(self.results)),
            (true, true) => Err(ApiError::parameter(
                param,
                "the last message must be one of the user, or the result of a tool",
            )),
            (false, false) => Err(ApiError::parameter(
                param,
                "send the results of tools first, and the next message after the answer to them",
            )),
        }
    }
}
