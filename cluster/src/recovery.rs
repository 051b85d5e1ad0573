//! **Pure**: decides what a node does about agents without a live host. A sweep finds the sessions
//! of these agents, and the node takes up each session with its orchestrator and its members.
//! The service `takeover` of `planck-node` and the simulation read the facts and perform the steps.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use planck_common::{NodeId, spec::OnNodeDeath};

use crate::{
    claiming::{ClaimPlan, ClaimPolicy, LeadLease, SEEN_IN_SQL},
    liveness::SILENCE,
    moment::Moment,
    planted::{PlantedFault, is_planted},
};

/// How much longer than [`SILENCE`] the second sweep waits.
const SETTLED: Duration = Duration::from_millis(200);

/// In one of this many sweeps, a node reads the leases that it holds even if nothing indicates that
/// an agent is missing. On SQLite, such a sweep reads the file of every session.
const FULL_SWEEP: u32 = 60;

/// The times at which a node sweeps: at once, again when silence first shows which nodes are dead,
/// and then at intervals that vary by up to a fifth.
#[derive(Debug)]
pub struct SweepSchedule {
    every: Duration,
    pauses: u32,
    sweeps: u32,
}

impl SweepSchedule {
    /// Returns the schedule of a node that has just started. `every` is the setting `cluster.sweep`.
    pub fn new(every: Duration) -> Self {
        Self {
            every,
            pauses: 0,
            sweeps: 0,
        }
    }

    /// Begins the next pause, and returns how long to wait for the next sweep unless one is
    /// requested earlier. `random` is between zero and one.
    pub fn pause(&mut self, random: f64) -> Duration {
        self.pauses = self.pauses.saturating_add(1);
        match self.pauses {
            1 => Duration::ZERO,
            2 => SILENCE + SETTLED,
            _ => self.every.mul_f64(0.8 + 0.4 * random),
        }
    }

    /// Begins a sweep. Returns whether it must read the leases of this node even if no agent seems
    /// to be missing.
    pub fn begin(&mut self) -> bool {
        let is_full = self.sweeps.is_multiple_of(FULL_SWEEP);
        self.sweeps = self.sweeps.wrapping_add(1);
        is_full
    }
}

/// What is known of a node that holds a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeLife {
    Alive,
    /// The node left or died.
    Gone,
    /// Neither the registry nor the store knows the node yet. Such a node counts as alive, without
    /// a cluster only until [`SILENCE`] is over.
    Unknown,
}

impl NodeLife {
    /// Combines what the registry says of the node (`is_gone`) with what the store knows of its
    /// process (`process_lives`).
    pub fn of(is_gone: Option<bool>, process_lives: Option<bool>) -> Self {
        match (is_gone, process_lives) {
            (Some(true), _) | (_, Some(false)) => Self::Gone,
            (_, Some(true)) | (Some(false), None) => Self::Alive,
            (None, None) => Self::Unknown,
        }
    }
}

/// The holder of an agent's lease, as this node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseHolder {
    Nobody,
    ThisNode,
    /// Another node, which counts as alive.
    Living,
    /// Another node, which left or died.
    Gone,
}

/// Why a lease can be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimCause {
    /// No other node holds it.
    Free,
    /// Its holder left or died.
    HolderGone,
}

impl LeaseHolder {
    /// Returns the holder of a lease as the node `me` sees it. `is_alive` matters only for another
    /// node.
    pub fn of(node: Option<&NodeId>, me: &NodeId, is_alive: bool) -> Self {
        match node {
            None => Self::Nobody,
            Some(node) if node == me => Self::ThisNode,
            Some(_) if is_alive => Self::Living,
            Some(_) => Self::Gone,
        }
    }

    /// Returns why this node may claim the lease, or `None` if it may not.
    pub(crate) fn claimable(self) -> Option<ClaimCause> {
        match self {
            Self::Nobody | Self::ThisNode => Some(ClaimCause::Free),
            Self::Gone => Some(ClaimCause::HolderGone),
            Self::Living if is_planted(PlantedFault::ClaimFromTheLiving) => {
                Some(ClaimCause::HolderGone)
            }
            Self::Living => None,
        }
    }
}

/// Returns whether an agent has no living host. `node` is the agent's host according to the store,
/// if it names one.
pub fn has_no_host<N: PartialEq>(node: Option<&N>, alive: &[N]) -> bool {
    node.is_none_or(|node| !alive.contains(node))
}

/// What a sweep does about a session with agents that have no living host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepStep {
    /// Take the session up.
    TakeUp,
    /// Continue a close that was interrupted.
    FinishClose,
    Leave,
}

/// Returns what a sweep does about a session. A closed session opens for a prompt, but not for
/// messages that its agents sent each other while it was closed. `has_lease` says whether a node
/// still holds the lease of one of the agents.
pub fn sweep_step(is_open: bool, is_prompted: bool, has_lease: bool) -> SweepStep {
    if is_open || is_prompted {
        SweepStep::TakeUp
    } else if has_lease {
        SweepStep::FinishClose
    } else {
        SweepStep::Leave
    }
}

/// Returns whether a session is closed instead of taken up, because its orchestrator's node is gone
/// and the session is not to continue elsewhere. `has_begun` says that this node began such a close
/// and has not finished it. This node then repeats the close, although the lease names this node by
/// now.
pub fn is_lost(lead: LeaseHolder, on_node_death: OnNodeDeath, has_begun: bool) -> bool {
    let is_lost = match lead {
        LeaseHolder::Gone => true,
        LeaseHolder::ThisNode => has_begun && !is_planted(PlantedFault::CloseForgotten),
        LeaseHolder::Nobody | LeaseHolder::Living => false,
    };
    is_lost && on_node_death == OnNodeDeath::Stop
}

/// How this node comes to host a session's lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeadStep {
    /// This node hosts the lead already.
    Hosted,
    /// Another node hosts the lead.
    HostedElsewhere,
    /// Take the lease. With `after_death` the incarnation rises, so that no member of the previous
    /// one can be claimed.
    TakeLease { after_death: bool },
    /// Move the lead of a living team here. If the team is dead or has no record, begin the next
    /// incarnation.
    MoveOrBegin,
    /// Begin the next incarnation of the team.
    BeginIncarnation,
}

/// The facts that determine how this node comes to host a session's orchestrator.
#[derive(Debug, Clone, Copy)]
pub struct LeadFacts {
    pub is_hosted_here: bool,
    pub holder: LeaseHolder,
    /// Whether there are no other nodes that could run members.
    pub is_alone: bool,
    /// Whether all agents are to end at once.
    pub is_ending: bool,
}

/// Decides how a node comes to host an orchestrator.
pub fn lead_step(facts: LeadFacts) -> LeadStep {
    if facts.is_hosted_here {
        return LeadStep::Hosted;
    }
    let Some(cause) = facts.holder.claimable() else {
        return LeadStep::HostedElsewhere;
    };
    if facts.is_alone || facts.is_ending {
        let after_death = cause == ClaimCause::HolderGone;
        return LeadStep::TakeLease { after_death };
    }
    match facts.holder {
        LeaseHolder::Nobody => LeadStep::MoveOrBegin,
        LeaseHolder::ThisNode | LeaseHolder::Living | LeaseHolder::Gone => {
            LeadStep::BeginIncarnation
        }
    }
}

/// A node that holds leases of a team.
#[derive(Debug, Clone)]
pub struct TeamHost {
    pub node: NodeId,
    pub is_alive: bool,
    /// The time from which nothing runs on the node, if it is gone and this node saw its death.
    pub quiet_from: Option<Moment>,
}

/// Returns the plan with which a node begins the next incarnation of a team whose members are on
/// `hosts`.
pub fn claim_plan(
    (me, seen): (NodeId, LeadLease),
    hosts: Vec<TeamHost>,
    policy: ClaimPolicy,
    now: Moment,
    grace: Duration,
) -> ClaimPlan {
    let tools_from = hosts
        .iter()
        .filter(|host| !host.is_alive)
        .fold(now, |from, host| {
            tools_from(Some(from), host.quiet_from).unwrap_or(from)
        });
    ClaimPlan {
        me,
        seen,
        hosts: hosts
            .into_iter()
            .filter(|host| host.is_alive)
            .map(|host| host.node)
            .collect(),
        policy,
        tools_from,
        grace,
    }
}

/// Returns the later of two times: when the tools of a team may start, and when nothing runs any
/// more on a node that held one of its leases. `None` means at once.
fn tools_from(team: Option<Moment>, quiet_from: Option<Moment>) -> Option<Moment> {
    if is_planted(PlantedFault::ToolsBeforeGraceOfDead) {
        return team;
    }
    team.max(quiet_from)
}

/// The facts about a member's team on which the plan for the member depends.
#[derive(Debug, Clone, Copy)]
pub struct LedTeam {
    /// Whether this node hosts the lead.
    pub is_led_here: bool,
    /// Whether this node just began a new incarnation, for which it asked the living hosts to stop
    /// the members of the previous one.
    pub is_new_incarnation: bool,
    pub tools_from: Option<Moment>,
    pub on_node_death: OnNodeDeath,
}

impl LedTeam {
    /// Returns a team whose lead this node hosts without having begun a new incarnation.
    pub fn led_here(on_node_death: OnNodeDeath) -> Self {
        Self {
            is_led_here: true,
            is_new_incarnation: false,
            tools_from: None,
            on_node_death,
        }
    }

    /// Returns a team whose lead another node hosts. That node may just have begun a new
    /// incarnation, so the tools of a member that starts on this node wait as long as tools of the
    /// previous incarnation may still run.
    pub fn led_elsewhere(on_node_death: OnNodeDeath, now: Moment, grace: Duration) -> Self {
        Self {
            is_led_here: false,
            tools_from: Some(now + grace),
            ..Self::led_here(on_node_death)
        }
    }
}

/// The facts that determine the plan for a member.
#[derive(Debug, Clone, Copy)]
pub struct MemberFacts {
    pub is_hosted_here: bool,
    pub holder: LeaseHolder,
    /// Whether the session is taken up to continue, and not to end.
    pub is_for_work: bool,
    /// The time from which nothing runs on the member's node, if that node is gone and this node
    /// saw its death.
    pub quiet_from: Option<Moment>,
}

/// What a node does about a member of a session that it takes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberStep {
    Leave,
    /// Ask a node to start the member: the current host if that is another living node, or else a
    /// suitable node, possibly this one. If that node does not accept the member, start it here.
    Place,
    /// Start the member on this node.
    ClaimHere,
    /// Claim the member here and stop it for good, because the member's node is gone, the session
    /// continues and the member is not to continue.
    StopLost,
}

/// What a node does about a member, and when the member's tools may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberPlan {
    pub step: MemberStep,
    pub after_death: bool,
    pub tools_from: Option<Moment>,
}

impl MemberPlan {
    /// Returns when the tools of the member may start if it is claimed now, and `is_taken` says that
    /// another node holds its lease. A node that lost only NATS may run its tools until it reads in
    /// SQL that it lost the lease. It need not be known to be dead: one that did not answer may be.
    pub fn tools_from_claim(self, now: Moment, is_taken: bool) -> Option<Moment> {
        let is_skipped = is_planted(PlantedFault::ToolsBeforeLossIsSeen)
            || is_planted(PlantedFault::ToolsBeforeGraceOfDead);
        let seen_from = (is_taken && !is_skipped).then(|| now + SEEN_IN_SQL);
        self.tools_from.max(seen_from)
    }
}

/// Returns the plan for a member. The node that hosts the lead takes up the members. Another node
/// claims a member only if it already holds the member's lease.
pub fn member_plan(led: LedTeam, member: MemberFacts) -> MemberPlan {
    let is_ours = led.is_led_here || member.holder == LeaseHolder::ThisNode;
    let cause = member
        .holder
        .claimable()
        .or(led.is_new_incarnation.then_some(ClaimCause::Free))
        .filter(|_| is_ours && !member.is_hosted_here);
    let after_death = cause == Some(ClaimCause::HolderGone);
    // A session that ends keeps its members, so that a later prompt finds the whole team.
    let is_lost = after_death
        && member.is_for_work
        && led.is_led_here
        && !led.is_new_incarnation
        && led.on_node_death == OnNodeDeath::Stop;
    let step = match cause {
        None => MemberStep::Leave,
        Some(_) if is_lost => MemberStep::StopLost,
        Some(_) if member.is_for_work && led.is_led_here => MemberStep::Place,
        Some(_) => MemberStep::ClaimHere,
    };
    MemberPlan {
        step,
        after_death,
        tools_from: tools_from(led.tools_from, member.quiet_from.filter(|_| after_death)),
    }
}

/// Returns the agents on this node whose leases other nodes took. The store names another holder or
/// none for such an agent, or a later epoch than the one under which the agent runs. `here` must be
/// read before `held`.
pub fn superseded<A: Ord + Clone>(here: &[(A, i64)], held: &BTreeMap<A, i64>) -> Vec<A> {
    let is_held = |agent: &A, epoch: i64| {
        held.get(agent).is_some_and(|held| *held <= epoch)
            || is_planted(PlantedFault::SupersededRunOn)
    };
    here.iter()
        .filter(|(agent, epoch)| !is_held(agent, *epoch))
        .map(|(agent, _)| agent.clone())
        .collect()
}
