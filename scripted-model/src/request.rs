//! A request in a form common to all providers. Each provider's module creates it while it checks
//! the request in the provider's format.

use serde::Serialize;

/// A client's request to the model.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct ModelRequest {
    pub model: String,
    pub system: String,
    #[serde(rename = "said")]
    pub messages: Vec<RequestMessage>,
    /// The names of the tools, as sent.
    pub tools: Vec<String>,
    pub stream: bool,
    /// Whether the stream must report its usage (OpenAI; other providers always report it).
    pub include_usage: bool,
    /// Whether the response must include the encrypted reasoning (Responses API).
    pub wants_ciphertext: bool,
}

/// A message of the conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum RequestMessage {
    User(String),
    Model { text: String, calls: Vec<ToolCall> },
    Results(Vec<ToolResult>),
}

/// A tool call that the model made before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolResult {
    pub id: String,
    pub name: String,
    pub text: String,
}

impl ModelRequest {
    /// Adds a result to the last message if it holds results, and otherwise to a new message.
    pub(crate) fn push_result(&mut self, result: ToolResult) {
        match self.messages.last_mut() {
            Some(RequestMessage::Results(results)) => results.push(result),
            Some(RequestMessage::User(_) | RequestMessage::Model { .. }) | None => {
                self.messages.push(RequestMessage::Results(vec![result]));
            }
        }
    }

    /// Returns the latest text of the user, or an empty text.
    pub fn last_user(&self) -> &str {
        let user = |message: &'_ RequestMessage| matches!(message, RequestMessage::User(_));
        match self.messages.iter().rev().find(|message| user(message)) {
            Some(RequestMessage::User(text)) => text,
            Some(RequestMessage::Model { .. } | RequestMessage::Results(_)) | None => "",
        }
    }

    /// Returns the results in the last message, if the last message has results.
    pub fn last_results(&self) -> &[ToolResult] {
        match self.messages.last() {
            Some(RequestMessage::Results(results)) => results,
            Some(RequestMessage::Model { .. } | RequestMessage::User(_)) | None => &[],
        }
    }

    /// Returns a tool's result from the latest message that has one, the first if there are
    /// several. Returns `None` if no message has a result of the tool.
    pub fn result_of(&self, tool: &str) -> Option<&str> {
        let results = self
            .messages
            .iter()
            .rev()
            .filter_map(|message| match message {
                RequestMessage::Results(results) => Some(results),
                RequestMessage::User(_) | RequestMessage::Model { .. } => None,
            });
        results
            .flatten()
            .find(|result| result.name == tool)
            .map(|result| result.text.as_str())
    }

    /// Returns the number of answers that the model has given since the latest user message.
    pub fn round(&self) -> usize {
        let since = self
            .messages
            .iter()
            .rev()
            .take_while(|message| !matches!(message, RequestMessage::User(_)));
        since
            .filter(|message| matches!(message, RequestMessage::Model { .. }))
            .count()
    }

    /// Returns the name of the tool that was called with this id, or `None` if no earlier call has
    /// it.
    pub(crate) fn name_of_call(&self, id: &str) -> Option<&str> {
        let calls = self
            .messages
            .iter()
            .rev()
            .filter_map(|message| match message {
                RequestMessage::Model { calls, .. } => Some(calls),
                RequestMessage::User(_) | RequestMessage::Results(_) => None,
            });
        calls
            .flatten()
            .find(|call| call.id == id)
            .map(|call| call.name.as_str())
    }
}

impl RequestMessage {
    pub(crate) fn contains(&self, needle: &str) -> bool {
        match self {
            Self::User(text) | Self::Model { text, .. } => text.contains(needle),
            Self::Results(results) => results.iter().any(|result| result.text.contains(needle)),
        }
    }
}
