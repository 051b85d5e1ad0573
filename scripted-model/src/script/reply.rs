//! One reply: its parts in order, its end, its pace and its faults.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

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

pub(super) fn written<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Reply>, D::Error> {
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
