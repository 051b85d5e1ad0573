//! The log: the events of a session, in rows that are numbered without gaps.

use std::sync::Arc;

use async_trait::async_trait;
use planck_common::{
    AgentId, InputId, NodeId, Seq, SessionId,
    command::{AgentState, Events, Messages},
    usage::Usage,
};

use super::{LogRow, NewInput, StoreError};
use planck_agent::{Entry, Mark, Save};

/// Appends to the logs of sessions, reads them in pages, and rewinds them.
#[async_trait]
pub trait Log: Send + Sync {
    /// Appends batches of several agents of one session. Each batch is committed completely or not
    /// at all. Returns one outcome for each batch, in order.
    ///
    /// A batch is written only if its epoch is that of the agent's lease and its `prev` is the
    /// agent's last row. If the log already has its rows, the outcome is `Written` with their
    /// numbers, so the caller may send the same batches again if the outcome of a call is unknown.
    /// Two batches of one agent in a call are a `BadRequest`. Inputs for stopped agents are not
    /// put.
    async fn append(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError>;

    /// Returns the visible rows that an agent needs to continue: those after the rows that its
    /// latest checkpoint replaces, or from the start of the open turn if that is earlier.
    async fn load(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<LogRow>, StoreError>;

    async fn head(&self, session: &SessionId) -> Result<Seq, StoreError>;

    /// Returns a page of the log as envelopes. Hidden rows are included, with `hidden_by` set. A
    /// page has at most `limit` rows (never more than 500) and at most 512 KiB, but always at least
    /// one row if there is one. `next` is the number of the row with which to continue: the one
    /// after the page, or `head + 1` at the end of the log.
    async fn events(
        &self,
        session: &SessionId,
        from: Seq,
        limit: u32,
        agent: Option<&AgentId>,
    ) -> Result<Events, StoreError>;

    /// Returns the row that ended a turn of an agent: the first visible one after row `after`, which
    /// must come before the turn's end. Returns `None` if the turn has not ended.
    async fn turn_end(
        &self,
        session: &SessionId,
        agent: &AgentId,
        turn: u32,
        after: Seq,
    ) -> Result<Option<LogRow>, StoreError>;

    /// Returns a segment of the visible messages between two checkpoints, of one agent or of all.
    ///
    /// A checkpoint replaces all messages up to its `covers`. A segment consists of the summary of
    /// its checkpoint (if it has one) and the messages after `covers`, oldest first, up to the
    /// `covers` of the next higher checkpoint. If an agent is named, only its own checkpoints bound
    /// the segment. Without `before`, the last segment is returned. `before` of the answer names
    /// the preceding segment and is `None` for the first one. Reading all segments therefore
    /// returns every message exactly once.
    ///
    /// A segment with more than `limit` messages (500 by default and at most) or 512 KiB is
    /// returned in parts of at least one message, the newest part first. The summary comes with the
    /// oldest part and does not count towards `limit`.
    async fn messages(
        &self,
        session: &SessionId,
        agent: Option<&AgentId>,
        before: Option<Seq>,
        limit: Option<u32>,
    ) -> Result<Messages, StoreError>;

    /// Hides a message and everything after it, raises the epoch of every agent, and appends the
    /// row `rewound` for the orchestrator.
    ///
    /// - Before `rewound`, the store appends a row for the end of each open call and each open
    ///   turn. The end of a call or turn stays visible if its beginning does.
    /// - Inputs of turns that began after the message, and unread messages between agents, get the
    ///   outcome `rewound`. Inputs of other open turns get `aborted`. Unread prompts stay in the
    ///   inbox. No agent waits for an answer any more.
    /// - Agents whose creation is hidden are stopped and lose their holder. The others keep their
    ///   holder, and are idle unless they were stopped before.
    ///
    /// Returns `BadRequest` if `to` is not a visible message, and `StaleEpoch` if `lead_epoch` is
    /// not that of the orchestrator's lease. A caller that got no answer may send the same rewind
    /// again: it has the same outcome until something else raises the orchestrator's epoch.
    async fn rewind(
        &self,
        session: &SessionId,
        lead_epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<RewindOutcome, StoreError>;
}

/// Saves of one agent, which are written completely or not at all.
#[derive(Debug, Clone)]
pub struct Batch {
    pub agent: AgentId,
    pub epoch: i64,
    /// The agent's last row before this batch.
    pub prev: Seq,
    /// The saves, in order. A batch has at least one.
    pub saves: Vec<Arc<Save>>,
}

impl Batch {
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.saves.iter().flat_map(|save| &save.entries)
    }

    /// Returns the number of entries.
    pub fn rows(&self) -> usize {
        self.saves.iter().map(|save| save.entries.len()).sum()
    }

    /// Returns the changes of inputs of this agent.
    pub fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.saves.iter().flat_map(|save| &save.marks)
    }

    /// Returns the inputs to put for other agents.
    pub fn puts(&self) -> impl Iterator<Item = &NewInput> {
        self.saves.iter().flat_map(|save| &save.puts)
    }

    /// Returns the tokens and the cost to add to the totals of the agent and the session. A batch
    /// without rows adds nothing, because the store cannot recognise it when it is repeated.
    pub fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        if self.rows() > 0 {
            for save in &self.saves {
                sum += save.usage;
            }
        }
        sum
    }

    /// Returns the agent's state once the batch is written.
    pub fn state(&self) -> AgentState {
        self.saves
            .last()
            .map_or(AgentState::Idle, |save| save.state)
    }
}

/// The outcome of each batch of an append, and the session's totals after the append.
#[derive(Debug, Clone)]
pub struct Appended {
    pub batches: Vec<BatchOutcome>,
    pub session: Usage,
}

/// The outcome of one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchOutcome {
    /// The numbers of the batch's entries, in order. The last one is the `prev` of the agent's next
    /// batch.
    Written(Vec<Seq>),
    /// The agent's lease has another epoch, or its last row is not `prev`.
    StaleEpoch,
    /// These inputs can no longer be marked: each is unknown, has an outcome, or was already
    /// consumed. The caller must build the batch again without them.
    InputsGone(Vec<InputId>),
    /// The data cannot be stored: the batch has too many rows, a text contains a NUL byte, or the
    /// database refused a value.
    Refused(String),
}

/// The result of a rewind.
#[derive(Debug, Clone)]
pub struct RewindOutcome {
    /// The number of the `rewound` row.
    pub head: Seq,
    /// All agents, with the new epochs of their leases.
    pub agents: Vec<(AgentId, i64)>,
    /// The agents that were stopped because their creation is now hidden.
    pub stopped: Vec<AgentId>,
}
