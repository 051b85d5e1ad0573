//! The inputs of an agent's step.

use std::{sync::Arc, time::Duration};

use planck_common::{
    CallId, InputId, Seq,
    event::{Event, Warning},
    spec::ModelRef,
    usage::Usage,
    wait::WaitAnswer,
};

use super::{ArgumentCheck, NewInput, Ticket};
use crate::model::{Chunk, Failure, Finish, ModelCard, ToolSpec};

/// An input of a step. Every input except [`Input::Delivered`], [`Input::Withdrawn`],
/// [`Input::Decided`] and [`Input::Command`] belongs to an effect, which its ticket identifies.
#[derive(Debug, Clone)]
pub enum Input {
    /// A row was added to the inbox. The same row may be delivered more than once.
    Delivered(NewInput),
    /// The sender of an unread row withdrew it.
    Withdrawn(InputId),
    Command(Command),
    /// A [`super::Save`] is committed.
    Saved(Saved),
    /// A save was refused because inputs that it consumes or ends are gone. Nothing of the save was
    /// written.
    Gone {
        save: Ticket,
        inputs: Vec<InputId>,
    },
    /// Pieces of the model's reply.
    Chunks {
        ticket: Ticket,
        chunks: Vec<Chunk>,
    },
    /// The end of the model's reply. `jitter` is a random number in 0..1, for the back-off.
    Answered {
        ticket: Ticket,
        /// The last pieces of the reply.
        chunks: Vec<Chunk>,
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
        outcome: crate::outcome::ToolOutcome,
        elapsed: Duration,
    },
    /// A person or a client answered the wait of a call, or the wait expired.
    Decided {
        wait: CallId,
        answer: WaitAnswer,
    },
    /// A [`super::Effect::StartTimer`] has ended.
    TimerEnded(Ticket),
    Compacted {
        ticket: Ticket,
        result: CompactionResult,
    },
}

/// The place of a committed save in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Saved {
    pub save: Ticket,
    /// The row number of each entry, in order.
    pub seqs: Vec<Seq>,
    /// The session's totals, including this save.
    pub session: Usage,
}

/// The result of a compaction.
#[derive(Debug, Clone)]
pub enum CompactionResult {
    /// A summary of all messages before `keep_from`. `by` names the compactor, and `usage` is what
    /// the summary cost.
    Summary {
        text: String,
        keep_from: Seq,
        by: String,
        usage: Usage,
    },
    Skipped,
    Failed(String),
}

/// A command to the agent itself.
#[derive(Debug, Clone)]
pub enum Command {
    /// End the running turn, keep the answer so far, and continue with the inbox.
    Abort { reason: Option<String> },
    /// End the running turn, give unread inputs their outcome, and end the agent. Unless the stop
    /// is `for_good`, the agent is started again when its session is opened again.
    Stop {
        reason: String,
        for_good: bool,
        /// Events to write as the last rows of the agent.
        last: Vec<Event>,
    },
    /// Open a turn without new inputs, unless the agent is working or its history is empty.
    Nudge,
    /// Start the context again from a summary, after the running turn.
    Checkpoint { summary: String },
    /// Replace the tools. `named` lists the tools of the agent's specification, whether they exist
    /// or not.
    Tools {
        added: Vec<String>,
        removed: Vec<String>,
        tools: Arc<[ToolSpec]>,
        arguments: Arc<dyn ArgumentCheck>,
        named: Vec<String>,
    },
    Model {
        model: ModelRef,
        card: ModelCard,
        /// A warning about the new model, for the log.
        warning: Option<Warning>,
    },
    /// Save or publish an event that needs no decision: `worker_exit`, `session_started`,
    /// `warning`, …
    Record(Event),
}
