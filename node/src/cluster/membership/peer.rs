//! What a node knows of another.

use planck_common::registry::NodeStanding;

use super::{
    input::{Revision, Seen},
    witness::Testimony,
};
use crate::cluster::moment::Moment;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    Unread,
    Missing,
    At(Revision),
    /// Left or dead, for good.
    Gone(NodeStanding),
    /// It was dead, and its record says otherwise: the registry forgot the verdict.
    Risen(Revision),
}

/// A judge's.
#[derive(Debug, Clone, Copy)]
pub struct Bench {
    /// From when on it would have heard whoever spoke.
    pub sound: Moment,
    /// From when on it may judge.
    pub judging: Moment,
}

#[derive(Debug)]
pub struct Peer {
    pub record: Record,
    pub heard: Option<Moment>,
    loaded: Option<Moment>,
    pub suspected_at: Option<Moment>,
    /// Until when an answer about it is waited for.
    pub busy_until: Option<Moment>,
    /// Whether its proofs bear its heartbeats out.
    pub testimony: Testimony,
}

impl Peer {
    pub fn new() -> Self {
        Self {
            record: Record::Unread,
            heard: None,
            loaded: None,
            suspected_at: None,
            busy_until: None,
            testimony: Testimony::default(),
        }
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.record, Record::Gone(_) | Record::Risen(_))
    }

    pub fn may_be_suspected(&self) -> bool {
        self.suspected_at.is_none() && !self.is_gone()
    }

    pub fn is_accused(&self) -> bool {
        self.suspected_at.is_some() || matches!(self.record, Record::Risen(_))
    }

    pub fn is_audible(&self) -> bool {
        self.may_be_suspected() && self.heard.is_some()
    }

    pub fn is_busy(&self, now: Moment) -> bool {
        self.busy_until.is_some_and(|until| now < until)
    }

    pub fn hear(&mut self, now: Moment) {
        self.heard = Some(now);
    }

    /// Its record was loaded: a judge since `judging` that has not heard it counts its silence from
    /// here.
    pub fn load(&mut self, now: Moment, judging: Option<Moment>) {
        if self.loaded.is_none() || self.loaded < judging {
            self.loaded = Some(now);
        }
    }

    /// From when its silence counts for a judge: it was heard while the judge was sound, or else
    /// its record was loaded by one who may judge.
    pub fn silent_since(&self, bench: Bench) -> Option<Moment> {
        let heard = self.heard.filter(|heard| *heard >= bench.sound);
        heard.or_else(|| self.loaded.filter(|loaded| *loaded >= bench.judging))
    }

    /// Takes note of its record as the leader has it.
    pub fn read(&mut self, seen: Option<&Seen>) {
        self.record = match (self.record, seen) {
            (Record::Gone(NodeStanding::Dead) | Record::Risen(_), Some(seen))
                if !seen.standing.is_final() =>
            {
                Record::Risen(seen.revision)
            }
            (gone @ Record::Gone(_), _) => gone,
            (Record::Risen(_), _) => Record::Gone(NodeStanding::Dead),
            (_, Some(seen)) if seen.standing.is_final() => Record::Gone(seen.standing),
            (_, Some(seen)) => Record::At(seen.revision),
            (_, None) => Record::Missing,
        };
    }
}
