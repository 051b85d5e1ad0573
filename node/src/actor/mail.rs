//! What is sent to an actor. Each asks for an answer where the sender waits for one.

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

/// Where an answer goes.
pub type Answer<T> = oneshot::Sender<T>;

pub enum Mail {
    /// A row came into the inbox.
    Arrived {
        arrival: NewInput,
        verdict: Answer<Verdict>,
        /// What brought it: a turn that it opens is traced as part of that.
        cause: Span,
    },
    /// A row left it unread.
    Withdrawn(InputId),
    /// Something may be in the inbox: look there. What says so stands for whoever says it again
    /// until this is read.
    Look(Arc<AtomicBool>),
    Command {
        command: Command,
        done: Answer<AgentState>,
    },
    Change {
        change: Change,
        done: Answer<Result<Changed, Refusal>>,
    },
    /// Other tools may be there than before.
    ToolsMayDiffer,
    /// It is to go on elsewhere, if nothing would be lost or done twice: whether it waits to be
    /// dropped.
    Leave(Answer<bool>),
    /// Its history is about to change: it pauses once what it decided is committed and published.
    Hold(Hold),
    Info(Answer<AgentInfo>),
    /// What it is, as it is now.
    Spec(Answer<AgentSpec>),
    Snapshot(Answer<(AgentInfo, Option<Running>)>),
}

/// A pause of an actor.
pub struct Hold {
    /// Says that it has begun.
    pub held: Answer<()>,
    /// Ends it when the other end is dropped.
    pub released: oneshot::Receiver<Infallible>,
}

/// What became of an arrival at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It opened a turn, joined one, or waits.
    Taken,
    /// Its sender wanted no waiting, and the agent is busy.
    Busy,
}

/// A change of what the agent is, which is recorded in its spec.
#[derive(Debug, Clone)]
pub enum Change {
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
