//! Scripts, which define the model's replies: rules matched in order, each with its replies. A
//! script is written as JSON or built in Rust.
//!
//! ```json
//! {"rules": [{"when": {"user": "folder"}, "replies": [[{"text": "Let me look."}, {"call": {"name": "bash", "args": {"command": "ls"}}}],
//!                                                     "There is: {{result:bash}}"]}]}
//! ```

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::request::{ModelRequest, RequestMessage};

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
    #[serde(deserialize_with = "written")]
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

/// The model's reply to one request.
#[derive(Debug, Clone, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Reply {
    pub parts: Vec<ScriptedPart>,
    /// Why the reply ends. Default: `tool_use` if there is a call, otherwise `end`.
    pub stop: Option<Stop>,
    /// The usage to report. By default it is estimated: four bytes count as one token.
    pub usage: Option<ScriptedUsage>,
    pub pace: Option<Pace>,
    pub fault: Option<ScriptedFault>,
    /// The delay before the head of the response, in milliseconds.
    pub delay_ms: u64,
    /// If set, the body is sent in pieces of 1 to 7 bytes. Their random lengths come from this
    /// seed.
    pub split: Option<u64>,
}

/// The ways to write a reply in JSON: a text, a list of parts, or an object with all fields.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Parts(Vec<ScriptedPart>),
    Whole(Reply),
}

fn written<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Reply>, D::Error> {
    let written = Vec::<Written>::deserialize(deserializer)?;
    Ok(written.into_iter().map(Reply::from).collect())
}

impl From<Written> for Reply {
    fn from(written: Written) -> Self {
        match written {
            Written::Text(text) => Self::text(text),
            Written::Parts(parts) => Self {
                parts,
                ..Self::default()
            },
            Written::Whole(reply) => reply,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptedPart {
    Text(Arc<str>),
    Thinking(Arc<str>),
    /// Thinking whose text is withheld (Anthropic, Responses).
    Redacted(Arc<str>),
    Call(ScriptedCall),
}

/// A tool call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    pub name: String,
    #[serde(default = "no_arguments")]
    pub args: Value,
    /// Sent instead of `args`, byte for byte, to imitate a model's faulty arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
    /// The id of the call. Default: a new one, or for Google none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

fn no_arguments() -> Value {
    Value::Object(serde_json::Map::new())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    End,
    ToolUse,
    Length,
    Refusal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptedUsage {
    /// All input tokens, including those from the cache.
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

/// How text is cut into deltas, and how fast they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pace {
    /// Events of the stream per second; 0 means as fast as the socket accepts them.
    pub per_second: f64,
    /// Characters per delta.
    pub chunk: usize,
    /// Whether each stream begins at another instant within the time between two events. Otherwise
    /// streams that are requested together send their events in the same millisecond.
    pub staggered: bool,
    /// The number of bytes up to which events are sent in one HTTP chunk if `per_second` is 0. With
    /// 1, each event is a chunk of its own, as providers send them.
    pub block: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            per_second: 0.0,
            chunk: 20,
            staggered: false,
            block: 16 * 1024,
        }
    }
}

/// A fault. `after` is the number of events of the stream that are sent before the fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ScriptedFault {
    /// A status instead of a stream. Without a body, the provider's own error is sent.
    Status {
        status: u16,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body: Option<String>,
        /// The value of `Retry-After`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after: Option<String>,
    },
    /// Status 200 with a web page.
    Html(String),
    /// No answer, not even a head, until the client gives up or the server stops.
    HangBeforeHead,
    Hang {
        after: usize,
    },
    /// The connection breaks.
    Cut {
        after: usize,
    },
    /// The body ends as if it were complete.
    End {
        after: usize,
    },
    /// The provider's own error event, then the end.
    Error {
        after: usize,
        #[serde(default = "overloaded")]
        message: String,
    },
}

fn overloaded() -> String {
    "Overloaded".to_owned()
}

impl ScriptedFault {
    pub fn status(status: u16) -> Self {
        Self::Status {
            status,
            body: None,
            retry_after: None,
        }
    }
}

impl Pace {
    pub fn per_second(per_second: f64) -> Self {
        Self {
            per_second,
            ..Self::default()
        }
    }

    pub fn chunk(mut self, characters: usize) -> Self {
        self.chunk = characters;
        self
    }

    pub fn block(mut self, bytes: usize) -> Self {
        self.block = bytes;
        self
    }

    pub fn staggered(mut self) -> Self {
        self.staggered = true;
        self
    }

    /// Returns how long a stream waits before its first event: up to the time between two events if
    /// streams are staggered and have a rate, otherwise not at all.
    pub(crate) fn offset(self) -> Duration {
        if self.staggered && self.per_second > 0.0 {
            Duration::from_secs_f64(fastrand::f64() / self.per_second)
        } else {
            Duration::ZERO
        }
    }
}

impl ScriptedCall {
    pub fn new(name: &str, args: Value) -> Self {
        Self {
            name: name.to_owned(),
            args,
            raw: None,
            id: None,
        }
    }

    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }

    pub fn raw(mut self, raw: &str) -> Self {
        self.raw = Some(raw.to_owned());
        self
    }
}

impl Reply {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::new().say(text)
    }

    pub fn call(name: &str, args: Value) -> Self {
        Self::new().and_call(name, args)
    }

    pub fn fault(fault: ScriptedFault) -> Self {
        Self::new().with_fault(fault)
    }

    pub fn say(self, text: impl Into<Arc<str>>) -> Self {
        self.part(ScriptedPart::Text(text.into()))
    }

    pub fn think(self, text: impl Into<Arc<str>>) -> Self {
        self.part(ScriptedPart::Thinking(text.into()))
    }

    pub fn and_call(self, name: &str, args: Value) -> Self {
        self.part(ScriptedPart::Call(ScriptedCall::new(name, args)))
    }

    pub fn part(mut self, part: ScriptedPart) -> Self {
        self.parts.push(part);
        self
    }

    pub fn stop(mut self, stop: Stop) -> Self {
        self.stop = Some(stop);
        self
    }

    pub fn usage(mut self, usage: ScriptedUsage) -> Self {
        self.usage = Some(usage);
        self
    }

    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = Some(pace);
        self
    }

    pub fn with_fault(mut self, fault: ScriptedFault) -> Self {
        self.fault = Some(fault);
        self
    }

    pub fn delay_ms(mut self, delay_ms: u64) -> Self {
        self.delay_ms = delay_ms;
        self
    }

    pub fn split(mut self, seed: u64) -> Self {
        self.split = Some(seed);
        self
    }

    /// Returns why the reply ends: the reason in the script, or else the default.
    pub(crate) fn ending(&self) -> Stop {
        let calls = self
            .parts
            .iter()
            .any(|part| matches!(part, ScriptedPart::Call(_)));
        self.stop
            .unwrap_or(if calls { Stop::ToolUse } else { Stop::End })
    }
}

impl From<&str> for Reply {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}
