//! The append queue of one session on one node. It keeps one statement in flight; saves that arrive
//! meanwhile go with the next one. A statement whose outcome is unknown is sent again, unchanged,
//! until the outcome is known.

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

use super::{Appended, Batch, Log, NewInput, StoreError};
use crate::agent::{Entry, Mark};
use failures::{Failures, SaveFailure};
use worker::QueueWorker;

/// How many requests wait for the statement in flight. Further callers wait for a place.
const PLACES: usize = 256;

/// Rows and marks of one agent, which are written whole or not at all. The queue adds the row that
/// they follow.
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

/// The place of a save in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenRows {
    /// The numbers of the entries, in order.
    pub seqs: Vec<Seq>,
    /// The agent's last row before them.
    pub prev: Seq,
    /// The session's totals after the statement that wrote this save.
    pub session_totals: Usage,
}

/// Why nothing of a save was written. Saves that the agent submitted before it knew of a failure
/// were built on the failed one, so they fail with the same error. A save that it submits
/// afterwards is tried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Another node took the lease. Every later save under that epoch fails at once.
    #[error("the lease was taken")]
    StaleEpoch,
    /// These inputs were withdrawn or consumed before, so the agent must decide again.
    #[error("inputs are gone")]
    InputsGone(Vec<InputId>),
    /// The database refused the data itself.
    #[error("cannot store this: {0}")]
    Refused(String),
    /// A person must help the store, or the session does not exist.
    #[error("{0}")]
    Broken(String),
    #[error("agent {0} is not enrolled")]
    NotEnrolled(AgentId),
    /// The queue was stopped. The outcome of a save in flight is unknown.
    #[error("the append queue is closed")]
    Closed,
}

/// The part of the store that the queue needs.
#[async_trait]
pub trait AppendLog: Send + Sync {
    /// See [`Log::append`].
    async fn send(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError>;
}

#[async_trait]
impl<S: Log + ?Sized> AppendLog for S {
    async fn send(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError> {
        self.append(session, node, batches).await
    }
}

enum QueueRequest {
    Enroll { agent: AgentId, last_seq: Seq },
    Append(Queued),
}

/// A save with the receiver of its answer, and the number of the agent's latest failure that its
/// writer knew of.
struct Queued {
    pending: PendingSave,
    reply: oneshot::Sender<Result<WrittenRows, SaveFailure>>,
    knows: u64,
}

/// A handle to the queue of one session on one node. Clones share the queue. It ends at once when
/// it is stopped, and else when no handle is left and all its work is done.
#[derive(Debug, Clone)]
pub struct AppendQueue {
    orders: mpsc::Sender<QueueRequest>,
    failures: Arc<Failures>,
}

impl AppendQueue {
    pub fn start<S: AppendLog + ?Sized + 'static>(
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

    /// Registers an agent of this node that writes after `last_seq`. This is needed again after
    /// each claim and each rewind.
    pub async fn enroll(&self, agent: AgentId, last_seq: Seq) -> Result<(), AppendError> {
        self.orders
            .send(QueueRequest::Enroll { agent, last_seq })
            .await
            .map_err(|_| AppendError::Closed)
    }

    /// Takes a place in the queue, which settles the order. The save is written even if the receipt
    /// is dropped.
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

    /// Submits a save and waits for its outcome.
    pub async fn append(&self, pending: PendingSave) -> Result<WrittenRows, AppendError> {
        self.submit(pending).await?.outcome().await
    }
}

/// The place of a save in the queue.
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
