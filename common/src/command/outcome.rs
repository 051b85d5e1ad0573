//! The command that tells what has become of the work that a prompt caused.

use serde::{Deserialize, Serialize};

use crate::{
    AgentId, CallId, InputId, Seq,
    event::{TurnEnd, TurnError, TurnOutcome},
};

/// The maximum of `wait_ms`. A greater value means the same.
pub const MOST_WAIT_MS: u64 = 15_000;

/// Whether the work that a prompt caused is over. The work consists of the turns that consumed the
/// prompt, of the inputs that these turns sent to agents, of the turns that consumed those, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkState {
    /// An agent works, or an input waits for an agent that will read it.
    Working,
    /// Agents wait for answers from outside, and nothing else of the work can happen before there
    /// is one.
    Waiting,
    /// Every input of the work has its outcome.
    Over,
}

/// How the work that a prompt caused has ended: as the latest turn of the answering agent that
/// belongs to the work, or without a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkOutcome {
    Completed,
    Aborted,
    Truncated,
    /// The model refused to answer, or a filter of its provider stopped the answer.
    Refused,
    Limit,
    /// The turn failed.
    Error,
    /// The agent was busy, and the prompt had the mode `reject`.
    Busy,
    /// The agent ended before it read the prompt, or the session was closed in the middle of the
    /// work.
    Stopped,
    /// A rewind has hidden the prompt.
    Rewound,
    /// An outcome that only a later version knows.
    #[serde(other)]
    Other,
}

impl From<&TurnEnd> for WorkOutcome {
    fn from(end: &TurnEnd) -> Self {
        match end.outcome {
            TurnOutcome::Completed if end.refused => Self::Refused,
            TurnOutcome::Completed => Self::Completed,
            TurnOutcome::Aborted => Self::Aborted,
            TurnOutcome::Truncated => Self::Truncated,
            TurnOutcome::Limit => Self::Limit,
        }
    }
}

bodies! {
    #[derive(Default)]
    ReadOutcome {
        /// The prompt. Without it, the reply is about all inputs of the session that have no
        /// outcome yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt_id: Option<InputId>,
        /// How long the reply may be delayed while the work goes on, in milliseconds: 0 by default,
        /// 15,000 at most. A node may reply earlier.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait_ms: Option<u64>,
    }
    Outcome {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt_id: Option<InputId>,
        /// The agent that answers the prompt: the one to which it was sent. Without a prompt, the
        /// orchestrator.
        agent_id: AgentId,
        state: WorkState,
        /// Absent until the work is over, like `message`, `seq` and `error`, and without a prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<WorkOutcome>,
        /// The answer: the text of the latest of `turns` or, if that turn was completed without a
        /// text, of an earlier one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// Whether `message` was cut, because the reply would exceed the server's limit. The event
        /// `seq` has the whole text.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        truncated: bool,
        /// The number of the event that ended the turn with the answer or, without an answer, the
        /// latest of `turns`. Absent if no turn has read the prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<Seq>,
        /// Why the work failed, if `outcome` is `error`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<TurnError>,
        /// The numbers of the answering agent's turns that belong to the work, ascending: the latest
        /// 500.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        turns: Vec<u32>,
        /// The open waits of agents that the work needs, at most 100.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waits: Vec<CallId>,
        /// The number of the log's last row. If the work is over, all its events are in the log up
        /// to here.
        head: Seq,
    }
}
