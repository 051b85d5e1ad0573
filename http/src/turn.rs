//! One turn of a session's orchestrator as a sequence of parts. The wires of ready-made clients are
//! written from these parts.

use planck_common::{
    AgentId, CallId, Seq,
    event::TurnOutcome,
    usage::Usage,
    wait::{WaitClosed, WaitOpened},
};
use serde_json::value::RawValue;

/// What happens in a turn, in the order in which a client shows it.
#[derive(Debug, Clone)]
pub enum TurnEvent {
    /// The turn that was asked for began. `seq` is the number of its first event.
    Started {
        turn: u32,
        seq: Seq,
    },
    /// A request to the model begins. Its parts follow.
    StepStarted {
        request: u32,
    },
    /// A piece of text. The pieces of a part come in order and without gaps.
    Text {
        part: usize,
        text: String,
    },
    /// A piece of the model's reasoning.
    Reasoning {
        part: usize,
        text: String,
    },
    /// The reply is saved. The pieces since [`Self::StepStarted`] are its whole text.
    StepEnded {
        seq: Seq,
    },
    /// The pieces since [`Self::StepStarted`] are void, because the request is made again, by this
    /// node or by another one.
    StepReset {
        reason: String,
    },
    /// A tool call of the reply, before it runs or waits.
    ToolCalled {
        call_id: CallId,
        name: String,
        args: Box<RawValue>,
    },
    ToolProgress {
        call_id: CallId,
        message: String,
        percent: Option<f64>,
    },
    ToolEnded {
        call_id: CallId,
        name: String,
        result: String,
        is_error: bool,
    },
    /// A call waits for an answer from outside.
    WaitOpened(Box<WaitOpened>),
    WaitClosed(Box<WaitClosed>),
    /// A worker of the session was spawned, began or ended a turn, or ended.
    Worker(WorkerUpdate),
    Warning {
        code: String,
        message: String,
    },
    /// The turn ended. No part follows.
    Ended {
        seq: Seq,
        outcome: TurnOutcome,
        /// The limit that ended the turn.
        limit: Option<String>,
        usage: Usage,
    },
    /// The turn failed. No part follows.
    Failed {
        seq: Seq,
        code: String,
        reason: String,
        is_retryable: bool,
    },
}

/// The state of a worker. A later update replaces an earlier one of the same worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerUpdate {
    pub id: AgentId,
    pub name: String,
    pub state: WorkerState,
    /// The last text of the worker's latest turn.
    pub text: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    Idle,
    Working,
    Ended,
}
