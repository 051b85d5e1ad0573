//! The log: what happened in a session, in rows that are numbered without gaps.

use async_trait::async_trait;
use planck_common::{
    AgentId, InputId, NodeId, Seq, SessionId,
    command::{AgentState, Events, Messages},
    usage::Usage,
};

use super::{LogRow, NewInput, StoreError};
use crate::agent::{Entry, Mark};

/// Appends to the logs of sessions, pages of them, and rewinds.
#[async_trait]
pub trait Log: Send + Sync {
    /// Appends batches of several agents of one session, each committed whole or not at all.
    /// Returns one outcome for each, in order.
    ///
    /// A batch is refused unless its epoch is that of the agent's lease and its `prev` is the
    /// agent's last row. After an unknown outcome the same batches can be sent again, unchanged.
    /// Two batches of one agent are a `BadRequest`. Puts to stopped agents are left out.
    async fn append(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError>;

    /// Returns the rows that an agent needs to continue: from its latest checkpoint on, or from the
    /// start of the open turn if that is earlier.
    async fn load(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<LogRow>, StoreError>;

    async fn head(&self, session: &SessionId) -> Result<Seq, StoreError>;

    /// Returns a page of the log as envelopes. Hidden rows are among them, marked by `hidden_by`. A
    /// page has at most `limit` rows (never more than 500) and 512 KiB, but at least one row.
    /// `next` is where to continue: after the last row of the page, or `head + 1` when all was
    /// read.
    async fn events(
        &self,
        session: &SessionId,
        from: Seq,
        limit: u32,
        agent: Option<&AgentId>,
    ) -> Result<Events, StoreError>;

    /// Returns a segment of the messages between checkpoints, of one agent or of all. Hidden
    /// messages are left out.
    ///
    /// A checkpoint stands for all messages up to its `covers`. A segment is its summary (if it has
    /// one), then the messages after `covers`, oldest first, up to the `covers` of the next higher
    /// checkpoint. Checkpoints of other agents bound it only where no agent is named. Without
    /// `before` it is the last segment. `before` of the answer names the segment before it, and is
    /// `None` for the first one. So every message is in one page, once.
    ///
    /// A segment with more than `limit` messages (500, which is also the most) or 512 KiB comes in
    /// parts of at least one message, the newest part first. Its summary comes with its oldest
    /// part, in addition to `limit`.
    async fn messages(
        &self,
        session: &SessionId,
        agent: Option<&AgentId>,
        before: Option<Seq>,
        limit: Option<u32>,
    ) -> Result<Messages, StoreError>;

    /// Hides a message and everything after it, raises the epoch of every agent but leaves its
    /// holder, and adds `rewound` to the orchestrator's log.
    ///
    /// - Open calls and turns get their end before that. An end stays visible if its beginning
    ///   does.
    /// - Inputs of turns that began after the message, ended or not, and unread messages between
    ///   agents get the outcome `rewound`. Those of other open turns get `aborted`. Unread prompts
    ///   stay. No agent waits for an answer any more.
    /// - Agents whose creation is hidden are stopped.
    ///
    /// If `to` is not a visible message, the result is `BadRequest`. Sending the same rewind again
    /// is harmless.
    async fn rewind(
        &self,
        session: &SessionId,
        lead_epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<RewindOutcome, StoreError>;
}

/// Rows and marks of one agent, which are written whole or not at all.
#[derive(Debug, Clone)]
pub struct Batch {
    pub agent: AgentId,
    pub epoch: i64,
    /// The agent's last row before this batch.
    pub prev: Seq,
    pub entries: Vec<Entry>,
    /// Inputs of this agent that are consumed or ended.
    pub marks: Vec<Mark>,
    /// Inputs for other agents.
    pub puts: Vec<NewInput>,
    /// Is added to the totals of the agent and the session. A batch without entries adds nothing.
    pub usage: Usage,
    /// The agent's state after the batch.
    pub state: AgentState,
}

/// The outcome of each batch of an append, and the session's totals after it.
#[derive(Debug, Clone)]
pub struct Appended {
    pub batches: Vec<BatchOutcome>,
    pub session: Usage,
}

/// What came of one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchOutcome {
    /// The numbers of its entries, in order. The last one is the `prev` of the agent's next batch.
    Written(Vec<Seq>),
    /// The agent's lease has another epoch, or its last row is not `prev`.
    StaleEpoch,
    /// These inputs were withdrawn or consumed before, so the batch must be built again without
    /// them.
    InputsGone(Vec<InputId>),
    /// The database refused the data, for example a NUL byte in a text.
    Refused(String),
}

/// What a rewind did.
#[derive(Debug, Clone)]
pub struct RewindOutcome {
    /// The number of the `rewound` row.
    pub head: Seq,
    /// Every agent with its new epoch.
    pub agents: Vec<(AgentId, i64)>,
    /// The agents that were stopped because their creation is hidden now.
    pub stopped: Vec<AgentId>,
}
