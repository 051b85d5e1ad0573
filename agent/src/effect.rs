//! What an agent wants done, in order: save, then tell, then act.

use std::time::Duration;

use planck_common::{
    AgentId, CallId, InputId,
    command::AgentState,
    envelope::Place,
    event::{Event, EventKind},
    usage::Usage,
};
use serde_json::value::RawValue;

use super::{NewInput, Ticket, inbox::InputOutcome};

/// One thing to do. Effects of a step are performed in order. After a [`Save`] that is not
/// `beside`, nothing more is done and no other input is given to the agent before it is committed
/// and its [`super::input::Saved`] was given.
#[derive(Debug, Clone)]
pub enum Effect {
    Save(Save),
    /// Publish a live event. Deltas are coalesced by the shell, which is why they are not
    /// serialised here.
    Tell {
        place: Place,
        event: Event,
    },
    /// Ask the model for the next reply to the agent's view; it reads transcript, model and tools
    /// from the agent.
    CallModel {
        ticket: Ticket,
    },
    /// Drop the running model call.
    CancelModel {
        ticket: Ticket,
    },
    RunTool(ToolRun),
    /// Tell a running call to stop. It is answered soon, with what it had.
    CancelTool {
        ticket: Ticket,
    },
    /// Ask a compactor to summarise all of the view before `keep_from`'s message; it reads them
    /// from the agent.
    Compact {
        ticket: Ticket,
    },
    CancelCompact {
        ticket: Ticket,
    },
    Wait {
        ticket: Ticket,
        delay: Duration,
    },
    /// Nobody waits for this [`Effect::Wait`] any more.
    CancelWait {
        ticket: Ticket,
    },
    /// These inputs have their outcome: wake who waits for them.
    Settled {
        inputs: Vec<(InputId, Option<AgentId>)>,
    },
    /// These agents got an input: wake them.
    Wake {
        agents: Vec<AgentId>,
    },
    /// A turn was opened or closed.
    Turn {
        open: bool,
    },
    /// The agent ended.
    Stopped,
}

/// A call to run. Its `tool_start` is saved.
#[derive(Debug, Clone)]
pub struct ToolRun {
    pub ticket: Ticket,
    pub call_id: CallId,
    pub name: String,
    pub args: Box<RawValue>,
}

/// Rows and marks that are committed together or not at all.
#[derive(Debug, Clone)]
pub struct Save {
    pub ticket: Ticket,
    pub entries: Vec<Entry>,
    pub marks: Vec<Mark>,
    /// Inputs for other agents.
    pub puts: Vec<NewInput>,
    /// Consumption to add to the totals of agent and session.
    pub usage: Usage,
    /// The agent's state with this save.
    pub state: AgentState,
    /// What comes next need not wait for the commit.
    pub beside: bool,
}

impl Save {
    /// Whether it gives this input its outcome.
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
    pub place: Place,
    /// JSON of the event's `data`; of a message its body without id, agent and time.
    pub body: String,
}

/// What becomes of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub input: InputId,
    pub change: Change,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It is in this turn now.
    Consumed { turn: u32 },
    /// It has its outcome; `answer` is the text that a question gets.
    Ended {
        outcome: InputOutcome,
        answer: Option<String>,
    },
}
