//! What can happen to an agent.

use std::{sync::Arc, time::Duration};

use planck_common::{
    InputId, Seq,
    event::{Event, Warning},
    spec::ModelRef,
    usage::Usage,
};

use super::{NewInput, Ticket};
use crate::model::{Chunk, Failure, Finish, ModelCard, ToolSpec};

/// One thing that happened. Every input but [`Input::Arrived`] and [`Input::Command`] answers an
/// effect.
#[derive(Debug, Clone)]
pub enum Input {
    /// A row came into the inbox. The same row may arrive again.
    Arrived(NewInput),
    /// A row left the inbox unread: its sender withdrew it.
    Withdrawn(InputId),
    Command(Command),
    /// A [`super::Save`] is committed.
    Saved(Saved),
    /// A save was refused because inputs it consumes are gone; nothing of it was written.
    Gone {
        save: Ticket,
        inputs: Vec<InputId>,
    },
    /// A piece of the reply.
    Chunks {
        ticket: Ticket,
        chunks: Vec<Chunk>,
    },
    /// The reply's end. `jitter` is a random number in 0..1, for the back-off.
    Answered {
        ticket: Ticket,
        result: Result<Finish, Failure>,
        jitter: f64,
    },
    ToolProgress {
        ticket: Ticket,
        message: String,
        percent: Option<f64>,
    },
    ToolDone {
        ticket: Ticket,
        outcome: crate::outcome::Outcome,
        elapsed: Duration,
    },
    /// A [`super::Effect::Wait`] is over.
    Waited(Ticket),
    Compacted {
        ticket: Ticket,
        result: CompactionResult,
    },
}

/// Where a save stands in the log now.
#[derive(Debug, Clone, PartialEq)]
pub struct Saved {
    pub save: Ticket,
    /// One for each entry, in order.
    pub seqs: Vec<Seq>,
    /// The session's totals with this save in them.
    pub session: Usage,
}

/// What a compactor came to.
#[derive(Debug, Clone)]
pub enum CompactionResult {
    /// A summary of everything before `keep_from`, with what making it consumed.
    Summary {
        text: String,
        keep_from: Seq,
        by: String,
        usage: Usage,
    },
    Skipped,
    Failed(String),
}

/// What somebody wants of the agent itself.
#[derive(Debug, Clone)]
pub enum Command {
    /// End the running turn, keep what there is, go on with the inbox.
    Abort { reason: Option<String> },
    /// End the running turn, give unread inputs their outcome, and end. An agent of a session that
    /// closes comes back with it; one that is stopped `for_good` does not.
    Stop {
        reason: String,
        for_good: bool,
        /// The last its log is told.
        last: Vec<Event>,
    },
    /// Run a turn on the history as it is.
    Nudge,
    /// Start afresh from a summary.
    Checkpoint { summary: String },
    /// The toolbox changed. `named` are the spec's tools, there or not.
    Tools {
        added: Vec<String>,
        removed: Vec<String>,
        tools: Arc<[ToolSpec]>,
        named: Vec<String>,
    },
    Model {
        model: ModelRef,
        card: ModelCard,
        /// What whoever changed it should know.
        warning: Option<Warning>,
    },
    /// Something for the log that needs no decision: `worker_exit`, `session_started`, `warning`, …
    Record(Event),
}
