//! Published events that were returned and are not yet confirmed by the log.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
};

use planck_common::{AgentId, Seq, envelope::Envelope};

/// The maximum number of unconfirmed events, after which the log is read.
const MOST: usize = 256;

/// An event that was returned and is not in the log, because another program published it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retracted {
    /// The number under which the event was returned.
    pub seq: Seq,
    /// The event's `type`.
    pub kind: String,
    /// The agent in whose name the event was published.
    pub agent_id: AgentId,
}

#[derive(Debug)]
struct UnconfirmedEvent {
    retracted: Retracted,
    digest: u64,
    /// The number of reads of the log that had begun when the event was returned.
    round: u64,
}

#[derive(Debug, Default)]
pub(super) struct UnconfirmedEvents {
    unchecked: BTreeMap<Seq, UnconfirmedEvent>,
    retracted: Vec<Retracted>,
    hasher: RandomState,
    round: u64,
    trusted: bool,
}

impl UnconfirmedEvents {
    /// Returns an empty set for a bus whose publications are trusted and not compared with the log.
    pub fn trusted() -> Self {
        Self {
            trusted: true,
            ..Self::default()
        }
    }

    pub fn are_checked(&self) -> bool {
        !self.trusted
    }

    /// Records that a read of the log begins.
    pub fn begin_round(&mut self) {
        self.round += 1;
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    /// Returns the number of the first event that the log has not confirmed, or `None` if all are
    /// confirmed.
    pub fn first(&self) -> Option<Seq> {
        self.unchecked.keys().next().copied()
    }

    /// Returns whether events up to `head` that were returned before the latest read began are
    /// still unconfirmed.
    pub fn are_open_before(&self, head: Seq) -> bool {
        self.unchecked
            .range(..=head)
            .any(|(_, claim)| claim.round < self.round)
    }

    /// Records a returned publication, unless publications are trusted. Returns whether the log
    /// must be read, because the number of unconfirmed events has reached [`MOST`].
    pub fn note(&mut self, event: &Envelope) -> bool {
        let Some(seq) = event.seq.filter(|_| !self.trusted) else {
            return false;
        };
        let retracted = Retracted {
            seq,
            kind: event.kind.clone(),
            agent_id: event.agent_id.clone(),
        };
        let digest = self.digest(event);
        self.unchecked.insert(
            seq,
            UnconfirmedEvent {
                retracted,
                digest,
                round: self.round,
            },
        );
        self.unchecked.len() >= MOST
    }

    /// Returns whether an unconfirmed event was returned under the number `seq` that differs from
    /// `event`.
    pub fn contradicts(&self, seq: Seq, event: &Envelope) -> bool {
        self.unchecked
            .get(&seq)
            .is_some_and(|claim| claim.digest != self.digest(event))
    }

    /// Compares an event of the log with the unconfirmed event of the same number, if there is one.
    /// The unconfirmed event is then confirmed, or retracted if the two differ. Returns whether
    /// they differ.
    pub fn check(&mut self, event: &Envelope) -> bool {
        let Some(claim) = event.seq.and_then(|seq| self.unchecked.remove(&seq)) else {
            return false;
        };
        let differs = claim.digest != self.digest(event);
        if differs {
            self.retracted.push(claim.retracted);
        }
        differs
    }

    /// Rejects the unconfirmed events before row `upto`, because the log has no rows for them.
    pub fn reject_before(&mut self, upto: Seq) {
        let rest = self.unchecked.split_off(&upto);
        let rejected = std::mem::replace(&mut self.unchecked, rest);
        self.retracted
            .extend(rejected.into_values().map(|claim| claim.retracted));
    }

    /// Rejects events that were returned before the latest read began and lie beyond the log's
    /// head. Returns `true` if an event was rejected and no event beyond the head is left.
    pub fn reject_beyond(&mut self, head: Seq) -> bool {
        let round = self.round;
        let forged: Vec<Seq> = self
            .unchecked
            .iter()
            .filter(|(seq, claim)| **seq > head && claim.round < round)
            .map(|(seq, _)| *seq)
            .collect();
        self.retracted.extend(
            forged
                .iter()
                .filter_map(|seq| self.unchecked.remove(seq))
                .map(|claim| claim.retracted),
        );
        !forged.is_empty()
            && self
                .unchecked
                .keys()
                .next_back()
                .is_none_or(|last| *last <= head)
    }

    pub fn retracted(&self) -> &[Retracted] {
        &self.retracted
    }

    pub fn take_retracted(&mut self) -> Vec<Retracted> {
        std::mem::take(&mut self.retracted)
    }

    /// Returns a digest of the fields that a user sees. The digest does not depend on whether the
    /// row was rewound later.
    fn digest(&self, event: &Envelope) -> u64 {
        let place = (event.epoch, event.turn, event.request);
        self.hasher.hash_one((
            event.kind.as_str(),
            event.agent_id.as_str(),
            place,
            event.data.get(),
        ))
    }
}
