//! The data that passes between the agent loop and a model, independent of the provider.

use std::{fmt, sync::Arc, time::Duration};

use planck_common::{event::ToolEffect, message::StopReason, usage::Usage, wait::WaitKind};
use serde_json::value::RawValue;

/// A tool as a model sees it.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, an object schema.
    pub parameters: Arc<RawValue>,
    pub effect: ToolEffect,
    /// The sidecar that offers the tool; `None` for a tool of the node.
    pub sidecar: Option<Arc<str>>,
    /// The kind of wait with which a call is answered from outside. `None` for a tool that the node
    /// or a sidecar runs.
    pub wait: Option<WaitKind>,
    /// Whether an agent that has [`TOOL_SEARCH`](crate::search::TOOL_SEARCH) lists the tool only
    /// after it was found. True for tools that do not come with the node.
    pub is_searched: bool,
}

impl PartialEq for ToolSpec {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            name,
            description,
            parameters,
            effect,
            sidecar,
            wait,
            is_searched,
        } = self;
        *name == other.name
            && *description == other.description
            && parameters.get() == other.parameters.get()
            && *effect == other.effect
            && *sidecar == other.sidecar
            && *wait == other.wait
            && *is_searched == other.is_searched
    }
}

/// A piece of a streamed reply. `part` is the index of the content part to which the piece belongs.
/// Parts are numbered from 0 in the order in which the provider began them, and the chunks of a
/// part come in order.
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
    /// The provider's opaque token for a part, complete in one chunk.
    Signature {
        part: usize,
        signature: String,
    },
    /// The ciphertext of a thinking part whose text the provider withholds.
    Redacted {
        part: usize,
        data: String,
    },
    /// The start of a tool call. `id` may be empty or a duplicate, because some providers send such
    /// ids. If a server sends the id or the name late, a second chunk with both follows for the same
    /// part, and replaces the first.
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

impl Chunk {
    /// Returns the index of the part that the chunk belongs to.
    pub fn part(&self) -> usize {
        match self {
            Self::Text { part, .. }
            | Self::Thinking { part, .. }
            | Self::Signature { part, .. }
            | Self::Redacted { part, .. }
            | Self::Call { part, .. }
            | Self::Args { part, .. } => *part,
        }
    }

    /// Returns the number of bytes that the chunk adds to the reply.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text { text, .. } | Self::Thinking { text, .. } => text.len(),
            Self::Signature { signature, .. } => signature.len(),
            Self::Redacted { data, .. } => data.len(),
            Self::Call { id, name, .. } => id.len() + name.len(),
            Self::Args { json, .. } => json.len(),
        }
    }
}

/// How a complete reply ended. If `cost_usd` of the usage is 0 and the model's prices are known,
/// the loop computes the cost.
#[derive(Clone, PartialEq)]
pub struct Finish {
    pub stop: StopReason,
    pub usage: Usage,
    /// The ways in which the server deviated from its wire format although the answer could be
    /// read. These texts are shown to users.
    pub deviations: Vec<&'static str>,
    /// The response's id and model, for traces.
    pub names: Names,
}

/// The id and the model that the server reports for a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub id: Option<String>,
    pub model: Option<String>,
}

impl Names {
    /// The maximum length of the id and of the model in bytes, each as JSON with its quotes. Longer
    /// ones are ignored, because the server chooses both.
    const LONGEST: usize = 256;

    /// Stores the first id and the first model of a response, because every chunk of a stream may
    /// repeat them.
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

/// Leaves out the response id and the model if the server sent neither, as in most test replies.
impl fmt::Debug for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            stop,
            usage,
            deviations,
            names,
        } = self;
        let mut shown = f.debug_struct("Finish");
        shown
            .field("stop", stop)
            .field("usage", usage)
            .field("deviations", deviations);
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
            deviations: Vec::new(),
            names: Names::default(),
        }
    }
}

/// The reason why a model call got no complete reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: FailureKind,
    /// A text that names the provider, what happened, and what the user can do about it. The text
    /// never contains a key, but may quote the server's response.
    pub message: String,
    /// The text for other agents if the message quotes the server's response, which could contain
    /// secrets of an internal service, or instructions. `None` if the message quotes nothing; other
    /// agents may then read the message.
    pub public: Option<String>,
    /// The wait that the provider asked for.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// Creates a failure whose whole message other agents may read.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            public: None,
            retry_after: None,
        }
    }

    /// Returns the text that the model of another agent may read.
    pub fn for_agents(&self) -> &str {
        self.public.as_deref().unwrap_or(&self.message)
    }
}

/// The kinds of failure that the agent handles differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// A connection failure, a time-out, an overload, a broken stream, or a status such as 408, 429
    /// or 5xx. The same request may succeed later.
    Transient,
    /// The prompt does not fit. The agent compacts its history, if that can help, and tries again
    /// once.
    ContextFull,
    /// The key is missing or refused.
    Auth,
    /// Any other refusal. Trying again does not help.
    Refused,
    /// The answer was over the limit on its size, its calls or its duration. Another try would cost
    /// the same.
    AnswerLimit,
}

impl FailureKind {
    /// Returns the name of the kind in traces and metrics.
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

/// The properties of a model, from the catalogue or the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCard {
    pub context_window: u64,
    pub max_output: u64,
    pub prices: Option<planck_common::command::Prices>,
    pub retry: RetryRules,
}

/// How often a failed request is tried, and how long the agent waits between two tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryRules {
    /// The maximum number of requests, including the first.
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
