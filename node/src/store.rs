//! The store: four facts in SQL, each behind a trait of its own.
//!
//! - [`SessionRecords`]: which sessions and agents there should be;
//! - [`Leases`]: which node may write for an agent;
//! - [`Inbox`]: what was asked of an agent;
//! - [`Log`]: what happened in a session.
//!
//! [`sqlite`] serves the nodes of one host, [`postgres`] any number of hosts. One conformance suite
//! runs on both.

pub mod append;
mod inbox;
mod leases;
mod log;
pub mod name;
mod page;
pub mod postgres;
pub mod queue;
mod records;
mod refusal;
pub mod sqlite;
mod stored;
mod unread;

#[cfg(test)]
pub mod conformance;

use async_trait::async_trait;
use planck_common::reply::{Code, Refusal};

pub use self::{
    inbox::{AskOutcome, Inbox, PutResult, TaskRecord},
    leases::{HeldLease, LeaseClaim, Leases, Stray},
    log::{Appended, Batch, BatchOutcome, Log, RewindOutcome},
    records::*,
};
pub use planck_agent::{
    inbox::{InputOutcome, NewInput, StoredInput},
    log::LogRow,
};
pub use unread::InboxBounds;

/// The default log filter of the drivers under the stores.
pub const DRIVER_LOG: &str = "sqlx::postgres::notice=warn";

/// The whole store. A method of its traits is one statement or one function in SQL, except where a
/// session is created or removed; none holds a lock across a round trip.
#[async_trait]
pub trait SessionStore: SessionRecords + Leases + Inbox + Log {
    /// Returns the id of this store, which all nodes of a cluster share.
    async fn id(&self) -> Result<String, StoreError>;

    /// Gives the connections back. Every later call fails.
    async fn close(&self) {}
}

/// Why a call of the store failed, by what the caller does about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is unreachable, busy or slow, and the outcome is unknown. The call can be
    /// tried again.
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
    /// Another process of this host uses it, or the session is open.
    #[error("{0}")]
    Busy(String),
    /// The disk is full. Committed rows are safe, and the call succeeds once there is room.
    #[error("{0}")]
    Full(String),
    /// The folder is read-only, the schema is newer, or the file is damaged. A person must help.
    #[error("{0}")]
    Broken(String),
}

impl StoreError {
    /// What a user can do about a database that cannot be reached.
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
