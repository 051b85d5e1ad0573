//! The store: four facts in SQL. A record (what should run), a lease (which node may write for an
//! agent, by epoch), an inbox (what was asked), a log (what happened). SQLite for one host,
//! Postgres for more, one conformance suite for both.

pub mod append;
pub mod name;
pub mod postgres;
pub mod queue;
pub mod row;
pub mod sqlite;
mod unread;
mod wire;

#[cfg(test)]
pub mod conformance;

use async_trait::async_trait;
use planck_common::{
    AgentId, InputId, NodeId, Seq, SessionId,
    command::{Events, ListSessions, Messages, RemovedCounts, Sessions},
    event::WorkerExit,
    reply::{Code, Refusal},
};

pub use planck_agent::{
    inbox::{InputOutcome, NewInput, StoredInput},
    log::LogRow,
};
pub use row::*;
pub use unread::InboxBounds;

/// The default log filter of the drivers under the stores.
pub const DRIVER_LOG: &str = "sqlx::postgres::notice=warn";

/// Everything that must be true. Each method is one statement or one function in SQL; none holds a
/// lock across a round trip.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// The id of this store; all nodes of a cluster share one.
    async fn id(&self) -> Result<String, StoreError>;

    /// Records a session with its first agents, leased to `node` at epoch 1, incarnation 1. The
    /// same id again: nothing is done. A taken name is `Exists`; more agents than the session may
    /// have is `Limit`; names are made unique in the team.
    async fn create(&self, session: NewSession, node: &NodeId) -> Result<Created, StoreError>;
    async fn session(&self, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError>;
    /// Newest first, at most `limit` (100, never over 1,000); `after` takes the `next` of the page
    /// before.
    async fn sessions(&self, filter: ListSessions) -> Result<Sessions, StoreError>;
    /// Opens or closes a session; `epoch` is the lead's lease.
    async fn set_state(
        &self,
        session: &SessionId,
        epoch: i64,
        state: planck_common::command::SessionState,
    ) -> Result<(), StoreError>;
    /// Removes a closed session; an open one is `Busy`.
    async fn delete(&self, session: &SessionId) -> Result<RemovedCounts, StoreError>;
    /// Closed sessions not written to since `before`.
    async fn expired(&self, before: planck_common::Timestamp)
    -> Result<Vec<SessionId>, StoreError>;

    /// The session an agent belongs to.
    async fn find_agent(&self, agent: &AgentId) -> Result<Option<AgentRecord>, StoreError>;
    async fn agents(&self, session: &SessionId) -> Result<Vec<AgentRecord>, StoreError>;
    /// Agents of a session that a text may mean: that of this id and that of this name; where
    /// neither is there, those of this type, at most [`NAMESAKES`] of them, stopped ones last. It
    /// costs the same in a team of any size.
    async fn meant(&self, session: &SessionId, text: &str) -> Result<Vec<AgentRecord>, StoreError>;

    /// Records members of one session born under the lead's incarnation, leased to `node` at epoch
    /// 1, each with its task. Names are made unique in the team. Nobody is born into a closed
    /// session. One outcome for each, in order.
    async fn births(
        &self,
        session: &SessionId,
        born: &[Newborn],
        under: &Under,
        node: &NodeId,
    ) -> Result<Vec<Birth>, StoreError>;
    /// Takes a lease whose epoch was seen. *Claiming is fencing.* `None`: somebody else did.
    async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentId,
        seen: i64,
        claim: Claim,
        node: &NodeId,
    ) -> Result<Option<Lease>, StoreError>;
    /// Gives a lease up: nobody holds it, at `epoch + 1`. `stopped` ends the agent for good: its
    /// inputs without an outcome get that one. Sent again it does no harm.
    async fn release(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        stopped: bool,
    ) -> Result<(), StoreError>;
    /// Replaces an agent's recorded spec, under its lease.
    async fn respec(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        spec: &planck_common::spec::AgentSpec,
    ) -> Result<(), StoreError>;

    /// Appends batches of several agents of one session, each committed whole or not at all, by the
    /// rules of the log. Sent again unchanged after an unknown outcome it does no harm. One result
    /// per batch, in order. An agent has one batch at most, else `BadRequest`. Puts to agents that
    /// are stopped are left out.
    async fn append(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError>;

    /// Puts an input into an inbox, idempotent by id.
    async fn put(&self, session: &SessionId, input: NewInput) -> Result<PutResult, StoreError>;
    /// Puts a question whose asker waits, unless that closes a cycle of waits or nests deeper than
    /// `max_depth`: a question of an agent that nobody asked is at depth 1. One that was asked
    /// before is waited for again.
    async fn ask(
        &self,
        session: &SessionId,
        question: NewInput,
        asker_epoch: i64,
        max_depth: u32,
    ) -> Result<Asked, StoreError>;
    /// The asker no longer waits; an unread question leaves the inbox with outcome `withdrawn`.
    /// `true`: it did.
    async fn withdraw(&self, session: &SessionId, question: &InputId) -> Result<bool, StoreError>;
    async fn input(
        &self,
        session: &SessionId,
        id: &InputId,
    ) -> Result<Option<StoredInput>, StoreError>;
    /// Inputs of an agent without an outcome, in order of acceptance: unread ones, and those of the
    /// open turn.
    async fn open_inputs(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<StoredInput>, StoreError>;
    /// The tasks given to an agent, newest last, with whether it has responded. Withdrawn and
    /// rewound ones are left out.
    async fn tasks(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<Task>, StoreError>;

    /// What an agent needs to go on: its rows from the latest checkpoint on, or from the open
    /// turn's start if that is earlier.
    async fn load(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<LogRow>, StoreError>;
    async fn head(&self, session: &SessionId) -> Result<Seq, StoreError>;
    /// A page of the log as envelopes, hidden rows with `hidden_by` among them: at most `limit`
    /// (never over 500) or 512 KiB, but at least one. `next` is where to go on: after the page's
    /// last row, or `head + 1` when all was read.
    async fn events(
        &self,
        session: &SessionId,
        from: Seq,
        limit: u32,
        agent: Option<&AgentId>,
    ) -> Result<Events, StoreError>;
    /// A segment of messages between checkpoints, without hidden ones, of one agent or of all.
    ///
    /// A checkpoint stands for all messages up to its `covers`. A segment is its summary (if it has
    /// one), then the messages after `covers`, oldest first, up to the next higher checkpoint's
    /// `covers`; other agents' checkpoints bound it only where no agent is named. Without `before`
    /// it is the last one. `before` of the answer names what comes earlier: ask with it for the
    /// segment before; `None` where there is nothing. So every message is in one page, once. A
    /// segment over `limit` (500, never more; or 512 KiB, but at least one message) comes in parts,
    /// the newest first; its summary comes with its oldest part, on top of `limit`.
    async fn messages(
        &self,
        session: &SessionId,
        agent: Option<&AgentId>,
        before: Option<Seq>,
        limit: Option<u32>,
    ) -> Result<Messages, StoreError>;
    /// Hides a message and all after it, raises every agent's epoch and leaves its holder, adds
    /// `rewound` to the lead's log. Calls and turns that are open get their end before that; an end
    /// stays visible where its beginning does. Inputs of turns that began after it, ended or not,
    /// and unread messages between agents get the outcome `rewound`, those of other open turns
    /// `aborted`; unread prompts stay; nobody waits any more. Agents whose birth is hidden are
    /// stopped. `to` is no visible message: `BadRequest`. Sent again it does no harm.
    async fn rewind(
        &self,
        session: &SessionId,
        lead_epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<Rewound, StoreError>;

    /// Workers that are stopped and of whose end the lead's log does not tell; those whose birth
    /// was rewound are left out.
    async fn untold_exits(&self, session: &SessionId) -> Result<Vec<WorkerExit>, StoreError>;

    /// Leases of nodes that are not among `alive`, and agents with unread inputs that nobody holds,
    /// or one of `alive`: word of the input may not have reached it.
    async fn sweep(&self, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError>;
    /// Leases a node holds.
    async fn held(&self, node: &NodeId) -> Result<Vec<Stray>, StoreError>;

    /// Whether the process of a node lives, where the store itself can tell: SQLite's lock files
    /// can.
    async fn node_lives(&self, _node: &NodeId) -> Result<Option<bool>, StoreError> {
        Ok(None)
    }
    /// Gives its connections back, after which it answers nothing.
    async fn close(&self) {}
    /// Ends what is left of a convicted node's process, where it could hold the store's locks: on
    /// SQLite it is killed.
    async fn end_node(&self, _node: &NodeId) -> Result<(), StoreError> {
        Ok(())
    }
}

/// What a caller does differently.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is away, busy or slow; nothing is known of the outcome. Try again.
    #[error("the session store is away: {0}")]
    Away(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Exists(String),
    /// Another node took the lease.
    #[error("another node holds {0} now")]
    StaleEpoch(String),
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    Limit(String),
    /// Another process of this host holds it.
    #[error("{0}")]
    Busy(String),
    /// The disk is full. What was saved is safe, and what was not is saved once there is room.
    #[error("{0}")]
    Full(String),
    /// The folder is read-only, the schema is newer, the file is broken: a person must help.
    #[error("{0}")]
    Broken(String),
}

impl StoreError {
    /// What to do about a database that is not reached.
    pub const UNREACHED: &str = "start the database, or correct `store.url` (DATABASE_URL)";
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Away(_) => Code::Unavailable,
            StoreError::NotFound(_) => Code::NotFound,
            StoreError::Exists(_) => Code::Exists,
            StoreError::StaleEpoch(_) => Code::StaleEpoch,
            StoreError::BadRequest(_) => Code::BadRequest,
            StoreError::Limit(_) => Code::Limit,
            StoreError::Busy(_) => Code::Busy,
            StoreError::Full(_) | StoreError::Broken(_) => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}
