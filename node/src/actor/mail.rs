//! The messages to an actor. Each one whose sender waits carries a channel for the answer.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::AtomicBool},
};

use planck_common::{
    InputId,
    command::{AgentInfo, AgentState, Running},
    reply::Refusal,
    spec::{AgentSpec, ModelRef},
};
use tokio::sync::oneshot;
use tracing::Span;

use crate::agent::{Command, NewInput};

/// The channel for an answer.
pub type AnswerSender<T> = oneshot::Sender<T>;

pub enum Mail {
    /// A row was added to the inbox.
    Arrived {
        arrival: NewInput,
        outcome: AnswerSender<ArrivalOutcome>,
        /// The span that caused the input. A turn that the input opens becomes its child.
        cause: Span,
    },
    /// A row was removed from the inbox unread.
    Withdrawn(InputId),
    /// Check the inbox. The flag coalesces requests: while it is set, further requests are dropped.
    Look(Arc<AtomicBool>),
    Command {
        command: Command,
        done: AnswerSender<AgentState>,
    },
    Change {
        change: SpecChange,
        done: AnswerSender<Result<Changed, Refusal>>,
    },
    /// The available tools may have changed.
    ToolsMayDiffer,
    /// Leave the node, unless work would be lost or repeated. The answer is whether the agent now
    /// waits to be dropped.
    Leave(AnswerSender<bool>),
    /// Pause once all decisions are committed and published, because the history is about to
    /// change.
    Hold(ActorPause),
    Info(AnswerSender<AgentInfo>),
    /// Return the current spec.
    Spec(AnswerSender<AgentSpec>),
    Snapshot(AnswerSender<(AgentInfo, Option<Running>)>),
}

/// A pause of an actor.
pub struct ActorPause {
    /// Signals that the pause has begun.
    pub held: AnswerSender<()>,
    /// Ends the pause when the other end is dropped.
    pub released: oneshot::Receiver<Infallible>,
}

/// The immediate result of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivalOutcome {
    /// The input opened a turn, joined one, or waits.
    Taken,
    /// The sender did not want to wait, and the agent is busy.
    Busy,
}

/// A change of an agent that is recorded in its spec.
#[derive(Debug, Clone)]
pub enum SpecChange {
    AddTool(String),
    RemoveTool(String),
    Model(ModelRef),
}

/// The agent after a change.
#[derive(Debug, Clone)]
pub struct Changed {
    pub tools: Vec<String>,
    pub model: ModelRef,
}
