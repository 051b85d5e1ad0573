//! A request in a form common to all providers, and why a request is refused. Each provider's
//! module creates the request while it checks it in the provider's format, and puts a refusal into
//! the provider's error format.

use serde::Serialize;
use serde_json::Value;

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

/// A refusal. Each provider writes it in its own format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireRefusal {
    pub status: u16,
    pub kind: RefusalKind,
    pub message: String,
    /// The faulty field, for providers that name it separately.
    pub field: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    Invalid,
    /// Messages in an order that the model's template does not support.
    Order,
    Auth,
    NotFound,
    RateLimit,
    Overloaded,
    Internal,
}

impl WireRefusal {
    pub fn invalid(message: impl Into<String>) -> Self {
        Self {
            status: 400,
            kind: RefusalKind::Invalid,
            message: message.into(),
            field: None,
        }
    }

    pub fn at(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: Some(field.into()),
            ..Self::invalid(message)
        }
    }

    pub fn auth(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: RefusalKind::Auth,
            message: message.into(),
            field: None,
        }
    }

    /// Returns the refusal that a provider sends with the status that a script asks for.
    pub fn of_status(status: u16) -> Self {
        let (kind, message) = match status {
            401 | 403 => (RefusalKind::Auth, "invalid key"),
            404 => (RefusalKind::NotFound, "not found"),
            429 => (
                RefusalKind::RateLimit,
                "rate limit reached, please try again later",
            ),
            503 | 529 => (RefusalKind::Overloaded, "Overloaded"),
            500..=599 => (RefusalKind::Internal, "Internal server error"),
            _ => (RefusalKind::Invalid, "invalid request"),
        };
        Self {
            status,
            kind,
            message: message.to_owned(),
            field: None,
        }
    }
}

/// Checks that an object has only known fields. Fails with the name of the first unknown one.
pub fn only_fields<'a>(
    object: &'a serde_json::Map<String, Value>,
    known: &[&str],
) -> Result<(), &'a str> {
    object
        .keys()
        .find(|key| !known.contains(&key.as_str()))
        .map_or(Ok(()), |key| Err(key.as_str()))
}
