//! The append queue of one session on one node. At most one statement is in flight, and saves that
//! arrive meanwhile go into the next one. If the outcome of a statement is unknown, the queue sends
//! the same statement again until the outcome is known.

mod failures;
mod statement;
mod worker;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use planck_common::{AgentId, InputId, NodeId, Seq, SessionId, command::AgentState, usage::Usage};
use tokio::sync::{mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Appended, Batch, LeaseRelease, Leases, Log, NewInput, StoreError};
use failures::{Failures, SaveFailure};
use planck_agent::{Entry, Mark};
use worker::QueueWorker;

/// How many requests can wait while a statement is in flight. Further callers wait until there is
/// room.
const PLACES: usize = 256;

/// Rows, marks and puts of one agent, which are written completely or not at all. The queue adds
/// `prev`, the number of the agent's last row.
#[derive(Debug, Clone)]
pub struct PendingSave {
    pub agent: AgentId,
    pub epoch: i64,
    pub entries: Vec<Entry>,
    pub marks: Vec<Mark>,
    pub puts: Vec<NewInput>,
    pub usage: Usage,
    pub state: AgentState,
}

/// The numbers of the rows of a written save, and the session's totals.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenRows {
    /// The numbers of the entries, in order.
    pub seqs: Vec<Seq>,
    /// The agent's last row before these entries.
    pub prev: Seq,
    /// The session's totals after the statement that wrote this save.
    pub session_totals: Usage,
}

/// The error of a save. Saves that the agent submitted before it knew of a failure were built on
/// the failed save, so they fail with the same error. The queue sends the saves that the agent
/// submits once it knows of the failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The epoch of the save is no longer that of the agent's lease. Every later save under the
    /// same epoch fails at once.
    #[error("the lease was taken")]
    StaleEpoch,
    /// These inputs can no longer be marked: each is unknown, has an outcome, or was already
    /// consumed. The agent must build the save again without them.
    #[error("inputs are gone")]
    InputsGone(Vec<InputId>),
    /// The data cannot be stored, for example because a text contains a NUL byte.
    #[error("cannot store this: {0}")]
    Refused(String),
    /// The store is unusable until a person repairs it, or the session does not exist.
    #[error("{0}")]
    Broken(String),
    #[error("agent {0} is not enrolled")]
    NotEnrolled(AgentId),
    /// The queue was stopped. If the save was in flight, its outcome is unknown.
    #[error("the append queue is closed")]
    Closed,
}

/// The part of the store that the queue uses.
#[async_trait]
pub trait QueueStore: Send + Sync {
    /// Appends batches, as described at [`Log::append`].
    async fn send(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError>;

    /// Releases leases, as described at [`Leases::release_all`].
    async fn send_releases(
        &self,
        session: &SessionId,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError>;
}

#[async_trait]
impl<S: Log + Leases + ?Sized> QueueStore for S {
    async fn send(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError> {
        self.append(session, node, batches).await
    }

    async fn send_releases(
        &self,
        session: &SessionId,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        self.release_all(session, releases).await
    }
}

enum QueueRequest {
    Enroll { agent: AgentId, last_seq: Seq },
    Append(Queued),
    Release(QueuedRelease),
}

/// A release with the channel for its result.
struct QueuedRelease {
    release: LeaseRelease,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

/// A save with the channel for its answer and the number of the agent's latest failure that its
/// writer knew of when it submitted the save.
struct Queued {
    pending: PendingSave,
    reply: oneshot::Sender<Result<WrittenRows, SaveFailure>>,
    knows: u64,
}

/// A handle to the append queue of one session on one node. Clones share the queue. The queue ends
/// immediately when it is stopped, or once all handles are dropped and all saves are written.
#[derive(Debug, Clone)]
pub struct AppendQueue {
    orders: mpsc::Sender<QueueRequest>,
    failures: Arc<Failures>,
}

impl AppendQueue {
    pub fn start<S: QueueStore + ?Sized + 'static>(
        store: Arc<S>,
        session: SessionId,
        node: NodeId,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (orders, received) = mpsc::channel(PLACES);
        let failures = Arc::new(Failures::default());
        let worker = QueueWorker::new(store, session, node, received, failures.clone(), stop);
        tasks.spawn(worker.run());
        Self { orders, failures }
    }

    /// Registers an agent of this node whose last row is `last_seq`, and forgets its earlier
    /// failures. The caller enrolls the agent each time it loads the agent, for example after a
    /// claim or a rewind.
    pub async fn enroll(&self, agent: AgentId, last_seq: Seq) -> Result<(), AppendError> {
        self.orders
            .send(QueueRequest::Enroll { agent, last_seq })
            .await
            .map_err(|_| AppendError::Closed)
    }

    /// Submits a save. The queue writes it after all earlier saves of the same agent, even if the
    /// receipt is dropped.
    pub async fn submit(&self, pending: PendingSave) -> Result<Receipt, AppendError> {
        let (reply, outcome) = oneshot::channel();
        let agent = pending.agent.clone();
        let knows = self.failures.known_of(&agent);
        self.orders
            .send(QueueRequest::Append(Queued {
                pending,
                reply,
                knows,
            }))
            .await
            .map_err(|_| AppendError::Closed)?;
        Ok(Receipt {
            agent,
            outcome,
            failures: self.failures.clone(),
        })
    }

    /// Submits a save and returns its outcome.
    pub async fn append(&self, pending: PendingSave) -> Result<WrittenRows, AppendError> {
        self.submit(pending).await?.outcome().await
    }

    /// Releases a lease after all earlier saves of its agent. Releases that wait in the queue share
    /// a statement, which is sent once: after an error, a sweep finds the leases that are still
    /// held.
    pub async fn release(&self, release: LeaseRelease) -> Result<(), StoreError> {
        let closed = || StoreError::Away(AppendError::Closed.to_string());
        let (reply, result) = oneshot::channel();
        let queued = QueuedRelease { release, reply };
        self.orders
            .send(QueueRequest::Release(queued))
            .await
            .map_err(|_| closed())?;
        result.await.unwrap_or_else(|_| Err(closed()))
    }
}

/// A submitted save whose outcome can be awaited.
#[derive(Debug)]
pub struct Receipt {
    agent: AgentId,
    outcome: oneshot::Receiver<Result<WrittenRows, SaveFailure>>,
    failures: Arc<Failures>,
}

impl Receipt {
    /// Waits for the outcome. Outcomes of one agent arrive in the order of its saves.
    pub async fn outcome(self) -> Result<WrittenRows, AppendError> {
        match self.outcome.await {
            Ok(Ok(written)) => Ok(written),
            Ok(Err(failure)) => {
                self.failures.is_known(&self.agent, failure.number);
                Err(failure.error)
            }
            Err(_) => Err(AppendError::Closed),
        }
    }
}
