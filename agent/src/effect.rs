//! The effects that a step of an agent requests.

use std::{sync::Arc, time::Duration};

use planck_common::{
    AgentId, CallId, InputId,
    command::AgentState,
    envelope::EventPlace,
    event::{Event, EventKind},
    sidecar::ToolAnswer,
    usage::Usage,
};
use serde_json::value::RawValue;

use super::{NewInput, Ticket, inbox::InputOutcome};

/// One effect to perform. The runtime performs the effects of a step in order. After a [`Save`]
/// that is not `beside`, the next effect and the next input have to wait until the agent has got
/// the reply to the save: [`super::Input::Saved`] or [`super::Input::Gone`].
#[derive(Debug, Clone)]
pub enum Effect {
    Save(Save),
    /// Publish a live event. The event is not serialised yet, because the runtime merges deltas
    /// first.
    Publish {
        place: EventPlace,
        event: Event,
    },
    /// Call the model for the next reply to the agent's context. The runtime reads the transcript,
    /// model and tools from the agent.
    CallModel {
        ticket: Ticket,
    },
    /// Cancel the running model call.
    CancelModel {
        ticket: Ticket,
    },
    /// Record the agent's specification, because its limits have changed.
    RecordSpec,
    /// Check whether a rule of the session already allows a call that now waits.
    CheckWaits,
    RunTool(ToolRun),
    /// Ask a running call to stop. Its result follows soon, with the output so far.
    CancelTool {
        ticket: Ticket,
    },
    /// Ask a compactor to summarise the older part of the context. The runtime gets the context with
    /// [`super::Agent::compaction`].
    Compact {
        ticket: Ticket,
    },
    CancelCompact {
        ticket: Ticket,
    },
    StartTimer {
        ticket: Ticket,
        delay: Duration,
    },
    /// Cancel an [`Effect::StartTimer`] whose end is no longer needed.
    CancelTimer {
        ticket: Ticket,
    },
    /// Wake the agents that wait for these inputs, which have their outcome.
    Settled {
        inputs: Vec<(InputId, Option<AgentId>)>,
    },
    /// Wake these agents, which got an input.
    Wake {
        agents: Vec<AgentId>,
    },
    /// A turn was opened (`open`) or closed.
    Turn {
        open: bool,
    },
    /// The agent has ended.
    Stopped,
}

/// A tool call to run. Its `tool_start` is saved.
#[derive(Debug, Clone)]
pub struct ToolRun {
    pub ticket: Ticket,
    pub call_id: CallId,
    pub name: String,
    pub args: Box<RawValue>,
    /// Whether the call was interrupted and now runs again, so that an earlier try may have taken
    /// effect.
    pub is_repeat: bool,
    /// The answer to the question with which the call ended before.
    pub answer: Option<ToolAnswer>,
    /// The schema that the arguments must satisfy, if they are the answer of the turn. Such a call
    /// does nothing else than this check.
    pub output: Option<Arc<RawValue>>,
}

/// Rows of the log, changes of inputs, and usage that are committed together or not at all.
#[derive(Debug, Clone)]
pub struct Save {
    pub ticket: Ticket,
    pub entries: Vec<Entry>,
    pub marks: Vec<Mark>,
    /// Inputs for other agents.
    pub puts: Vec<NewInput>,
    /// The usage to add to the totals of the agent and the session.
    pub usage: Usage,
    /// The agent's state after this save.
    pub state: AgentState,
    /// Whether the following effects may be performed before the commit.
    pub beside: bool,
}

impl Save {
    /// Returns whether this save gives the input its outcome.
    pub fn ends(&self, input: &InputId) -> bool {
        self.marks
            .iter()
            .any(|mark| mark.input == *input && matches!(mark.change, Change::Ended { .. }))
    }
}

/// One row of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub kind: EventKind,
    pub place: EventPlace,
    /// JSON: the event's `data`, or for a message its body without id, agent and time.
    pub body: String,
}

/// A change of an input's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub input: InputId,
    pub change: Change,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A turn has consumed the input.
    Consumed { turn: u32 },
    /// The input has its outcome; `answer` is the text that the asker of a question gets.
    Ended {
        outcome: InputOutcome,
        answer: Option<String>,
    },
}
