//! The messages to an actor. A message whose sender waits for an answer contains a channel for it.

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
    /// Delivers an input that was added to the inbox.
    Deliver {
        input: NewInput,
        outcome: AnswerSender<DeliveryOutcome>,
        /// The span that caused the input. The span of a turn that the input opens is a child of
        /// this span.
        cause: Span,
    },
    /// This unread input was withdrawn from the inbox.
    Withdrawn(InputId),
    /// Asks the agent to read its inbox. The flag is set while such a message is in the mailbox, so
    /// that no second one is sent.
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
    /// Asks the agent to leave the node unless leaving would lose or repeat work. If the answer is
    /// `true`, the agent does nothing more and waits to be dropped.
    Leave(AnswerSender<bool>),
    /// Asks the agent to pause once all its decisions are committed and published, because its
    /// history is about to change.
    Hold(ActorPause),
    Info(AnswerSender<AgentInfo>),
    /// Asks for the current spec.
    Spec(AnswerSender<AgentSpec>),
    Snapshot(AnswerSender<(AgentInfo, Option<Running>)>),
}

/// A request to pause an actor.
pub struct ActorPause {
    /// Signals the caller that the pause has begun.
    pub held: AnswerSender<()>,
    /// Ends the pause when the caller drops its sender.
    pub released: oneshot::Receiver<Infallible>,
}

/// The immediate result of delivering an input to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The input opened a turn, joined the open one, or was queued, or it stays in the inbox
    /// because the node has no permit.
    Taken,
    /// The agent is busy, and the input was not allowed to wait.
    Busy,
}

/// A change of an agent that is recorded in its spec.
#[derive(Debug, Clone)]
pub enum SpecChange {
    AddTool(String),
    RemoveTool(String),
    Model(ModelRef),
}

/// The agent's tools and model after a change.
#[derive(Debug, Clone)]
pub struct Changed {
    pub tools: Vec<String>,
    pub model: ModelRef,
}
