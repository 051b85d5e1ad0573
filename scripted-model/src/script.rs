//! Scripts, which define the model's replies: rules matched in order, each with its replies. A
//! script is written as JSON or built in Rust.
//!
//! ```json
//! {"rules": [{"when": {"user": "folder"}, "replies": [[{"text": "Let me look."}, {"call": {"name": "bash", "args": {"command": "ls"}}}],
//!                                                     "There is: {{result:bash}}"]}]}
//! ```

mod reply;
mod when;

use serde::{Deserialize, Serialize};

pub use reply::{Pace, Reply, ScriptedCall, ScriptedFault, ScriptedPart, ScriptedUsage, Stop};
pub use when::When;

/// A whole script. The first rule that matches a request, and may still be used, answers the
/// request.
#[derive(Debug, Clone, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    pub rules: Vec<Rule>,
    pub otherwise: Otherwise,
    pub auth: Auth,
    /// How many requests are kept for inspection. Older ones are dropped.
    pub keep: Keep,
    /// The pace of replies without a pace of their own.
    pub pace: Pace,
}

/// The reply to a request that no rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Otherwise {
    /// The latest text of the user.
    #[default]
    Echo,
    /// Status 400 with a description of the request.
    Refuse,
}

/// Which keys are accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Auth {
    /// Any key. A provider that requires a key still requires one.
    #[default]
    Present,
    /// Only this key, which clients must then send even in the formats of local servers (Ollama,
    /// llama.cpp).
    Key(String),
    /// No key is required.
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Keep(pub usize);

impl Default for Keep {
    fn default() -> Self {
        Self(10_000)
    }
}

/// The replies to the requests that match `when`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    #[serde(default)]
    pub when: When,
    /// The replies by round of the turn. The last reply also answers all later rounds.
    #[serde(deserialize_with = "reply::written")]
    pub replies: Vec<Reply>,
    /// How often the rule may be used. After that, the next rule that matches answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
}

impl Script {
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the JSON form.
    pub fn parse(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    /// Adds a rule that answers requests that match `when`.
    pub fn rule(mut self, when: When, reply: impl Into<Reply>) -> Self {
        self.rules.push(Rule {
            when,
            replies: vec![reply.into()],
            times: None,
        });
        self
    }

    /// Adds a rule with a reply for each round of a turn.
    pub fn rounds<R: Into<Reply>>(
        mut self,
        when: When,
        replies: impl IntoIterator<Item = R>,
    ) -> Self {
        self.rules.push(Rule {
            when,
            replies: replies.into_iter().map(Into::into).collect(),
            times: None,
        });
        self
    }

    /// Adds a rule that applies to at most `times` requests.
    pub fn limited(mut self, times: u32, when: When, reply: impl Into<Reply>) -> Self {
        self.rules.push(Rule {
            when,
            replies: vec![reply.into()],
            times: Some(times),
        });
        self
    }

    /// Adds a rule that answers every request that no earlier rule answers.
    pub fn always(self, reply: impl Into<Reply>) -> Self {
        self.rule(When::any(), reply)
    }

    pub fn key(mut self, key: &str) -> Self {
        self.auth = Auth::Key(key.to_owned());
        self
    }

    pub fn without_auth(mut self) -> Self {
        self.auth = Auth::Off;
        self
    }

    pub fn refuse_otherwise(mut self) -> Self {
        self.otherwise = Otherwise::Refuse;
        self
    }

    pub fn keep(mut self, requests: usize) -> Self {
        self.keep = Keep(requests);
        self
    }

    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }
}
