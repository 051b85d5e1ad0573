//! The rows from which one can tell what has become of the work that a prompt caused.

use planck_common::{AgentId, InputId, Seq, command::AgentState};

use super::InputOutcome;

/// The maximum number of inputs that [`Inbox::work`](super::Inbox::work) returns.
pub const MOST_INPUTS: usize = 10_000;

/// The inputs of a session that have no outcome and, if an input was asked for, that one and those
/// that were put after it, all as of one moment.
#[derive(Debug, Clone)]
pub struct WorkRows {
    /// The input that was asked for.
    pub root: Option<WorkInput>,
    /// The others, without an order.
    pub rest: Vec<WorkInput>,
    /// Whether inputs are missing because there are more than [`MOST_INPUTS`]. Those without an
    /// outcome and the latest ones are there.
    pub is_cut: bool,
    /// The number of the log's last row.
    pub head: Seq,
    /// Whether the session is closed and no agent has a holder, so that nothing continues before
    /// the session is opened again.
    pub is_shut: bool,
}

/// An input without its content.
#[derive(Debug, Clone)]
pub struct WorkInput {
    pub id: InputId,
    pub agent: AgentId,
    pub sender: Option<AgentId>,
    /// Whether the input was put after the one that was asked for.
    pub is_later: bool,
    /// The turn in which the sender put the input: that of the sender's last row in the log when
    /// the input was put.
    pub cause: Option<u32>,
    /// The number of the log's last row when the input was put.
    pub head: Seq,
    /// The turn that consumed the input.
    pub turn: Option<u32>,
    pub outcome: Option<InputOutcome>,
    /// Whether the sender waits for the answer.
    pub waiting: bool,
    /// What the input's agent does, if the input has no outcome.
    pub reader: Option<InputReader>,
}

/// What the agent does that has an input without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputReader {
    pub state: AgentState,
    /// The number of its waits that are open.
    pub open_waits: u64,
    /// The number of its waits whose answer it has not read.
    pub answers: u64,
    /// The number of its running calls.
    pub calls: u64,
}
