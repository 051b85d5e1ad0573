//! The append queue: what the agents of one session save on one node, one statement in flight at a
//! time. What comes meanwhile goes with the next; what has an unknown outcome is sent again,
//! unchanged, until it is settled.

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

/// Orders that wait for the statement in flight; who comes when it is full waits for a place.
const PLACES: usize = 256;

/// One agent's rows and marks for the log, written whole or not at all. The queue knows what they
/// follow.
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

/// Where a save stands in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenRows {
    /// One for each entry, in order.
    pub seqs: Vec<Seq>,
    /// The agent's last seq before them.
    pub prev: Seq,
    /// With all that was written in the same statement.
    pub session_totals: Usage,
}

/// Why nothing of a save was written. Saves of the agent that were submitted before this was known
/// were built upon it, so they fail in the same way; one that is submitted afterwards is a new
/// start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Another node took the lease. Every later save under that epoch fails at once.
    #[error("the lease was taken")]
    StaleEpoch,
    /// These inputs were withdrawn or consumed: decide anew.
    #[error("inputs are gone")]
    InputsGone(Vec<InputId>),
    /// The data itself cannot be stored.
    #[error("cannot store this: {0}")]
    Refused(String),
    /// The store needs a person, or has no such session.
    #[error("{0}")]
    Broken(String),
    #[error("agent {0} is not enrolled")]
    NotEnrolled(AgentId),
    /// The queue was stopped; of a save in flight nothing is known.
    #[error("the append queue is closed")]
    Closed,
}

/// The one thing the queue needs of a store.
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

/// A save with where its answer goes, and the agent's latest failure its writer knew of.
struct Queued {
    pending: PendingSave,
    reply: oneshot::Sender<Result<WrittenRows, SaveFailure>>,
    knows: u64,
}

/// A handle of the queue of one session on one node; clones share it. The queue ends when all its
/// work is settled and no handle is left, or at once when it is stopped.
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

    /// An agent of this node starts to write after `last_seq`. Again after a new claim, or a
    /// rewind.
    pub async fn enroll(&self, agent: AgentId, last_seq: Seq) -> Result<(), AppendError> {
        self.orders
            .send(QueueRequest::Enroll { agent, last_seq })
            .await
            .map_err(|_| AppendError::Closed)
    }

    /// Takes a place in the queue, which settles the order; the save is written whatever becomes of
    /// the receipt.
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

/// A save's place in the queue.
#[derive(Debug)]
pub struct Receipt {
    agent: AgentId,
    outcome: oneshot::Receiver<Result<WrittenRows, SaveFailure>>,
    failures: Arc<Failures>,
}

impl Receipt {
    /// Waits until it is settled. Outcomes of one agent come in the order of its saves.
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
