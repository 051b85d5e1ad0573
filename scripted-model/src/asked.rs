//! A request as every provider means it, once its wire form has been found sound.

use serde::Serialize;

/// What a client asked of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct Asked {
    pub model: String,
    pub system: String,
    pub said: Vec<Said>,
    /// Names, as sent.
    pub tools: Vec<String>,
    pub stream: bool,
    /// The stream is to say what it cost (OpenAI; others always do).
    pub include_usage: bool,
    /// Reasoning is to come with its ciphertext (Responses).
    pub wants_ciphertext: bool,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Said {
    User(String),
    Model { text: String, calls: Vec<Called> },
    Results(Vec<Returned>),
}

/// A tool call the model made before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Called {
    pub id: String,
    pub name: String,
}

/// What a tool returned.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Returned {
    pub id: String,
    pub name: String,
    pub text: String,
}

impl Asked {
    /// The latest user text, or nothing.
    pub fn last_user(&self) -> &str {
        let user = |said: &'_ Said| matches!(said, Said::User(_));
        match self.said.iter().rev().find(|said| user(said)) {
            Some(Said::User(text)) => text,
            Some(Said::Model { .. } | Said::Results(_)) | None => "",
        }
    }

    /// The results that came last, if a user said nothing since.
    pub fn last_results(&self) -> &[Returned] {
        match self.said.last() {
            Some(Said::Results(results)) => results,
            Some(Said::Model { .. } | Said::User(_)) | None => &[],
        }
    }

    /// The latest result of a tool, however long ago.
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

    /// How many answers the model has given since the latest user message.
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

    /// The tool that a call id belongs to.
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
