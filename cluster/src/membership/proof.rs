//! Proofs of life: writes that the registry accepts only while this node's record is unchanged.

use std::time::Duration;

use crate::moment::Moment;

/// The proofs that this node writes.
#[derive(Debug)]
pub struct Proofs {
    every: Duration,
    last_sent: Option<Moment>,
    in_flight: Option<Moment>,
    newest: Option<Moment>,
}

impl Proofs {
    pub fn new(every: Duration) -> Self {
        Self {
            every,
            last_sent: None,
            in_flight: None,
            newest: None,
        }
    }

    /// Returns whether a proof must be sent now. A proof from before `doubt` does not end that
    /// doubt, so the next one is due as soon as none is in flight.
    pub fn is_due(&self, now: Moment, doubt: Option<Moment>) -> bool {
        let Some(last) = self.last_sent else {
            return true;
        };
        let in_turn = now >= last + self.every;
        let wanted = self.in_flight.is_none() && doubt.is_some_and(|doubt| last < doubt);
        in_turn || wanted
    }

    pub fn next(&self) -> Option<Moment> {
        self.last_sent.map(|last| last + self.every)
    }

    pub fn sent(&mut self, now: Moment) {
        (self.last_sent, self.in_flight) = (Some(now), Some(now));
    }

    pub fn committed(&mut self, sent_at: Moment) {
        self.newest = self.newest.max(Some(sent_at));
        self.answered(sent_at);
    }

    /// Handles the answer to a proof. Returns whether that proof was the one in flight.
    pub fn answered(&mut self, sent_at: Moment) -> bool {
        let awaited = self.in_flight == Some(sent_at);
        if awaited {
            self.in_flight = None;
        }
        awaited
    }

    /// Returns when the newest accepted proof was sent.
    pub fn newest(&self) -> Option<Moment> {
        self.newest
    }

    pub fn is_younger(&self, than: Duration, now: Moment) -> bool {
        self.newest.is_some_and(|newest| now.since(newest) <= than)
    }

    /// Makes the next proof due at once, because this node's record has a new revision.
    pub fn restart(&mut self) {
        (self.last_sent, self.in_flight) = (None, None);
    }
}
