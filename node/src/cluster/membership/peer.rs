//! What a node knows of another.

use planck_common::registry::NodeStanding;

use super::input::{Revision, Seen};
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

#[derive(Debug)]
pub struct Peer {
    pub record: Record,
    pub heard: Option<Moment>,
    /// Silence counts from here: it was heard, or its record was loaded.
    clock: Option<Moment>,
    pub suspect: bool,
    /// Until when an answer about it is waited for.
    pub busy_until: Option<Moment>,
}

impl Peer {
    pub fn new() -> Self {
        Self { record: Record::Unread, heard: None, clock: None, suspect: false, busy_until: None }
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.record, Record::Gone(_) | Record::Risen(_))
    }

    pub fn may_be_suspected(&self) -> bool {
        !self.suspect && !self.is_gone()
    }

    pub fn is_audible(&self) -> bool {
        !self.is_gone() && !self.suspect && self.heard.is_some()
    }

    pub fn is_busy(&self, now: Moment) -> bool {
        self.busy_until.is_some_and(|until| now < until)
    }

    pub fn hear(&mut self, now: Moment) {
        (self.heard, self.clock) = (Some(now), Some(now));
    }

    /// Its record was loaded: a judge that has not heard it since `judging` counts its silence from here.
    pub fn load(&mut self, now: Moment, judging: Option<Moment>) {
        if self.clock.is_none() || self.clock < judging {
            self.clock = Some(now);
        }
    }

    /// From when its silence counts for a judge since `judging`; nothing when it was neither heard nor loaded since then.
    pub fn silent_since(&self, judging: Moment) -> Option<Moment> {
        self.clock.filter(|clock| *clock >= judging)
    }

    /// Takes note of its record as the leader has it.
    pub fn read(&mut self, seen: Option<&Seen>) {
        self.record = match (self.record, seen) {
            (Record::Gone(NodeStanding::Dead) | Record::Risen(_), Some(seen)) if !seen.standing.is_final() => {
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
