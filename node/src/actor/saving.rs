//! Saves the rows of the log that an agent decides on through the append queue of its session, and
//! publishes them as events after the commit.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use planck_common::{
    NodeId, Seq, SessionId,
    envelope::{RowPosition, Writer},
};

use crate::{
    agent::{Entry, Input, Save, Unstorable, input::Saved},
    bus::{Bus, Published},
};
use planck_store::{
    LeaseRelease, SessionStore, StoreError,
    queue::{AppendError, AppendQueue, Receipt, WrittenRows},
};
use planck_telemetry::metrics;

/// An agent's access to the log of its session, with its saves in flight.
pub struct Saves {
    pub writer: Writer,
    handle: QueueHandle,
    /// The saves in flight, in order.
    in_flight: VecDeque<SaveInFlight>,
}

struct SaveInFlight {
    save: Arc<Save>,
    since: Instant,
    receipt: Receipt,
}

/// Why an agent cannot continue on this node.
#[derive(Debug, thiserror::Error)]
pub enum ActorLost {
    #[error("another node holds the agent now")]
    StaleEpoch,
    #[error("it was dropped")]
    Dropped,
    #[error("what the agent decided cannot be saved: {0}")]
    Unsaved(AppendError),
    #[error("the store refuses the agent's data: {}", .0.why)]
    Unstorable(Unstorable),
}

impl Saves {
    pub fn new(writer: Writer, handle: QueueHandle) -> Self {
        Self {
            writer,
            handle,
            in_flight: VecDeque::new(),
        }
    }

    /// Submits a save to the session's queue.
    pub async fn begin(&mut self, save: Save) {
        let (save, since) = (Arc::new(save), Instant::now());
        let Writer {
            agent_id, epoch, ..
        } = &self.writer;
        let queue = &self.handle.queue;
        let receipt = queue.submit(agent_id, *epoch, Arc::clone(&save)).await;
        self.in_flight.push_back(SaveInFlight {
            save,
            since,
            receipt,
        });
    }

    /// Releases the agent's lease. The caller has to ensure that no save is in flight.
    pub async fn release(&mut self, stopped: bool) -> Result<(), StoreError> {
        let release = LeaseRelease {
            agent: self.writer.agent_id.clone(),
            epoch: self.writer.epoch,
            stopped,
        };
        self.handle.queue.release(release).await
    }

    /// Returns whether no save is in flight, so that all decisions are committed.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Waits for the oldest save in flight, and publishes its events if it is committed. Never
    /// returns if no save is in flight.
    pub async fn next(&mut self, bus: &dyn Bus) -> Result<Input, ActorLost> {
        let Some(oldest) = self.in_flight.front_mut() else {
            return std::future::pending().await;
        };
        let result = oldest.receipt.outcome().await;
        let (save, since) = (Arc::clone(&oldest.save), oldest.since);
        self.in_flight.pop_front();
        match result {
            Ok(written) => {
                metrics::meters().saved(since.elapsed());
                self.publish(bus, &save.entries, &written);
                Ok(Input::Saved(Saved {
                    save: save.ticket,
                    seqs: written.seqs,
                    session: written.session_totals,
                }))
            }
            Err(AppendError::InputsGone(inputs)) => Ok(Input::Gone {
                save: save.ticket,
                inputs,
            }),
            Err(AppendError::StaleEpoch) => {
                metrics::meters().write_was_fenced();
                Err(ActorLost::StaleEpoch)
            }
            Err(AppendError::Refused(why)) => {
                Err(ActorLost::Unstorable(Unstorable::new(&why, &save.marks)))
            }
            Err(
                error
                @ (AppendError::Broken(_) | AppendError::NotEnrolled(_) | AppendError::Closed),
            ) => Err(ActorLost::Unsaved(error)),
        }
    }

    fn publish(&self, bus: &dyn Bus, entries: &[Entry], written: &WrittenRows) {
        let mut prev: Seq = written.prev;
        for (entry, &seq) in entries.iter().zip(&written.seqs) {
            let row = RowPosition {
                seq,
                prev,
                hidden_by: None,
            };
            let payload = self
                .writer
                .durable(entry.kind, entry.place, row, &entry.body);
            bus.publish_event(Published {
                session_id: self.writer.session_id.clone(),
                agent_id: self.writer.agent_id.clone(),
                seq: Some(seq),
                payload: Bytes::from(payload),
            });
            prev = seq;
        }
    }
}

/// The append queues of this node, one for each session with an agent in memory.
#[derive(Clone)]
pub struct Queues(Arc<QueuesInner>);

struct QueuesInner {
    store: Arc<dyn SessionStore>,
    node: NodeId,
    open: Mutex<HashMap<SessionId, OpenQueue>>,
}

struct OpenQueue {
    queue: AppendQueue,
    users: usize,
}

/// An agent's handle to the queue of its session. The queue ends when the last handle is dropped.
pub struct QueueHandle {
    pub queue: AppendQueue,
    session: SessionId,
    queues: Queues,
}

impl Queues {
    pub fn new(store: Arc<dyn SessionStore>, node: NodeId) -> Self {
        Self(Arc::new(QueuesInner {
            store,
            node,
            open: Mutex::default(),
        }))
    }

    /// Returns a handle to the session's queue, and starts the queue if it does not run. The queue
    /// runs on the thread of the caller that starts it, so that a save of that caller leaves the
    /// thread only for the database.
    pub fn handle(&self, session: &SessionId) -> QueueHandle {
        let mut open = self.open();
        let one = open.entry(session.clone()).or_insert_with(|| OpenQueue {
            queue: self.start(session),
            users: 0,
        });
        one.users += 1;
        QueueHandle {
            queue: one.queue.clone(),
            session: session.clone(),
            queues: self.clone(),
        }
    }

    fn start(&self, session: &SessionId) -> AppendQueue {
        let QueuesInner { store, node, .. } = &*self.0;
        let (queue, work) = AppendQueue::new(Arc::clone(store), session.clone(), node.clone());
        tokio::spawn(work);
        queue
    }

    fn release(&self, session: &SessionId) {
        let mut open = self.open();
        if let Some(one) = open.get_mut(session) {
            one.users -= 1;
            if one.users == 0 {
                open.remove(session);
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<SessionId, OpenQueue>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QueueHandle {
    fn drop(&mut self) {
        self.queues.release(&self.session);
    }
}
