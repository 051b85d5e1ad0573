//! The turns of an agent that answer a prompt, as a sequence of parts. The wires of ready-made
//! clients are written from these parts.

mod choice;
mod opening;
mod reader;
mod reply;
mod source;
mod stream;
mod trace;
mod workers;

#[cfg(test)]
mod tests;

pub use choice::TurnChoice;
pub use opening::{Opening, opening_of};
pub use reader::TurnReader;
pub use source::{Next, TurnSource};
pub use stream::{Turn, is_hidden, is_working, orchestrator, place_of, running_turn};

use planck_common::{
    AgentId, CallId, Seq,
    event::TurnOutcome,
    usage::Usage,
    wait::{WaitClosed, WaitOpened},
};
use serde_json::value::RawValue;

/// An event of a turn. The events come in the order in which a client shows them.
#[derive(Debug, Clone)]
pub enum TurnEvent {
    /// The turn that was asked for began, or the next one of its work.
    Started {
        turn: u32,
    },
    /// A request to the model begins. Its parts follow.
    StepStarted,
    /// A piece of text. The pieces come in order and without gaps, and a part is complete when the
    /// next part begins. The parts of a step, texts and reasonings together, are numbered from 0
    /// without gaps.
    Text {
        part: usize,
        text: String,
    },
    /// A piece of the model's reasoning.
    Reasoning {
        part: usize,
        text: String,
    },
    /// The reply is saved. The pieces since [`Self::StepStarted`], or since the last
    /// [`Self::StepReset`], are its whole text.
    StepEnded {
        seq: Seq,
    },
    /// All pieces since [`Self::StepStarted`] are void. Either the request is made again, by this
    /// node or by another one, or the saved reply differs from the pieces. The step goes on, and
    /// its parts are numbered from 0 again. If the turn ends instead, the step has no reply.
    StepReset,
    /// A tool call of the reply, before it runs or waits. Each call is reported once, before the
    /// [`Self::StepEnded`] of its step.
    ToolCalled {
        call_id: CallId,
        name: String,
        args: Box<RawValue>,
        /// The text that the model sent in place of a JSON object. Then `args` is `{}`, and the call
        /// fails.
        invalid: Option<String>,
    },
    /// A call runs, at once or after its wait. A call that neither runs nor waits is refused and only
    /// ends.
    ToolStarted {
        call_id: CallId,
    },
    ToolProgress {
        call_id: CallId,
        message: String,
        percent: Option<f64>,
    },
    ToolEnded {
        call_id: CallId,
        result: String,
        is_error: bool,
    },
    /// A call waits for an answer from outside. A second wait with the same id replaces the first.
    /// The wait for a budget has the id of no call.
    WaitOpened(Box<WaitOpened>),
    WaitClosed(Box<WaitClosed>),
    /// A worker of the session was spawned, began or ended a turn, or ended.
    Worker(WorkerUpdate),
    Warning {
        code: String,
        message: String,
    },
    /// Everything that was in the log at the start has been returned. What follows is new. It is
    /// returned once, before or in the turn, unless the turn is over before.
    CaughtUp,
    /// The turn ended, or the last one of the work. No part follows.
    Ended {
        seq: Seq,
        outcome: TurnOutcome,
        /// Whether the model refused to answer, or a filter of its provider stopped the answer.
        refused: bool,
        /// The limit that ended the turn.
        limit: Option<String>,
        /// The sum over the turns.
        usage: Usage,
    },
    /// The turn failed, or the last one of the work. No part follows.
    Failed {
        code: String,
        reason: String,
    },
}

/// The state of a worker. A later update replaces an earlier one of the same worker.
#[derive(Debug, Clone)]
pub struct WorkerUpdate {
    pub id: AgentId,
    pub name: String,
    pub state: WorkerState,
    /// The last text of the worker's latest turn.
    pub text: Option<String>,
    /// The open waits of the worker.
    pub waits: Vec<WaitOpened>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    Idle,
    Working,
    Ended,
}
