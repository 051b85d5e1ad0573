//! Publications that were told and not yet found in the log.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
};

use planck_common::{AgentId, Seq, envelope::Envelope};

/// After so many the log is looked at.
const MOST: usize = 256;

/// An event that was given and is not in the log: somebody else published it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retracted {
    /// The number under which it was given.
    pub seq: Seq,
    /// Its type.
    pub kind: String,
    /// The agent in whose name it was published.
    pub agent_id: AgentId,
}

#[derive(Debug)]
struct Claim {
    retracted: Retracted,
    digest: u64,
    /// How often the log had been asked for when it was told.
    round: u64,
}

#[derive(Debug, Default)]
pub(super) struct Claims {
    unchecked: BTreeMap<Seq, Claim>,
    retracted: Vec<Retracted>,
    hasher: RandomState,
    round: u64,
    believed: bool,
}

impl Claims {
    /// Nothing is ever checked.
    pub fn believed() -> Self {
        Self {
            believed: true,
            ..Self::default()
        }
    }

    pub fn are_checked(&self) -> bool {
        !self.believed
    }

    /// The log is asked for.
    pub fn begin_round(&mut self) {
        self.round += 1;
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    /// The first event that the log has not confirmed.
    pub fn first(&self) -> Option<Seq> {
        self.unchecked.keys().next().copied()
    }

    /// Whether the page did not reach all that was told before it was asked for, up to the log's
    /// head.
    pub fn are_open_before(&self, head: Seq) -> bool {
        self.unchecked
            .range(..=head)
            .any(|(_, claim)| claim.round < self.round)
    }

    /// Notes what is told of a publication; says whether it is time to look at the log.
    pub fn note(&mut self, event: &Envelope) -> bool {
        let Some(seq) = event.seq.filter(|_| !self.believed) else {
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
            Claim {
                retracted,
                digest,
                round: self.round,
            },
        );
        self.unchecked.len() >= MOST
    }

    /// Whether another event than this one was told under its number, and not checked.
    pub fn contradicts(&self, seq: Seq, event: &Envelope) -> bool {
        self.unchecked
            .get(&seq)
            .is_some_and(|claim| claim.digest != self.digest(event))
    }

    /// Checks what was told against the log's event; says whether it was another.
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

    /// What is left unchecked before this place has no row in the log.
    pub fn reject_before(&mut self, upto: Seq) {
        let rest = self.unchecked.split_off(&upto);
        let rejected = std::mem::replace(&mut self.unchecked, rest);
        self.retracted
            .extend(rejected.into_values().map(|claim| claim.retracted));
    }

    /// What was told before the log was asked for, and is beyond the end it then had, was never in
    /// it. Says whether nothing beyond it is left.
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

    /// Of what a person is shown. Whether a row was rewound since is no difference.
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
