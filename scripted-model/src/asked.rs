//! A request in a form common to all providers. It is created after the request in the provider's
//! format has been checked.

use serde::Serialize;

/// A client's request to the model.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct Asked {
    pub model: String,
    pub system: String,
    pub said: Vec<Said>,
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
pub enum Said {
    User(String),
    Model { text: String, calls: Vec<Called> },
    Results(Vec<Returned>),
}

/// A tool call that the model made before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Called {
    pub id: String,
    pub name: String,
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Returned {
    pub id: String,
    pub name: String,
    pub text: String,
}

impl Asked {
    /// Returns the latest text of the user, or an empty text.
    pub fn last_user(&self) -> &str {
        let user = |said: &'_ Said| matches!(said, Said::User(_));
        match self.said.iter().rev().find(|said| user(said)) {
            Some(Said::User(text)) => text,
            Some(Said::Model { .. } | Said::Results(_)) | None => "",
        }
    }

    /// Returns the results in the last message, if the last message has results.
    pub fn last_results(&self) -> &[Returned] {
        match self.said.last() {
            Some(Said::Results(results)) => results,
            Some(Said::Model { .. } | Said::User(_)) | None => &[],
        }
    }

    /// Returns the latest result of a tool in any message, or `None` if the tool was not called.
    pub fn result_of(&self, tool: &str) -> Option<&str> {
        let results = self.said.iter().rev().filter_map(|said| match said {
            Said::Results(results) => Some(results),
            Said::User(_) | Said::Model { .. } => None,
        });
        results
            .flatten()
            .find(|result| result.name == tool)
            .map(|result| result.text.as_str())
    }

    /// Returns the number of answers that the model has given since the latest user message.
    pub fn round(&self) -> usize {
        let since = self
            .said
            .iter()
            .rev()
            .take_while(|said| !matches!(said, Said::User(_)));
        since
            .filter(|said| matches!(said, Said::Model { .. }))
            .count()
    }

    /// Returns the name of the tool that was called with this id, or `None` if no earlier call has
    /// it.
    pub(crate) fn name_of_call(&self, id: &str) -> Option<&str> {
        let calls = self.said.iter().rev().filter_map(|said| match said {
            Said::Model { calls, .. } => Some(calls),
            Said::User(_) | Said::Results(_) => None,
        });
        calls
            .flatten()
            .find(|call| call.id == id)
            .map(|call| call.name.as_str())
    }
}

impl Said {
    pub(crate) fn contains(&self, needle: &str) -> bool {
        match self {
            Self::User(text) | Self::Model { text, .. } => text.contains(needle),
            Self::Results(results) => results.iter().any(|result| result.text.contains(needle)),
        }
    }
}
