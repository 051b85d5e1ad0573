//! **Pure**: how a node takes over the session of a dead one. The lead's lease in SQL is the fence;
//! then what is left of the team is stopped, its record is dead, the next life's record is written,
//! and only then anything starts.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, time::Duration};

use planck_common::{NodeId, SessionId};

use super::moment::Moment;

/// How long nodes that hosted members may take to stop them.
const STOPPING: Duration = Duration::from_secs(1);
/// How long an answer is waited for before it is asked for again.
const PATIENCE: Duration = Duration::from_secs(2);
/// After its lease was taken, a node that lost NATS only sees so in SQL and stops its tools within
/// this time.
const SEEN_IN_SQL: Duration = Duration::from_millis(1_500);
/// How much later the next node in turn tries.
const TURN: Duration = Duration::from_millis(500);

/// The lead's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub node: Option<NodeId>,
    pub epoch: i64,
    pub incarnation: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The session goes on here.
    Resume,
    /// Its open turns end with an error, and it closes.
    Stop,
}

/// What is to be claimed, and from whom.
#[derive(Debug, Clone)]
pub struct Plan {
    pub me: NodeId,
    pub seen: Lease,
    /// Live nodes that may still run members of the team.
    pub hosts: BTreeSet<NodeId>,
    pub policy: Policy,
    /// From when on a tool may start at the earliest: nothing of a node that ended still runs by
    /// then.
    pub tools_from: Moment,
    /// After so long nothing runs any more on a node that does not answer.
    pub grace: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The time of `next_wake` has come.
    Woken,
    /// The outcome of `TakeLease`, where it is known.
    LeaseTaken,
    LeaseRefused,
    /// The lead's lease as SQL has it.
    LeaseRead(Lease),
    /// A node stopped what it ran of the team, or is gone.
    Stopped {
        node: NodeId,
    },
    /// The record of the team's last life is dead.
    Buried,
    /// The record of its next life is written, by this node.
    TeamCreated,
    /// There is one already, of another node.
    TeamTaken,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Claim the lead's lease, on condition that its epoch is the one seen; epoch and incarnation
    /// rise.
    TakeLease {
        seen: i64,
    },
    /// Its outcome is not known: see whose it is.
    ReadLease,
    StopTeam {
        node: NodeId,
        incarnation: i64,
    },
    /// Make sure that the record of this life is dead; where there is none, create it so.
    Bury {
        incarnation: i64,
    },
    CreateTeam {
        incarnation: i64,
    },
    /// Claim the members and start the lead and them from SQL. Models stream at once; tools wait.
    Start {
        epoch: i64,
        incarnation: i64,
        tools_from: Moment,
    },
    /// Claim the members and close the session.
    Close {
        epoch: i64,
        incarnation: i64,
    },
    /// Another node has it.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Fencing { unsure: bool },
    Clearing { buried: bool, since: Moment },
    Creating,
    Over,
}

#[derive(Debug)]
pub struct Claim {
    plan: Plan,
    phase: Phase,
    asked_until: Moment,
}

impl Claim {
    /// A claim, and what it begins with.
    pub fn begin(plan: Plan, now: Moment) -> (Self, Vec<Effect>) {
        let claim = Self {
            plan,
            phase: Phase::Fencing { unsure: false },
            asked_until: now + PATIENCE,
        };
        let seen = claim.plan.seen.epoch;
        (claim, vec![Effect::TakeLease { seen }])
    }

    pub fn on(&mut self, now: Moment, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        match (self.phase, input) {
            (Phase::Fencing { .. }, Input::LeaseTaken) => self.clear(now, &mut out),
            (Phase::Fencing { .. }, Input::LeaseRefused) => self.lose(&mut out),
            (Phase::Fencing { unsure: true }, Input::LeaseRead(lease)) => {
                self.lease_read(now, &lease, &mut out)
            }
            (Phase::Clearing { .. }, Input::Stopped { node }) => {
                self.plan.hosts.remove(&node);
            }
            (Phase::Clearing { since, .. }, Input::Buried) => {
                self.phase = Phase::Clearing {
                    buried: true,
                    since,
                }
            }
            (Phase::Creating, Input::TeamCreated) => self.finish(&mut out),
            (Phase::Creating, Input::TeamTaken) => self.lose(&mut out),
            // What is late answers a question that is settled.
            _ => {}
        }
        self.go_on(now, &mut out);
        out
    }

    /// When it must be called again, if nothing happens before.
    pub fn next_wake(&self) -> Option<Moment> {
        match self.phase {
            Phase::Fencing { .. } | Phase::Creating | Phase::Clearing { buried: false, .. } => {
                Some(self.asked_until)
            }
            Phase::Clearing { since, .. } => Some(since + STOPPING),
            Phase::Over => None,
        }
    }

    fn lease_read(&mut self, now: Moment, lease: &Lease, out: &mut Vec<Effect>) {
        let mine =
            lease.node.as_ref() == Some(&self.plan.me) && lease.epoch == self.plan.seen.epoch + 1;
        if mine {
            self.clear(now, out);
        } else if lease.epoch == self.plan.seen.epoch {
            self.phase = Phase::Fencing { unsure: false };
            self.asked_until = now + PATIENCE;
            out.push(Effect::TakeLease { seen: lease.epoch });
        } else {
            self.lose(out);
        }
    }

    fn clear(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if self.plan.seen.node.is_some() {
            self.plan.tools_from = self.plan.tools_from.max(now + SEEN_IN_SQL);
        }
        self.phase = Phase::Clearing {
            buried: false,
            since: now,
        };
        self.asked_until = now + PATIENCE;
        let incarnation = self.plan.seen.incarnation;
        out.extend(self.plan.hosts.iter().map(|node| Effect::StopTeam {
            node: node.clone(),
            incarnation,
        }));
        out.push(Effect::Bury { incarnation });
    }

    fn go_on(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if let Phase::Clearing {
            buried: true,
            since,
        } = self.phase
            && (self.plan.hosts.is_empty() || now >= since + STOPPING)
        {
            return self.cleared(now, since, out);
        }
        if now < self.asked_until {
            return;
        }
        self.asked_until = now + PATIENCE;
        match self.phase {
            Phase::Fencing { .. } => {
                self.phase = Phase::Fencing { unsure: true };
                out.push(Effect::ReadLease);
            }
            Phase::Clearing { buried: false, .. } => out.push(Effect::Bury {
                incarnation: self.plan.seen.incarnation,
            }),
            Phase::Creating => out.push(self.create()),
            Phase::Clearing { buried: true, .. } | Phase::Over => {}
        }
    }

    /// A host that did not answer may be stopped itself: its tools end when their reapers miss it.
    fn cleared(&mut self, now: Moment, asked_at: Moment, out: &mut Vec<Effect>) {
        if !self.plan.hosts.is_empty() {
            self.plan.tools_from = self.plan.tools_from.max(asked_at + self.plan.grace);
        }
        match self.plan.policy {
            Policy::Stop => self.finish(out),
            Policy::Resume => {
                self.phase = Phase::Creating;
                self.asked_until = now + PATIENCE;
                out.push(self.create());
            }
        }
    }

    fn create(&self) -> Effect {
        Effect::CreateTeam {
            incarnation: self.plan.seen.incarnation + 1,
        }
    }

    fn finish(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Over;
        let (epoch, incarnation) = (self.plan.seen.epoch + 1, self.plan.seen.incarnation + 1);
        out.push(match self.plan.policy {
            Policy::Resume => Effect::Start {
                epoch,
                incarnation,
                tools_from: self.plan.tools_from,
            },
            Policy::Stop => Effect::Close { epoch, incarnation },
        });
    }

    fn lose(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Over;
        out.push(Effect::Lost);
    }
}

/// How long a node holds back before it claims, so that of many that could the same one is first
/// everywhere.
pub fn turn<'a>(
    session: &SessionId,
    me: &NodeId,
    others: impl Iterator<Item = &'a NodeId>,
) -> Duration {
    let mine = (weight(session, me), me);
    let before = others
        .filter(|other| (weight(session, other), *other) < mine)
        .count();
    TURN * u32::try_from(before).unwrap_or(u32::MAX)
}

/// FNV-1a over both ids: the same on every node, different for every session.
fn weight(session: &SessionId, node: &NodeId) -> u64 {
    let bytes = session.bytes().chain(node.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
