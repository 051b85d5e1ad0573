//! Selects the requests that a rule answers.

use serde::{Deserialize, Serialize};

use crate::request::{ModelRequest, RequestMessage};

/// Conditions on a request. Every field that is set must hold. Texts are searched for verbatim and
/// case-sensitively.
#[derive(Debug, Clone, Serialize, Deserialize, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    pub model: Option<String>,
    /// A text in the system prompt.
    pub system: Option<String>,
    /// A text in the latest message, which is a user's message or the results of tools.
    pub last: Option<String>,
    /// A text in the latest user message, even if other messages follow it.
    pub user: Option<String>,
    /// Texts of which each is in some user message or result.
    pub anywhere: Vec<String>,
    /// A text in one of the results in the latest message.
    pub result: Option<String>,
    /// A tool that returned one of the results in the latest message.
    pub result_of: Option<String>,
    /// The number of answers that the model has given since the latest user message.
    pub round: Option<usize>,
    /// A tool that the request offers.
    pub tool: Option<String>,
}

impl When {
    pub fn any() -> Self {
        Self::default()
    }

    pub fn model(mut self, name: &str) -> Self {
        self.model = Some(name.to_owned());
        self
    }

    pub fn system(mut self, text: &str) -> Self {
        self.system = Some(text.to_owned());
        self
    }

    pub fn last(mut self, text: &str) -> Self {
        self.last = Some(text.to_owned());
        self
    }

    pub fn user(mut self, text: &str) -> Self {
        self.user = Some(text.to_owned());
        self
    }

    pub fn anywhere(mut self, text: &str) -> Self {
        self.anywhere.push(text.to_owned());
        self
    }

    pub fn result(mut self, text: &str) -> Self {
        self.result = Some(text.to_owned());
        self
    }

    pub fn result_of(mut self, tool: &str) -> Self {
        self.result_of = Some(tool.to_owned());
        self
    }

    pub fn round(mut self, round: usize) -> Self {
        self.round = Some(round);
        self
    }

    pub fn tool(mut self, tool: &str) -> Self {
        self.tool = Some(tool.to_owned());
        self
    }

    pub(crate) fn matches(&self, asked: &ModelRequest) -> bool {
        holds(&self.model, |model| asked.model == model)
            && holds(&self.system, |text| asked.system.contains(text))
            && holds(&self.last, |text| {
                asked
                    .messages
                    .last()
                    .is_some_and(|said| said.contains(text))
            })
            && holds(&self.user, |text| asked.last_user().contains(text))
            && self.anywhere.iter().all(|text| heard(asked, text))
            && holds(&self.result, |text| {
                asked
                    .last_results()
                    .iter()
                    .any(|result| result.text.contains(text))
            })
            && holds(&self.result_of, |tool| {
                asked
                    .last_results()
                    .iter()
                    .any(|result| result.name == tool)
            })
            && holds(&self.tool, |tool| {
                asked.tools.iter().any(|name| name == tool)
            })
            && self.round.is_none_or(|round| asked.round() == round)
    }
}

fn holds(field: &Option<String>, test: impl FnOnce(&str) -> bool) -> bool {
    field.as_deref().is_none_or(test)
}

fn heard(asked: &ModelRequest, text: &str) -> bool {
    asked
        .messages
        .iter()
        .any(|said| !matches!(said, RequestMessage::Model { .. }) && said.contains(text))
}
