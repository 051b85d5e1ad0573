//! What passes between the agent loop and a model, whatever the provider. Pure data.

use std::{fmt, sync::Arc, time::Duration};

use planck_common::{event::Effect, message::StopReason, usage::Usage};
use serde_json::value::RawValue;

/// A tool as a model sees it.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, an object schema.
    pub parameters: Arc<RawValue>,
    pub effect: Effect,
}

impl PartialEq for ToolSpec {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            name,
            description,
            parameters,
            effect,
        } = self;
        *name == other.name
            && *description == other.description
            && parameters.get() == other.parameters.get()
            && *effect == other.effect
    }
}

/// A piece of a streamed reply. `part` is the index of the content part it belongs to; parts are
/// numbered from 0 in the order in which the provider began them, and a part's chunks come in
/// order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    Text {
        part: usize,
        text: String,
    },
    Thinking {
        part: usize,
        text: String,
    },
    /// The provider's opaque token for a part, whole.
    Signature {
        part: usize,
        signature: String,
    },
    /// A thinking part whose text is withheld: its ciphertext.
    Redacted {
        part: usize,
        data: String,
    },
    /// Begins a tool call. `id` may be empty or doubled: providers do that.
    Call {
        part: usize,
        id: String,
        name: String,
    },
    /// A fragment of a call's arguments as JSON text.
    Args {
        part: usize,
        json: String,
    },
}

/// How a reply ended that did end. `cost_usd` of the usage is filled in from the catalogue.
#[derive(Clone, PartialEq)]
pub struct Finish {
    pub stop: StopReason,
    pub usage: Usage,
    /// How the server deviated from its wire format where the answer could be read all the same.
    /// For people.
    pub salvaged: Vec<&'static str>,
    /// For traces.
    pub names: Names,
}

/// What a server calls its reply, and the model that it says has answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub id: Option<String>,
    pub model: Option<String>,
}

impl Names {
    /// The longest one, in bytes: they are the server's words.
    const LONGEST: usize = 256;

    /// Takes what is not known yet; every piece of a stream may say it.
    pub fn note(&mut self, id: Option<&RawValue>, model: Option<&RawValue>) {
        let read = |raw: &RawValue| {
            serde_json::from_str::<String>(raw.get())
                .ok()
                .filter(|text| !text.is_empty())
        };
        let fits = |raw: &&RawValue| raw.get().len() <= Self::LONGEST;
        if self.id.is_none() {
            self.id = id.filter(fits).and_then(read);
        }
        if self.model.is_none() {
            self.model = model.filter(fits).and_then(read);
        }
    }
}

/// Without the names where the server gave none, as most replies that are looked at in tests do.
impl fmt::Debug for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            stop,
            usage,
            salvaged,
            names,
        } = self;
        let mut shown = f.debug_struct("Finish");
        shown
            .field("stop", stop)
            .field("usage", usage)
            .field("salvaged", salvaged);
        if *names != Names::default() {
            shown.field("names", names);
        }
        shown.finish()
    }
}

impl Finish {
    pub fn new(stop: StopReason, usage: Usage) -> Self {
        Self {
            stop,
            usage,
            salvaged: Vec::new(),
            names: Names::default(),
        }
    }
}

/// Why there is no whole reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: FailureKind,
    /// Names the provider, what happened, and the way out where there is one. Never a key. It may
    /// repeat the server's words.
    pub message: String,
    /// What other agents may read, where the message repeats words of the server: those could be an
    /// internal service's secrets, or instructions. `None`: all of the message is ours.
    pub public: Option<String>,
    /// What the provider asked to wait.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// What another agent's model may read of it.
    pub fn for_agents(&self) -> &str {
        self.public.as_deref().unwrap_or(&self.message)
    }
}

/// What the agent does differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Connection, time-out, 408, 429, 5xx, overload, a broken stream: the same request may succeed
    /// later.
    Transient,
    /// The prompt does not fit: compact, then try again.
    ContextFull,
    /// The key is missing or refused.
    Auth,
    /// Any other refusal; trying again is no use.
    Refused,
    /// The answer was over a bound on its size, its calls or its duration; another try would cost
    /// the same.
    AnswerLimit,
}

impl FailureKind {
    /// For traces and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::ContextFull => "context_full",
            Self::Auth => "auth",
            Self::Refused => "refused",
            Self::AnswerLimit => "answer_limit",
        }
    }
}

/// What the catalogue knows of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCard {
    pub context_window: u64,
    pub max_output: u64,
    pub prices: Option<planck_common::command::Prices>,
    pub retry: RetryRules,
}

/// How often a failed request is tried, and how long is waited in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryRules {
    /// Requests in all, the first one counted.
    pub tries: u32,
    pub base: Duration,
    pub cap: Duration,
}

impl Default for RetryRules {
    fn default() -> Self {
        Self {
            tries: 5,
            base: Duration::from_secs(1),
            cap: Duration::from_secs(60),
        }
    }
}
