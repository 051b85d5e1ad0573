//! The append queue of one session on one node. At most one statement is in flight, and saves that
//! arrive meanwhile go into the next one. If the outcome of a statement is unknown, the queue sends
//! the same statement again until the outcome is known.

mod worker;

#[cfg(test)]
pub mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use planck_common::{AgentId, InputId, NodeId, Seq, SessionId, usage::Usage};
use tokio::sync::{mpsc, oneshot};

use super::{LeaseRelease, Leases, Log, StoreError};
use planck_agent::Save;
use worker::QueueWorker;

/// How many requests can wait while a statement is in flight. Further callers wait until there is
/// room.
const PLACES: usize = 256;

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
    /// The task of the queue ended before it answered. If the save was in flight, its outcome is
    /// unknown.
    #[error("the append queue is closed")]
    Closed,
}

/// A failed save. Failures are numbered in their order, but the failure of an agent that is not
/// enrolled has the number 0.
#[derive(Debug, Clone)]
struct SaveFailure {
    number: u64,
    error: AppendError,
}

/// The number of the latest failure that the writer of each agent's saves knows of. A save that was
/// submitted before its writer knew of a failure was built on the failed save. Agents whose writer
/// knows of no failure have no entry.
#[derive(Debug, Default)]
struct KnownFailures(Mutex<HashMap<AgentId, u64>>);

impl KnownFailures {
    fn latest(&self, agent: &AgentId) -> u64 {
        self.lock().get(agent).copied().unwrap_or(0)
    }

    fn add(&self, agent: &AgentId, number: u64) {
        let mut known = self.lock();
        let latest = known.entry(agent.clone()).or_default();
        *latest = number.max(*latest);
    }

    fn forget(&self, agent: &AgentId) {
        self.lock().remove(agent);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AgentId, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum QueueRequest {
    Enroll { agent: AgentId, last_seq: Seq },
    Append(QueuedSave),
    Release(QueuedRelease),
}

/// A release with the channel for its result.
struct QueuedRelease {
    release: LeaseRelease,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

struct QueuedSave {
    agent: AgentId,
    epoch: i64,
    save: Arc<Save>,
    writer: SaveWriter,
}

/// The writer of a save, who waits for the outcome.
struct SaveWriter {
    reply: oneshot::Sender<Result<WrittenRows, SaveFailure>>,
    /// The number of the agent's latest failure that the writer knew of when it submitted the save.
    knows: u64,
}

/// A handle to the append queue of one session on one node. Clones share the queue.
#[derive(Debug, Clone)]
pub struct AppendQueue {
    requests: mpsc::Sender<QueueRequest>,
    failures: Arc<KnownFailures>,
}

impl AppendQueue {
    /// Returns a handle to a new queue, and the work of the queue, which the caller has to spawn.
    /// The work ends once all handles are dropped and all saves are written.
    pub fn new<S: Log + Leases + ?Sized + 'static>(
        store: Arc<S>,
        session: SessionId,
        node: NodeId,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (requests, received) = mpsc::channel(PLACES);
        let failures = Arc::new(KnownFailures::default());
        let worker = QueueWorker {
            store,
            session,
            node,
            requests: received,
            carried: None,
            agents: HashMap::new(),
            failures: Arc::clone(&failures),
            failed: 0,
        };
        (Self { requests, failures }, worker.run())
    }

    /// Registers an agent of this node whose last row is `last_seq`, and forgets its earlier
    /// failures. The caller enrolls the agent each time it loads the agent, for example after a
    /// claim or a rewind.
    pub async fn enroll(&self, agent: AgentId, last_seq: Seq) -> Result<(), AppendError> {
        self.requests
            .send(QueueRequest::Enroll { agent, last_seq })
            .await
            .map_err(|_| AppendError::Closed)
    }

    /// Submits a save of an agent under an epoch of its lease. The queue writes it after all
    /// earlier saves of the same agent, even if the receipt is dropped.
    pub async fn submit(&self, agent: &AgentId, epoch: i64, save: Arc<Save>) -> Receipt {
        let (reply, outcome) = oneshot::channel();
        let knows = self.failures.latest(agent);
        let queued = QueuedSave {
            agent: agent.clone(),
            epoch,
            save,
            writer: SaveWriter { reply, knows },
        };
        // If the queue is closed, this drops `reply`, and the receipt says so.
        let _ = self.requests.send(QueueRequest::Append(queued)).await;
        Receipt {
            agent: agent.clone(),
            outcome,
            failures: Arc::clone(&self.failures),
        }
    }

    /// Releases a lease after all earlier saves of its agent. Releases that wait in the queue share
    /// a statement, which is sent once: after an error, a sweep finds the leases that are still
    /// held.
    pub async fn release(&self, release: LeaseRelease) -> Result<(), StoreError> {
        let (reply, result) = oneshot::channel();
        let queued = QueuedRelease { release, reply };
        let _ = self.requests.send(QueueRequest::Release(queued)).await;
        result
            .await
            .unwrap_or_else(|_| Err(StoreError::Away(AppendError::Closed.to_string())))
    }
}

/// A submitted save whose outcome can be awaited.
#[derive(Debug)]
pub struct Receipt {
    agent: AgentId,
    outcome: oneshot::Receiver<Result<WrittenRows, SaveFailure>>,
    failures: Arc<KnownFailures>,
}

impl Receipt {
    /// Waits for the outcome, which is returned once. Outcomes of one agent arrive in the order of
    /// its saves. If the call is cancelled, it may be repeated.
    pub async fn outcome(&mut self) -> Result<WrittenRows, AppendError> {
        match (&mut self.outcome).await {
            Ok(Ok(written)) => Ok(written),
            Ok(Err(failure)) => {
                self.failures.add(&self.agent, failure.number);
                Err(failure.error)
            }
            Err(_) => Err(AppendError::Closed),
        }
    }
}
