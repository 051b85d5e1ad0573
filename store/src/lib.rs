//! The session store. It keeps six kinds of data in SQL, each behind its own trait:
//!
//! - [`SessionRecords`]: the sessions and agents, with their specifications;
//! - [`Leases`]: which node may write for an agent;
//! - [`Inbox`]: the prompts, tasks, questions, responses and notes that were sent to an agent;
//! - [`Log`]: the events of a session;
//! - [`Waits`]: what agents need from outside, and the answers;
//! - [`Baselines`]: the protected files of workspaces before calls.
//!
//! [`sqlite`] serves the nodes of one host, [`postgres`] the nodes of any number of hosts. Both
//! pass the same conformance suite.

pub mod append;
mod baselines;
mod inbox;
mod leases;
mod log;
mod page;
pub mod postgres;
mod preview;
pub mod queue;
mod records;
mod row;
pub mod sqlite;
mod waits;

#[cfg(test)]
pub mod conformance;

use async_trait::async_trait;

use planck_common::{
    AgentId, InputId, Seq, SessionId, SessionName,
    reply::{Code, Refusal},
};

pub use self::{
    baselines::{Baselines, CallBaseline},
    inbox::{
        AskOutcome, Inbox, InboxBounds, InputReader, PutResult, TaskRecord, WorkInput, WorkRows,
    },
    leases::{HeldLease, LeaseClaim, LeaseRelease, Leases, Stray},
    log::{Appended, Batch, BatchOutcome, Log, RewindOutcome},
    records::*,
};
pub use planck_agent::{
    LogRow,
    inbox::{InputOutcome, NewInput, StoredInput},
};
pub use waits::{AnswerOutcome, SessionRule, Waits, nobody_answered};

/// The default log filter for the database drivers. It hides Postgres notices below `warn`.
pub const DRIVER_LOG: &str = "sqlx::postgres::notice=warn";

/// All traits of the store together. A write is one SQL statement or one SQL function, so that the
/// database holds no lock between two round trips. The exceptions, all in SQLite, are transactions
/// that create, adopt or remove a session or change the index.
#[async_trait]
pub trait SessionStore: SessionRecords + Leases + Inbox + Log + Waits + Baselines {
    /// Returns the id of this store, which all nodes of a cluster share.
    async fn id(&self) -> Result<String, StoreError>;

    /// Closes the connections to the database, so that every later call fails. The SQLite store
    /// does nothing.
    async fn close(&self) {}
}

/// An error of a store call. The variants differ in how the caller has to react.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database is unreachable, busy or slow. The outcome of the call may be unknown, and the
    /// caller may retry the call.
    #[error("the session store is away: {0}")]
    Away(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Exists(String),
    /// The epoch in the call is not that of the lease, for example because another node took the
    /// lease.
    #[error("another node holds {0} now")]
    StaleEpoch(String),
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    Limit(String),
    /// Another process on this host runs this node or uses the folder to adopt from, or the session
    /// has to be closed first.
    #[error("{0}")]
    Busy(String),
    /// The disk of a SQLite store is full. Committed rows are safe, and the call succeeds once
    /// there is room.
    #[error("{0}")]
    Full(String),
    /// The store is unusable until the user repairs it, for example because the folder is
    /// read-only, the schema is newer than this version knows, or a file is damaged.
    #[error("{0}")]
    Broken(String),
}

impl StoreError {
    /// The advice that error messages give when the database cannot be reached.
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

// Errors that both stores return with the same text.

fn no_session(session: &SessionId) -> StoreError {
    StoreError::NotFound(format!("there is no session {session}"))
}

fn no_agent(agent: &AgentId, session: &SessionId) -> StoreError {
    StoreError::NotFound(format!("there is no agent {agent} in session {session}"))
}

/// Returns the error for a name that another session has.
fn name_taken(name: &SessionName) -> StoreError {
    StoreError::Exists(format!("there is a session `{name}` already"))
}

/// Returns the error for a session whose generated names were all taken.
fn no_free_name() -> StoreError {
    StoreError::Limit("found no free name for the session; give it one".into())
}

fn still_open(session: &SessionId) -> StoreError {
    StoreError::Busy(format!("session {session} is open; close it first"))
}

fn stale_lease(agent: &AgentId) -> StoreError {
    StoreError::StaleEpoch(agent.to_string())
}

/// Returns the error for an epoch that is not that of the orchestrator's lease.
fn stale_lead(session: &SessionId) -> StoreError {
    StoreError::StaleEpoch(format!("the orchestrator of session {session}"))
}

/// Returns the error for a rewind to a row that is not a visible message.
fn no_message(to: Seq, session: &SessionId) -> StoreError {
    StoreError::BadRequest(format!("session {session} has no visible message {to}"))
}

/// Returns the error for a new input whose id already belongs to an input of another agent, or to a
/// question of another asker.
fn input_taken(input: &InputId) -> StoreError {
    StoreError::BadRequest(format!("the id {input} belongs to another input"))
}

fn no_sender() -> StoreError {
    StoreError::BadRequest("a question needs a sender".into())
}
