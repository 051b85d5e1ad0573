//! Saves the rows of the log that an agent decides on, and publishes them as events after the
//! commit.

use std::time::Instant;

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesOrdered};
use planck_common::{
    Seq,
    envelope::{RowPosition, Writer},
};

use super::queues::QueueHold;
use crate::{
    agent::{Entry, Input, Mark, Save, Ticket, Unstorable, input::Saved},
    bus::{Bus, Published},
};
use planck_store::{
    LeaseRelease, StoreError,
    queue::{AppendError, PendingSave, Receipt, WrittenRows},
};
use planck_telemetry::metrics;

/// An agent's access to the log of its session, with its saves in flight.
pub struct Saves {
    pub writer: Writer,
    hold: QueueHold,
    under_way: FuturesOrdered<BoxFuture<'static, Attempt>>,
}

/// A save, with the outcome of writing it.
struct Attempt {
    ticket: Ticket,
    entries: Vec<Entry>,
    marks: Vec<Mark>,
    result: Result<WrittenRows, AppendError>,
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
    #[error("the state of the resting agent cannot be read: {0}")]
    Unreadable(serde_json::Error),
}

async fn settle(
    ticket: Ticket,
    entries: Vec<Entry>,
    marks: Vec<Mark>,
    receipt: Result<Receipt, AppendError>,
) -> Attempt {
    let result = match receipt {
        Ok(receipt) => receipt.outcome().await,
        Err(error) => Err(error),
    };
    Attempt {
        ticket,
        entries,
        marks,
        result,
    }
}

impl Saves {
    pub fn new(writer: Writer, hold: QueueHold) -> Self {
        Self {
            writer,
            hold,
            under_way: FuturesOrdered::new(),
        }
    }

    /// Submits a save to the session's queue.
    pub async fn begin(&mut self, save: Save) {
        let Save {
            ticket,
            entries,
            marks,
            puts,
            usage,
            state,
            beside: _,
        } = save;
        let pending = PendingSave {
            agent: self.writer.agent_id.clone(),
            epoch: self.writer.epoch,
            entries: entries.clone(),
            marks: marks.clone(),
            puts,
            usage,
            state,
        };
        let since = Instant::now();
        let receipt = self.hold.queue.submit(pending).await;
        let attempt = async move {
            let attempt = settle(ticket, entries, marks, receipt).await;
            if attempt.result.is_ok() {
                metrics::meters().saved(since.elapsed());
            }
            attempt
        };
        self.under_way.push_back(Box::pin(attempt));
    }

    /// Releases the agent's lease. The caller has to ensure that no save is in flight.
    pub async fn release(&mut self, stopped: bool) -> Result<(), StoreError> {
        let release = LeaseRelease {
            agent: self.writer.agent_id.clone(),
            epoch: self.writer.epoch,
            stopped,
        };
        self.hold.queue.release(release).await
    }

    /// Frees memory. The caller has to ensure that no save is in flight.
    pub fn rest(&mut self) {
        self.under_way = FuturesOrdered::new();
    }

    /// Returns whether no save is in flight, so that all decisions are committed.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Waits for the oldest save in flight, and publishes its events if it is committed. Never
    /// returns if no save is in flight.
    pub async fn next(&mut self, bus: &dyn Bus) -> Result<Input, ActorLost> {
        let Some(Attempt {
            ticket,
            entries,
            marks,
            result,
        }) = self.under_way.next().await
        else {
            return std::future::pending().await;
        };
        match result {
            Ok(written) => {
                self.publish(bus, &entries, &written);
                Ok(Input::Saved(Saved {
                    save: ticket,
                    seqs: written.seqs,
                    session: written.session_totals,
                }))
            }
            Err(AppendError::InputsGone(inputs)) => Ok(Input::Gone {
                save: ticket,
                inputs,
            }),
            Err(AppendError::StaleEpoch) => {
                metrics::meters().write_was_fenced();
                Err(ActorLost::StaleEpoch)
            }
            Err(AppendError::Refused(why)) => {
                Err(ActorLost::Unstorable(Unstorable::new(&why, &marks)))
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
