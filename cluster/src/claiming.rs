//! **Pure**: decides how a node begins the next incarnation of a team whose orchestrator has no
//! live host. The orchestrator's lease in SQL is the fence. After the node has taken the lease, it
//! asks the living hosts to stop the members of the previous incarnation, and marks that
//! incarnation's record dead. Then it writes the record of the next incarnation, and only then do
//! agents start. If the session is to end, the node closes it instead of writing that record.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, time::Duration};

use planck_common::NodeId;

use crate::{
    moment::Moment,
    planted::{PlantedFault, is_planted},
};

/// How long a claim waits for the members' living hosts to stop them.
const STOPPING: Duration = Duration::from_secs(1);
/// How long a claim waits for an answer before it repeats the request, or reads the lease after
/// `TakeLease`.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a node that lost only NATS may take to read in SQL that it lost a lease, and to stop
/// its tools.
pub(super) const SEEN_IN_SQL: Duration = Duration::from_millis(1_500);

/// The lease of a session's orchestrator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeadLease {
    pub node: Option<NodeId>,
    pub epoch: i64,
    pub incarnation: i64,
}

/// Whether a session continues or is closed after its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimPolicy {
    /// The session continues on this node.
    Resume,
    /// The session closes, and its open turns end with an error.
    Stop,
}

/// The lease that a node claims, and the hosts that must stop before tools start.
#[derive(Debug, Clone)]
pub struct ClaimPlan {
    pub me: NodeId,
    pub seen: LeadLease,
    /// The living nodes that may still run members of the team.
    pub hosts: BTreeSet<NodeId>,
    pub policy: ClaimPolicy,
    /// The earliest time for a tool to start. By then, nothing of the team still runs on the nodes
    /// that this node saw die. The claim may postpone it.
    pub tools_from: Moment,
    /// How long tools may still run on a node that does not answer the request to stop.
    pub grace: Duration,
}

/// An input of the claim, which is an event or the answer to an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimInput {
    /// The time that `next_wake` returned has come.
    Woken,
    /// Answers `TakeLease`: the lease was taken. If the outcome is unknown, the caller gives no
    /// answer.
    LeaseTaken,
    /// Answers `TakeLease` or `ReadLease`: the epoch of the lease has changed, or there is no lead.
    LeaseRefused,
    /// Answers `ReadLease` with the lease.
    LeaseRead(LeadLease),
    /// Answers `StopTeam`: the node has stopped its members. For a node that does not confirm this,
    /// the caller gives no answer.
    Stopped { node: NodeId },
    /// Answers `MarkTeamDead`: the record is dead.
    TeamMarkedDead,
    /// Answers `CreateTeam`: the record exists, and this node wrote it.
    TeamCreated,
    /// Answers `CreateTeam`: the registry holds another record.
    TeamTaken,
}

/// An action that the caller must perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimEffect {
    /// Claim the lead's lease on condition that its epoch is `seen`. The claim increases the
    /// lease's epoch and incarnation.
    TakeLease { seen: i64 },
    /// Read the lead's lease, because the outcome of `TakeLease` is unknown.
    ReadLease,
    /// Make a node stop its agents of this incarnation and of earlier ones.
    StopTeam { node: NodeId, incarnation: i64 },
    /// Mark the record of this incarnation dead, or create a dead one if there is none.
    MarkTeamDead { incarnation: i64 },
    /// Create the record of the next incarnation.
    CreateTeam { incarnation: i64 },
    /// Start the lead, and claim the members. Models may be called at once, but tools wait until
    /// `tools_from`.
    Start {
        epoch: i64,
        incarnation: i64,
        tools_from: Moment,
    },
    /// Close the session under the lease.
    Close { epoch: i64, incarnation: i64 },
    /// End the claim without starting anything, because the lease or the team's record changed
    /// meanwhile.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimPhase {
    Fencing { unsure: bool },
    Clearing { marked_dead: bool, since: Moment },
    Creating,
    Over,
}

/// A claim that is under way.
#[derive(Debug)]
pub struct TeamClaim {
    plan: ClaimPlan,
    phase: ClaimPhase,
    asked_until: Moment,
}

impl TeamClaim {
    /// Begins a claim. Returns it with its first effects.
    pub fn begin(plan: ClaimPlan, now: Moment) -> (Self, Vec<ClaimEffect>) {
        let claim = Self {
            plan,
            phase: ClaimPhase::Fencing { unsure: false },
            asked_until: now + PATIENCE,
        };
        let seen = claim.plan.seen.epoch;
        (claim, vec![ClaimEffect::TakeLease { seen }])
    }

    /// Takes one input, and returns the effects in the order in which the caller must begin them.
    pub fn on(&mut self, now: Moment, input: ClaimInput) -> Vec<ClaimEffect> {
        let mut out = Vec::new();
        match (self.phase, input) {
            (ClaimPhase::Fencing { .. }, ClaimInput::LeaseTaken) => self.clear(now, &mut out),
            (ClaimPhase::Fencing { .. }, ClaimInput::LeaseRefused)
                if is_planted(PlantedFault::ClaimAtAnyEpoch) =>
            {
                self.phase = ClaimPhase::Fencing { unsure: true };
                out.push(ClaimEffect::ReadLease);
            }
            (ClaimPhase::Fencing { .. }, ClaimInput::LeaseRefused) => self.lose(&mut out),
            (ClaimPhase::Fencing { unsure: true }, ClaimInput::LeaseRead(lease)) => {
                self.lease_read(now, &lease, &mut out)
            }
            (ClaimPhase::Clearing { .. }, ClaimInput::Stopped { node }) => {
                self.plan.hosts.remove(&node);
            }
            (ClaimPhase::Clearing { since, .. }, ClaimInput::TeamMarkedDead) => {
                self.phase = ClaimPhase::Clearing {
                    marked_dead: true,
                    since,
                }
            }
            (ClaimPhase::Creating, ClaimInput::TeamCreated) => self.finish(&mut out),
            (ClaimPhase::Creating, ClaimInput::TeamTaken) => self.lose(&mut out),
            // The answer is late. The claim no longer waits for it.
            _ => {}
        }
        self.go_on(now, &mut out);
        out
    }

    /// Returns the latest time at which `on` must be called again.
    pub fn next_wake(&self) -> Option<Moment> {
        match self.phase {
            ClaimPhase::Fencing { .. }
            | ClaimPhase::Creating
            | ClaimPhase::Clearing {
                marked_dead: false, ..
            } => Some(self.asked_until),
            ClaimPhase::Clearing { since, .. } => Some(since + STOPPING),
            ClaimPhase::Over => None,
        }
    }

    fn lease_read(&mut self, now: Moment, lease: &LeadLease, out: &mut Vec<ClaimEffect>) {
        let mine =
            lease.node.as_ref() == Some(&self.plan.me) && lease.epoch == self.plan.seen.epoch + 1;
        if mine {
            self.clear(now, out);
        } else if lease.epoch == self.plan.seen.epoch || is_planted(PlantedFault::ClaimAtAnyEpoch) {
            self.plan.seen.epoch = lease.epoch;
            self.phase = ClaimPhase::Fencing { unsure: false };
            self.asked_until = now + PATIENCE;
            out.push(ClaimEffect::TakeLease { seen: lease.epoch });
        } else {
            self.lose(out);
        }
    }

    fn clear(&mut self, now: Moment, out: &mut Vec<ClaimEffect>) {
        if is_planted(PlantedFault::ClaimWithoutStop) {
            self.plan.hosts.clear();
            self.plan.tools_from = now;
            self.plan.seen.node = None;
        }
        if self.plan.seen.node.is_some() && !is_planted(PlantedFault::ToolsBeforeLossIsSeen) {
            self.plan.tools_from = self.plan.tools_from.max(now + SEEN_IN_SQL);
        }
        self.phase = ClaimPhase::Clearing {
            marked_dead: false,
            since: now,
        };
        self.asked_until = now + PATIENCE;
        let incarnation = self.plan.seen.incarnation;
        out.extend(self.plan.hosts.iter().map(|node| ClaimEffect::StopTeam {
            node: node.clone(),
            incarnation,
        }));
        out.push(ClaimEffect::MarkTeamDead { incarnation });
    }

    fn go_on(&mut self, now: Moment, out: &mut Vec<ClaimEffect>) {
        if let ClaimPhase::Clearing {
            marked_dead: true,
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
            ClaimPhase::Fencing { .. } => {
                self.phase = ClaimPhase::Fencing { unsure: true };
                out.push(ClaimEffect::ReadLease);
            }
            ClaimPhase::Clearing {
                marked_dead: false, ..
            } => out.push(ClaimEffect::MarkTeamDead {
                incarnation: self.plan.seen.incarnation,
            }),
            ClaimPhase::Creating => out.push(self.create()),
            ClaimPhase::Clearing {
                marked_dead: true, ..
            }
            | ClaimPhase::Over => {}
        }
    }

    /// Continues the claim once it no longer waits for answers from hosts. If a host did not
    /// answer, tools start no earlier than `grace` after the request, because the host may be
    /// frozen and its reapers need that long to kill its tools.
    fn cleared(&mut self, now: Moment, asked_at: Moment, out: &mut Vec<ClaimEffect>) {
        if !self.plan.hosts.is_empty() && !is_planted(PlantedFault::ToolsBeforeGraceOfSilent) {
            self.plan.tools_from = self.plan.tools_from.max(asked_at + self.plan.grace);
        }
        match self.plan.policy {
            ClaimPolicy::Stop => self.finish(out),
            ClaimPolicy::Resume => {
                self.phase = ClaimPhase::Creating;
                self.asked_until = now + PATIENCE;
                out.push(self.create());
            }
        }
    }

    fn create(&self) -> ClaimEffect {
        ClaimEffect::CreateTeam {
            incarnation: self.plan.seen.incarnation + 1,
        }
    }

    fn finish(&mut self, out: &mut Vec<ClaimEffect>) {
        self.phase = ClaimPhase::Over;
        let (epoch, incarnation) = (self.plan.seen.epoch + 1, self.plan.seen.incarnation + 1);
        out.push(match self.plan.policy {
            ClaimPolicy::Resume => ClaimEffect::Start {
                epoch,
                incarnation,
                tools_from: self.plan.tools_from,
            },
            ClaimPolicy::Stop => ClaimEffect::Close { epoch, incarnation },
        });
    }

    fn lose(&mut self, out: &mut Vec<ClaimEffect>) {
        self.phase = ClaimPhase::Over;
        out.push(ClaimEffect::Lost);
    }
}
