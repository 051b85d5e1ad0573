//! The turns with which an agent answers a prompt, as a sequence of parts.
//!
//! The raw events of a session say what happened, and leave to their reader which of them belong to
//! an answer, which pieces of text are void because a reply was made again, and when the work on a
//! prompt is over. [`Turn`] decides this: [`Client::follow_prompt`](crate::Client::follow_prompt)
//! opens one. [`TurnReader`] does the same without I/O, and [`StepReader`] reads the replies of an
//! agent in whichever turn.

mod follow;
mod reader;
mod steps;
mod workers;

#[cfg(test)]
mod tests;

use serde_json::value::RawValue;

use planck_common::{
    AgentId, CallId, Seq,
    event::TurnOutcome,
    usage::Usage,
    wait::{WaitClosed, WaitOpened},
};

pub use self::reader::TurnChoice;
pub use follow::Turn;
pub use reader::TurnReader;
pub use steps::StepReader;

/// Until when a reader reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Until {
    /// Until the turn ends that took the prompt.
    Turn,
    /// Until the work is over that the prompt caused, which includes what other agents were asked
    /// to do, and the later turns in which their results are read.
    #[default]
    Work,
}

/// An event of a turn. The events come in the order in which a client shows them.
#[derive(Debug, Clone)]
pub enum TurnEvent {
    /// The turn that was asked for began, or the next one of its work.
    Started {
        /// The number of the turn.
        turn: u32,
        /// Whether its answer has a shape. Then its texts are not the answer.
        has_shape: bool,
    },
    /// A request to the model begins. Its parts follow.
    StepStarted,
    /// A piece of text. The pieces come in order and without gaps, and a part is complete when the
    /// next part begins. The parts of a step, texts and reasonings together, are numbered from 0
    /// without gaps.
    Text {
        /// The number of the part.
        part: usize,
        /// The piece.
        text: String,
    },
    /// A piece of the model's reasoning.
    Reasoning {
        /// The number of the part.
        part: usize,
        /// The piece.
        text: String,
    },
    /// The reply is saved. The pieces since [`Self::StepStarted`], or since the last
    /// [`Self::StepReset`], are its whole text.
    StepEnded {
        /// The number of the reply in the log.
        seq: Seq,
    },
    /// All pieces since [`Self::StepStarted`] are void. Either the request is made again, by this
    /// node or by another one, or the saved reply differs from the pieces. The step goes on, and
    /// its parts are numbered from 0 again. If the turn ends instead, the step has no reply.
    StepReset,
    /// A tool call of the reply, before it runs or waits. Each call is reported once, before the
    /// [`Self::StepEnded`] of its step.
    ToolCalled {
        /// The id of the call.
        call_id: CallId,
        /// The name of the tool.
        name: String,
        /// A JSON object.
        args: Box<RawValue>,
        /// The text that the model sent in place of a JSON object. Then `args` is `{}`, and the call
        /// fails.
        invalid: Option<String>,
    },
    /// A call runs, at once or after its wait. A call that neither runs nor waits is refused and only
    /// ends.
    ToolStarted {
        /// The id of the call.
        call_id: CallId,
    },
    /// A running call reports what it does.
    ToolProgress {
        /// The id of the call.
        call_id: CallId,
        /// The message of the tool.
        message: String,
        /// How much of its work is done.
        percent: Option<f64>,
    },
    /// A call has ended.
    ToolEnded {
        /// The id of the call.
        call_id: CallId,
        /// The result, or the explanation of the error.
        result: String,
        /// Whether the call failed.
        is_error: bool,
    },
    /// A call waits for an answer from outside. A second wait with the same id replaces the first.
    /// The wait for a budget has the id of no call.
    WaitOpened(Box<WaitOpened>),
    /// A wait has an answer, or is no longer needed.
    WaitClosed(Box<WaitClosed>),
    /// A worker of the session was spawned, began or ended a turn, or ended.
    Worker(WorkerUpdate),
    /// The agent begins to replace the older part of its context by a summary. If it cannot, a warning
    /// with the code `not_compacted` follows, or the end of the turn.
    Compacting,
    /// The agent has replaced the older part of its context by a summary.
    Compacted {
        /// The text of the summary.
        summary: String,
    },
    /// The agent warns, for example that an input was refused.
    Warning {
        /// The code of the warning.
        code: String,
        /// The text of the warning.
        message: String,
    },
    /// Everything that was in the log at the start has been returned. What follows is new. It is
    /// returned once, before or in the turn, unless the turn is over before.
    CaughtUp,
    /// The turn ended, or the last one of the work. No part follows.
    Ended {
        /// The number of the turn's end in the log.
        seq: Seq,
        /// How the turn ended.
        outcome: TurnOutcome,
        /// Whether the model refused to answer, or a filter of its provider stopped the answer.
        refused: bool,
        /// The limit that ended the turn.
        limit: Option<String>,
        /// The answer in the shape of the turn.
        output: Option<Box<RawValue>>,
        /// The sum over the turns.
        usage: Usage,
    },
    /// The turn failed, or the last one of the work. No part follows.
    Failed {
        /// The code of the error.
        code: String,
        /// The explanation.
        reason: String,
    },
}

/// The state of a worker. A later update replaces an earlier one of the same worker.
#[derive(Debug, Clone)]
pub struct WorkerUpdate {
    /// The worker.
    pub id: AgentId,
    /// The name of the worker, or its id until the name is known.
    pub name: String,
    /// Whether the worker has a turn.
    pub state: WorkerState,
    /// The last text of the worker's latest turn.
    pub text: Option<String>,
    /// The open waits of the worker.
    pub waits: Vec<WaitOpened>,
}

/// Whether a worker has a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// The worker has no turn.
    Idle,
    /// The worker has a turn.
    Working,
    /// The worker has ended.
    Ended,
}
