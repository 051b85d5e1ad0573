//! This node's own record, and when the node writes and reads it.

use std::time::Duration;

use planck_common::{
    NodeId,
    registry::{NodeStanding, Nonce},
};

use super::{
    effect::MembershipEffect,
    input::{Revision, SeenNode},
};
use crate::moment::Moment;

/// How long to wait for an answer about this node's own record.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
enum OwnRecordPhase {
    /// There is no record. The leases were checked, or the node is new and holds none.
    Absent,
    Writing {
        since: Moment,
        until: Moment,
    },
    Reading {
        since: Moment,
        until: Moment,
        /// The revision that was known before the read.
        before: Option<Revision>,
    },
    /// The record is missing. Before the node writes it again, SQL must say which leases the node
    /// still holds.
    CheckingLeases {
        since: Moment,
        until: Moment,
    },
    Held {
        revision: Revision,
        standing: NodeStanding,
    },
}

#[derive(Debug)]
pub struct OwnRecord {
    nonce: Nonce,
    wanted: NodeStanding,
    phase: OwnRecordPhase,
    /// When the latest write that the registry confirmed was requested.
    written: Option<Moment>,
    /// When the latest read that found the record was requested.
    read: Option<Moment>,
}

/// How far a node can trust its own view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelfTrust {
    None,
    /// The node's heartbeats come back, but it has no recent proof.
    Unproven,
    /// The node's heartbeats come back and it has a recent proof. Its last doubt was at this
    /// moment.
    Since(Moment),
}

/// What a node found when it read its own record.
#[derive(Debug, PartialEq, Eq)]
pub enum OwnRecordState {
    /// The record is at the same revision as before.
    Unmoved,
    /// The record is at another revision.
    Moved,
    Missing,
    /// The record says that the node was declared dead or left.
    Lost(NodeStanding),
}

impl OwnRecord {
    pub fn new(nonce: Nonce) -> Self {
        Self {
            nonce,
            wanted: NodeStanding::Alive,
            phase: OwnRecordPhase::Absent,
            written: None,
            read: None,
        }
    }

    pub fn held(&self) -> Option<Revision> {
        match self.phase {
            OwnRecordPhase::Held { revision, .. } => Some(revision),
            OwnRecordPhase::Absent
            | OwnRecordPhase::Writing { .. }
            | OwnRecordPhase::Reading { .. }
            | OwnRecordPhase::CheckingLeases { .. } => None,
        }
    }

    pub fn is_reading(&self) -> bool {
        matches!(self.phase, OwnRecordPhase::Reading { .. })
    }

    pub fn want(&mut self, standing: NodeStanding) {
        if !self.wanted.is_final() {
            self.wanted = standing;
        }
    }

    pub fn deadline(&self) -> Option<Moment> {
        match self.phase {
            OwnRecordPhase::Writing { until, .. }
            | OwnRecordPhase::Reading { until, .. }
            | OwnRecordPhase::CheckingLeases { until, .. } => Some(until),
            OwnRecordPhase::Absent | OwnRecordPhase::Held { .. } => None,
        }
    }

    /// Returns whether the latest confirmed write of the record was requested at `moment` or later.
    pub fn is_written_since(&self, moment: Moment) -> bool {
        self.written.is_some_and(|written| written >= moment)
    }

    fn is_read_since(&self, trust: SelfTrust) -> bool {
        matches!((trust, self.read), (SelfTrust::Since(doubt), Some(read)) if read >= doubt)
    }

    /// Advances the phase of the record, and returns the effect that the record needs now, if any.
    /// After a doubt, the node writes its record again. A death that an observer decided meanwhile
    /// depends on the old revision and is therefore refused.
    pub fn drive(
        &mut self,
        now: Moment,
        me: &NodeId,
        trust: SelfTrust,
    ) -> Option<MembershipEffect> {
        let is_old = matches!(trust, SelfTrust::Since(doubt) if !self.is_written_since(doubt));
        match self.phase {
            OwnRecordPhase::Absent => (trust != SelfTrust::None).then(|| self.write(now, None)),
            // A registry that lost everything reuses revisions, so `revision` may now be that of
            // this node's death record.
            OwnRecordPhase::Held { revision, .. } if is_old && !self.is_read_since(trust) => {
                Some(self.read(now, me, Some(revision)))
            }
            OwnRecordPhase::Held { revision, standing } if standing != self.wanted || is_old => {
                Some(self.write(now, Some(revision)))
            }
            OwnRecordPhase::Writing { until, .. } if now >= until => Some(self.read(now, me, None)),
            OwnRecordPhase::Reading { until, before, .. } if now >= until => {
                Some(self.read(now, me, before))
            }
            OwnRecordPhase::CheckingLeases { since, until } if now >= until => {
                Some(self.check_leases(now, since))
            }
            OwnRecordPhase::Held { .. }
            | OwnRecordPhase::Writing { .. }
            | OwnRecordPhase::Reading { .. }
            | OwnRecordPhase::CheckingLeases { .. } => None,
        }
    }

    /// Makes a read of the record due, because a write that depends on the record's revision was
    /// refused or has an unknown outcome.
    pub fn question(&mut self, now: Moment) {
        if matches!(
            self.phase,
            OwnRecordPhase::Held { .. } | OwnRecordPhase::Writing { .. }
        ) {
            self.phase = OwnRecordPhase::Reading {
                since: now,
                until: now,
                before: self.held(),
            };
        }
    }

    pub fn written(&mut self, revision: Revision, standing: NodeStanding) {
        if let OwnRecordPhase::Writing { since, .. } = self.phase {
            self.phase = OwnRecordPhase::Held { revision, standing };
            self.written = Some(since);
        }
    }

    pub fn found(&mut self, seen: Option<&SeenNode>, now: Moment) -> OwnRecordState {
        match seen {
            Some(seen) if seen.standing.is_final() => OwnRecordState::Lost(seen.standing),
            Some(seen) if seen.nonce == self.nonce => {
                if let OwnRecordPhase::Reading { since, .. } = self.phase {
                    self.read = Some(since);
                }
                let moved = !matches!(self.phase, OwnRecordPhase::Reading { before, .. } if before == Some(seen.revision));
                self.phase = OwnRecordPhase::Held {
                    revision: seen.revision,
                    standing: seen.standing,
                };
                if moved {
                    OwnRecordState::Moved
                } else {
                    OwnRecordState::Unmoved
                }
            }
            // No other process has this node's id, so a record of another process counts as
            // missing. A node that never wrote its record never worked, so it holds no leases. While
            // it joins, nothing would check them either.
            Some(_) | None => {
                self.phase = match self.written {
                    None => OwnRecordPhase::Absent,
                    Some(_) => OwnRecordPhase::CheckingLeases {
                        since: now,
                        until: now,
                    },
                };
                OwnRecordState::Missing
            }
        }
    }

    pub fn leases_checked(&mut self, asked_at: Moment) {
        if matches!(self.phase, OwnRecordPhase::CheckingLeases { since, .. } if asked_at >= since) {
            self.phase = OwnRecordPhase::Absent;
        }
    }

    fn write(&mut self, now: Moment, expects: Option<Revision>) -> MembershipEffect {
        self.phase = OwnRecordPhase::Writing {
            since: now,
            until: now + PATIENCE,
        };
        MembershipEffect::Write {
            standing: self.wanted,
            expects,
        }
    }

    fn read(&mut self, now: Moment, me: &NodeId, before: Option<Revision>) -> MembershipEffect {
        self.phase = OwnRecordPhase::Reading {
            since: now,
            until: now + PATIENCE,
            before,
        };
        MembershipEffect::Read { node: me.clone() }
    }

    fn check_leases(&mut self, now: Moment, since: Moment) -> MembershipEffect {
        self.phase = OwnRecordPhase::CheckingLeases {
            since,
            until: now + PATIENCE,
        };
        MembershipEffect::CheckLeases { asked_at: now }
    }
}
