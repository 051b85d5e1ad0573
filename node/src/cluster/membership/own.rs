//! One's own record: written once, and found out about whenever a write on its condition is
//! refused.

use std::time::Duration;

use planck_common::{
    NodeId,
    registry::{NodeStanding, Nonce},
};

use super::{
    effect::Effect,
    input::{Revision, Seen},
};
use crate::cluster::moment::Moment;

/// How long an answer about one's own record is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
enum Phase {
    /// It is not there; leases were checked, or there are none yet.
    Absent,
    Writing {
        since: Moment,
        until: Moment,
    },
    Reading {
        since: Moment,
        until: Moment,
        /// The revision that was held before.
        before: Option<Revision>,
    },
    /// It is missing: before it is written again SQL must say what is still this node's.
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
    phase: Phase,
    /// When the record that stands there was written.
    written: Option<Moment>,
    /// When it was last asked for and found to be there.
    read: Option<Moment>,
}

/// How far a node trusts itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    None,
    /// It hears itself, and has proved nothing lately.
    Heard,
    /// It hears itself and has proved it; before this it was in doubt.
    Since(Moment),
}

/// What a reading of one's own record came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// It stands where it stood before.
    Unmoved,
    /// It stands at another revision.
    Moved,
    Missing,
    /// Convicted, or left.
    Lost(NodeStanding),
}

impl OwnRecord {
    pub fn new(nonce: Nonce) -> Self {
        Self {
            nonce,
            wanted: NodeStanding::Alive,
            phase: Phase::Absent,
            written: None,
            read: None,
        }
    }

    pub fn held(&self) -> Option<Revision> {
        match self.phase {
            Phase::Held { revision, .. } => Some(revision),
            Phase::Absent
            | Phase::Writing { .. }
            | Phase::Reading { .. }
            | Phase::CheckingLeases { .. } => None,
        }
    }

    pub fn is_reading(&self) -> bool {
        matches!(self.phase, Phase::Reading { .. })
    }

    pub fn want(&mut self, standing: NodeStanding) {
        if !self.wanted.is_final() {
            self.wanted = standing;
        }
    }

    pub fn deadline(&self) -> Option<Moment> {
        match self.phase {
            Phase::Writing { until, .. }
            | Phase::Reading { until, .. }
            | Phase::CheckingLeases { until, .. } => Some(until),
            Phase::Absent | Phase::Held { .. } => None,
        }
    }

    /// Whether it was written since a moment.
    pub fn is_written_since(&self, moment: Moment) -> bool {
        self.written.is_some_and(|written| written >= moment)
    }

    fn is_read_since(&self, trust: Trust) -> bool {
        matches!((trust, self.read), (Trust::Since(doubt), Some(read)) if read >= doubt)
    }

    /// What is to be done about it now. One from before a doubt is written again when that is over:
    /// what a judge decided then, on the condition that it stands where it stood, cannot be written
    /// after this node is back.
    pub fn drive(&mut self, now: Moment, me: &NodeId, trust: Trust) -> Option<Effect> {
        let is_old = matches!(trust, Trust::Since(doubt) if !self.is_written_since(doubt));
        match self.phase {
            Phase::Absent => (trust != Trust::None).then(|| self.write(now, None)),
            // A registry that forgot everything gives revisions out again: the same one can be of a
            // verdict.
            Phase::Held { revision, .. } if is_old && !self.is_read_since(trust) => {
                Some(self.read(now, me, Some(revision)))
            }
            Phase::Held { revision, standing } if standing != self.wanted || is_old => {
                Some(self.write(now, Some(revision)))
            }
            Phase::Writing { until, .. } if now >= until => Some(self.read(now, me, None)),
            Phase::Reading { until, before, .. } if now >= until => {
                Some(self.read(now, me, before))
            }
            Phase::CheckingLeases { since, until } if now >= until => {
                Some(self.check_leases(now, since))
            }
            Phase::Held { .. }
            | Phase::Writing { .. }
            | Phase::Reading { .. }
            | Phase::CheckingLeases { .. } => None,
        }
    }

    /// A write on its condition was refused or has an unknown outcome: what stands there decides.
    pub fn question(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Held { .. } | Phase::Writing { .. }) {
            self.phase = Phase::Reading {
                since: now,
                until: now,
                before: self.held(),
            };
        }
    }

    pub fn written(&mut self, revision: Revision, standing: NodeStanding) {
        if let Phase::Writing { since, .. } = self.phase {
            self.phase = Phase::Held { revision, standing };
            self.written = Some(since);
        }
    }

    pub fn found(&mut self, seen: Option<&Seen>, now: Moment) -> Found {
        match seen {
            Some(seen) if seen.standing.is_final() => Found::Lost(seen.standing),
            Some(seen) if seen.nonce == self.nonce => {
                if let Phase::Reading { since, .. } = self.phase {
                    self.read = Some(since);
                }
                let moved = !matches!(self.phase, Phase::Reading { before, .. } if before == Some(seen.revision));
                self.phase = Phase::Held {
                    revision: seen.revision,
                    standing: seen.standing,
                };
                if moved { Found::Moved } else { Found::Unmoved }
            }
            // Nobody else is given this node's id: a record of another process is as good as none.
            Some(_) | None => {
                self.phase = Phase::CheckingLeases {
                    since: now,
                    until: now,
                };
                Found::Missing
            }
        }
    }

    pub fn leases_checked(&mut self, asked_at: Moment) {
        if matches!(self.phase, Phase::CheckingLeases { since, .. } if asked_at >= since) {
            self.phase = Phase::Absent;
        }
    }

    fn write(&mut self, now: Moment, expects: Option<Revision>) -> Effect {
        self.phase = Phase::Writing {
            since: now,
            until: now + PATIENCE,
        };
        Effect::Write {
            standing: self.wanted,
            expects,
        }
    }

    fn read(&mut self, now: Moment, me: &NodeId, before: Option<Revision>) -> Effect {
        self.phase = Phase::Reading {
            since: now,
            until: now + PATIENCE,
            before,
        };
        Effect::Read { node: me.clone() }
    }

    fn check_leases(&mut self, now: Moment, since: Moment) -> Effect {
        self.phase = Phase::CheckingLeases {
            since,
            until: now + PATIENCE,
        };
        Effect::CheckLeases { asked_at: now }
    }
}
