//! The conditions that must hold despite all faults. The simulation checks them at the events that
//! they concern, every second, and at the end. All times are in virtual milliseconds.

use std::collections::{BTreeMap, BTreeSet};

use planck_common::{registry::TeamStanding, spec::OnNodeDeath};

use super::{
    SimReport,
    faults::InjectedFault,
    inbox::InputNumber,
    people::PersonAnswer,
    process::ProcessState,
    registry::{SimKey, SimRecord, SimValue, TeamKey},
    sql::{AgentKey, CallNumber, LeaseClaim, LogRow, SqlReply, SqlStatement},
    tools::ToolRun,
    world::{ALL_ANSWERED_FROM, SimWorld, WorldEvent},
};
use crate::cascade::TeamIncarnation;

/// How long before the decision that a node is dead a fault may have silenced the node.
const BLAME_LASTS: u64 = 13_000;
/// For how long before a declaration of death the heartbeats of the declared node are examined.
const BEATS_LOOKED_AT: u64 = 6_000;
/// The minimum silence of a node that is declared dead, which is 2.5 s less the delay of a
/// heartbeat.
const LEAST_SILENCE: u64 = 2_300;
/// How long a machine may take to be connected again and to receive its own heartbeats.
const RECONNECTS_WITHIN: u64 = 500;
/// The time within which an agent must be stopped after its lease was taken or a new incarnation
/// began. The next comparison with the registry begins within twelve seconds, and the stop takes up
/// to one.
const STOPS_WITHIN: u64 = 13_000;
/// How long a suspended node, which reads its leases in SQL every second, may take to stop an agent
/// whose lease was taken. Several answers may be lost meanwhile.
const STOPS_WHEN_SUSPENDED: u64 = 5_000;
/// How long before a crash, or before an agent became stale, no other fault may have occurred if a
/// limit on time is to be checked.
const CALM_FOR: u64 = 15_000;
/// The time within which a crashed node must be declared dead if no other fault occurs around the
/// crash.
const DEATH_WITHIN: u64 = 4_000;
/// The time within which a crashed node's sessions must be claimed if no other fault occurs around
/// the crash.
const FAILOVER_WITHIN: u64 = 8_000;

/// A fault as the checks see it.
#[derive(Debug)]
struct Disturbance {
    begin: u64,
    end: u64,
    /// The affected machines.
    machines: Vec<usize>,
    /// Whether heartbeats of the machines may fail to arrive.
    is_silencing: bool,
    /// Whether the machines may run on while no other machine reaches them.
    is_cutting: bool,
    /// Whether the machines may not learn from SQL in time that they lost a lease.
    is_delaying: bool,
    /// Whether heartbeats of the machines may be late, or reach only some other machines.
    is_hiding: bool,
}

#[derive(Debug)]
pub struct Checks {
    pub violation: Option<String>,
    pub report: SimReport,
    calls: CallNumber,
    pub running: Vec<ToolRun>,
    disturbances: Vec<Disturbance>,
    machines: usize,
    declared_dead: BTreeSet<usize>,
    left: BTreeSet<usize>,
    /// When the lease of each agent was last taken.
    pub taken: BTreeMap<AgentKey, u64>,
    /// Since when a process has run an agent whose lease was taken or whose incarnation is over.
    stale_since: BTreeMap<(usize, AgentKey), u64>,
    /// The sessions that are to close, because their lead's node is gone.
    pub lost: BTreeSet<usize>,
    /// The calls whose waits people have been shown.
    shown: BTreeSet<CallNumber>,
    /// The people who have a reply to their answer.
    replies: BTreeSet<(CallNumber, u8)>,
    pub acknowledged: Vec<PersonAnswer>,
    /// The inputs that were acknowledged or refused.
    settled_inputs: BTreeSet<InputNumber>,
}

impl Checks {
    pub fn new(machines: usize) -> Self {
        Self {
            violation: None,
            report: SimReport::default(),
            calls: 0,
            running: Vec::new(),
            disturbances: Vec::new(),
            machines,
            declared_dead: BTreeSet::new(),
            left: BTreeSet::new(),
            taken: BTreeMap::new(),
            stale_since: BTreeMap::new(),
            lost: BTreeSet::new(),
            shown: BTreeSet::new(),
            replies: BTreeSet::new(),
            acknowledged: Vec::new(),
            settled_inputs: BTreeSet::new(),
        }
    }

    pub fn is_violated(&self) -> bool {
        self.violation.is_some()
    }

    pub fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub fn next_call(&mut self) -> CallNumber {
        self.calls += 1;
        self.calls
    }

    pub fn disturb(&mut self, fault: &InjectedFault, begin: u64, end: u64) {
        let all = || (0..self.machines).collect();
        let is_delaying = matches!(
            fault,
            InjectedFault::Pause { .. }
                | InjectedFault::NoSql
                | InjectedFault::SqlCut { .. }
                | InjectedFault::SqlOnlyAt { .. }
                | InjectedFault::Slow { .. }
        );
        let is_hiding = matches!(
            fault,
            InjectedFault::Slow { .. } | InjectedFault::Island { .. }
        );
        let (machines, is_silencing, is_cutting) = match fault {
            InjectedFault::Crash { machine } | InjectedFault::Pause { machine } => {
                (vec![*machine], true, false)
            }
            InjectedFault::Cut { machine } => (vec![*machine], true, true),
            InjectedFault::Island { .. } => (all(), true, true),
            InjectedFault::SqlCut { machine }
            | InjectedFault::Slow { machine, .. }
            | InjectedFault::Drain { machine } => (vec![*machine], false, false),
            InjectedFault::Outage | InjectedFault::LostTail { .. } | InjectedFault::Wiped => {
                (all(), false, true)
            }
            InjectedFault::SqlOnlyAt { machine } => {
                let others = (0..self.machines).filter(|other| other != machine);
                (others.collect(), false, false)
            }
            InjectedFault::Election | InjectedFault::Lag { .. } | InjectedFault::NoSql => {
                (all(), false, false)
            }
        };
        self.disturbances.push(Disturbance {
            begin,
            end,
            machines,
            is_silencing,
            is_cutting,
            is_delaying,
            is_hiding,
        });
    }

    fn touching(&self, machine: usize, from: u64, to: u64) -> impl Iterator<Item = &Disturbance> {
        self.disturbances.iter().filter(move |fault| {
            fault.machines.contains(&machine) && fault.begin <= to && fault.end >= from
        })
    }

    pub fn is_disturbed(&self, machine: usize, from: u64, to: u64) -> bool {
        self.touching(machine, from, to).next().is_some()
    }

    pub fn was_cut_off(&self, machine: usize, from: u64, to: u64) -> bool {
        self.touching(machine, from, to)
            .any(|fault| fault.is_cutting)
    }

    /// Returns whether a machine was cut off and was connected again before `to`.
    fn was_cut_off_until(&self, machine: usize, from: u64, to: u64) -> bool {
        self.touching(machine, from, to)
            .any(|fault| fault.is_cutting && fault.end + RECONNECTS_WITHIN < to)
    }

    /// Returns whether a machine may not have read its leases in time.
    pub fn was_delayed(&self, machine: usize, from: u64, to: u64) -> bool {
        self.touching(machine, from, to)
            .any(|fault| fault.is_delaying)
    }

    /// Returns whether heartbeats of a machine may have been late, or have reached only some other
    /// machines.
    fn was_hard_to_hear(&self, machine: usize, from: u64, to: u64) -> bool {
        self.touching(machine, from, to)
            .any(|fault| fault.is_hiding)
    }

    fn was_silent(&self, machine: usize, decided: u64) -> bool {
        self.touching(machine, decided.saturating_sub(BLAME_LASTS), decided)
            .any(|fault| fault.is_silencing)
    }

    fn is_gone(&self, process: usize) -> bool {
        self.declared_dead.contains(&process) || self.left.contains(&process)
    }

    /// Returns whether no fault occurs between two times, and none occurred for long before.
    pub fn is_calm(&self, since: u64, until: u64) -> bool {
        let mut faults = self.disturbances.iter();
        !faults.any(|fault| fault.begin <= until && fault.end + CALM_FOR >= since)
    }

    /// Returns the time from which the world is calm, because all faults are long over and no answer
    /// is lost.
    pub fn calm_from(&self) -> u64 {
        let ends = self.disturbances.iter().map(|fault| fault.end + CALM_FOR);
        ends.fold(ALL_ANSWERED_FROM, u64::max)
    }

    /// Notes that an input was acknowledged or refused. Returns whether it was neither before.
    pub fn settle_input(&mut self, input: InputNumber) -> bool {
        self.settled_inputs.insert(input)
    }

    pub fn is_input_settled(&self, input: InputNumber) -> bool {
        self.settled_inputs.contains(&input)
    }

    /// Notes that people are shown the wait of a row. Returns whether they were not shown it before.
    pub fn shown(&mut self, row: &LogRow) -> bool {
        self.shown.insert(row.call)
    }

    pub fn replied(&mut self, answer: PersonAnswer) {
        self.replies.insert((answer.call, answer.person));
    }

    pub fn has_reply(&self, answer: &PersonAnswer) -> bool {
        self.replies.contains(&(answer.call, answer.person))
    }

    pub fn node_left(&mut self, process: usize) {
        self.left.insert(process);
    }

    pub fn tool_ended(&mut self, call: CallNumber, now: u64) {
        self.end_runs(|run| run.call() == call, now);
    }

    pub fn tools_end(&mut self, process: usize, agent: Option<AgentKey>, at: u64) {
        self.end_runs(|run| run.is_of(process, agent), at);
    }

    fn end_runs(&mut self, which: impl Fn(&ToolRun) -> bool, at: u64) {
        let runs = self.running.iter_mut().filter(|run| which(run));
        runs.for_each(|run| run.ends = run.ends.min(at));
    }

    /// Lets the unfinished tools of a process continue, because the process resumed before its
    /// reapers noticed its silence.
    pub fn spared(&mut self, process: usize, now: u64) {
        let runs = self.running.iter_mut();
        runs.filter(|run| run.is_of(process, None) && run.ends > now)
            .for_each(|run| run.ends = u64::MAX);
    }
}

impl SimWorld {
    /// Schedules the end of the tools of a process in 2.3 s to 3.3 s, which is when their reapers
    /// notice its silence and kill them.
    pub fn reap(&mut self, process: usize) {
        let at = self.now + self.rng.u64(2_300..3_300);
        self.checks.tools_end(process, None, at);
    }

    pub fn declared_dead(&mut self, observer: usize, suspect: usize, decided: u64) {
        self.trace(|| format!("n{suspect:03} is dead, says n{observer:03}"));
        self.checks.report.deaths += 1;
        // A node that came back after the registry forgot its death is declared dead again.
        let is_first = self.checks.declared_dead.insert(suspect);
        if self.is_recorded_dead(observer) {
            self.checks.violate(format!(
                "n{suspect:03} was declared dead by n{observer:03}, which is dead"
            ));
        }
        let state = &self.processes[suspect];
        if !is_first || state.state == ProcessState::Gone {
            return;
        }
        let (machine, resumed) = (state.machine, state.notes.resumed);
        if !self.checks.was_silent(machine, decided) {
            self.checks.violate(format!(
                "n{suspect:03} was declared dead though it was never silent"
            ));
        }
        if self.was_heard_throughout(observer, suspect, decided) {
            self.checks.violate(format!(
                "n{suspect:03} was declared dead by n{observer:03} though its heartbeats had no gap"
            ));
        }
        if resumed > decided && self.registry.losses == 0 {
            self.checks.violate(format!(
                "n{suspect:03} was declared dead though it was back since n{observer:03} decided so"
            ));
        }
    }

    /// Returns whether a node published heartbeats without a long gap until an observer decided
    /// that it is dead. Returns `false` if a heartbeat was lost, if one of the two machines is slow
    /// or reached only some others, or if the observer was cut off for a while.
    fn was_heard_throughout(&self, observer: usize, suspect: usize, decided: u64) -> bool {
        let state = &self.processes[suspect];
        let from = decided.saturating_sub(BEATS_LOOKED_AT);
        let beats = &state.notes.beats;
        let is_lost = state.notes.beat_lost.is_some_and(|at| at >= from);
        let machines = [self.processes[observer].machine, state.machine];
        let is_hidden = |machine| self.checks.was_hard_to_hear(machine, from, decided);
        // An observer may take a short gap of its own link for silence of the peer, if its own
        // heartbeats came back after the gap.
        let is_back = self.checks.was_cut_off_until(machines[0], from, decided);
        let is_excused = is_lost || is_back || machines.into_iter().any(is_hidden);
        if is_excused || beats.front().is_none_or(|first| *first > from) {
            return false;
        }
        let until = beats.iter().copied().chain([decided]);
        let gaps = until.clone().zip(until.skip(1));
        gaps.filter(|(before, _)| *before <= decided)
            .all(|(before, after)| after.min(decided) - before < LEAST_SILENCE)
    }

    fn is_recorded_dead(&self, process: usize) -> bool {
        use planck_common::registry::NodeStanding;
        let seen = self.registry.node(process);
        seen.is_some_and(|seen| seen.standing == NodeStanding::Dead)
    }

    pub fn check_finality(&mut self, key: SimKey, value: &SimValue) {
        let was_final = |record: &SimRecord| match (&record.value, value) {
            (
                SimValue::Node {
                    standing: before, ..
                },
                SimValue::Node { standing, .. },
            ) => before.is_final() && before != standing,
            (SimValue::Team(before), SimValue::Team(team)) => {
                before.standing == TeamStanding::Dead && team.standing != TeamStanding::Dead
            }
            _ => false,
        };
        if self.registry.get(key).is_some_and(was_final) {
            self.checks
                .violate(format!("{key:?} was final and became {value:?}"));
        }
    }

    /// Checks that the cascade marks no team dead whose lead's node is still there.
    pub fn check_team_death(&mut self, process: usize, team: TeamKey, node: usize) {
        let is_gone = self.checks.is_gone(node) || self.processes[node].state == ProcessState::Gone;
        // A registry that lost data reuses revisions, so the record of a team that moved may have
        // the revision that was read before.
        if !is_gone && self.registry.losses == 0 {
            self.checks.violate(format!(
                "n{process:03} marked incarnation {} of s{} dead, which n{node:03} leads",
                team.1, team.0
            ));
        }
    }

    /// Checks that no member is created in a dead incarnation. The check is skipped after the
    /// registry lost data and reuses revisions, because then only the condition in SQL prevents
    /// such a member.
    pub fn check_member(&mut self, team: TeamKey) {
        let found = self.registry.team(team);
        let is_alive = found.is_some_and(|(_, team)| team.standing == TeamStanding::Alive);
        if !is_alive && self.registry.losses == 0 {
            self.checks.violate(format!(
                "a member was created in incarnation {} of s{}, which is over",
                team.1, team.0
            ));
        }
    }

    pub fn before_statement(&mut self, process: usize, statement: &SqlStatement) {
        match statement {
            SqlStatement::ClaimLead {
                claim,
                after_death: true,
            } => {
                let taken_from = self.taken_from(process, claim);
                if let Some(owner) = taken_from.filter(|owner| !self.checks.is_gone(*owner)) {
                    let session = claim.agent.0;
                    self.checks.violate(format!(
                        "n{process:03} took s{session} from n{owner:03}, which nobody declared dead"
                    ));
                }
                let session = &self.sql.sessions[claim.agent.0].row;
                if taken_from.is_some() && session.on_node_death == OnNodeDeath::Stop {
                    self.checks.lost.insert(claim.agent.0);
                }
            }
            SqlStatement::ClaimLead {
                claim,
                after_death: false,
            } => self.check_given_up(
                process,
                claim,
                self.sql.sessions[claim.agent.0].row.incarnation,
            ),
            SqlStatement::ClaimMember { claim, incarnation } => {
                self.check_given_up(process, claim, *incarnation);
            }
            _ => {}
        }
    }

    /// Returns the other node from which a claim takes the lease, or `None` if it takes the lease
    /// from none or the epoch has changed.
    fn taken_from(&self, process: usize, claim: &LeaseClaim) -> Option<usize> {
        let lease = self.sql.row(claim.agent);
        lease
            .node
            .filter(|node| *node != process && lease.epoch == claim.seen)
    }

    /// Checks that no agent is taken from a living node that runs it, unless a new incarnation
    /// began.
    fn check_given_up(&mut self, process: usize, claim: &LeaseClaim, incarnation: i64) {
        let Some(owner) = self.taken_from(process, claim) else {
            return;
        };
        let state = &self.processes[owner];
        let hosted = state.hosted.get(&claim.agent);
        let runs = hosted
            .is_some_and(|hosted| (hosted.epoch, hosted.incarnation) == (claim.seen, incarnation));
        if runs && state.state != ProcessState::Gone && !self.checks.is_gone(owner) {
            self.checks.violate(format!(
                "n{process:03} took {:?} from n{owner:03}, which runs it",
                claim.agent
            ));
        }
    }

    pub fn after_statement(&mut self, statement: &SqlStatement, reply: &SqlReply) {
        self.after_wait_statement(statement, reply);
        self.after_inbox_statement(statement, reply);
        let (
            SqlStatement::ClaimLead { claim, .. } | SqlStatement::ClaimMember { claim, .. },
            SqlReply::Claimed(_),
        ) = (statement, reply)
        else {
            return;
        };
        self.checks.report.claims += u64::from(claim.agent.1 == 0);
        self.checks.taken.insert(claim.agent, self.now);
    }

    /// Schedules the checks that a crashed process is declared dead, and its sessions are claimed,
    /// in time. Does nothing if another fault occurs around the same time.
    pub fn await_death(&mut self, process: usize) {
        let since = self.now;
        let is_other = |fault: &Disturbance| {
            let is_itself = fault.begin == since;
            !is_itself && fault.begin <= since + FAILOVER_WITHIN && fault.end + CALM_FOR >= since
        };
        if !self.checks.disturbances.iter().any(is_other) {
            for within in [DEATH_WITHIN, FAILOVER_WITHIN] {
                self.after(within, WorldEvent::Due { process, since });
            }
        }
    }

    pub fn check_due(&mut self, process: usize, since: u64) {
        self.checks.report.bounds += 1;
        let was_known = self.registry.node(process).is_some();
        if was_known && !self.checks.is_gone(process) {
            self.checks.violate(format!(
                "n{process:03} crashed at {since} and is not declared dead"
            ));
        }
        if self.now < since + FAILOVER_WITHIN {
            return;
        }
        for session in 0..self.sql.sessions.len() {
            if self.sql.row((session, 0)).node == Some(process) {
                self.checks.violate(format!(
                    "s{session} of n{process:03}, which crashed at {since}, was not taken up"
                ));
            }
        }
    }

    /// Checks that no agent is stopped that runs under its lease in the living incarnation of its
    /// team. The check is skipped after the registry lost data, because the registry may then name
    /// a dead incarnation as alive.
    pub fn check_stopped(&mut self, process: usize, agent: AgentKey, ended: &TeamIncarnation) {
        let row = &self.sql.sessions[agent.0].row;
        let lease = row.leases[agent.1];
        let is_current = self.processes[process]
            .hosted
            .get(&agent)
            .is_some_and(|hosted| {
                (hosted.incarnation, hosted.epoch) == (row.incarnation, lease.epoch)
            });
        let found = self.registry.team((agent.0, row.incarnation));
        let is_alive = found.is_some_and(|(_, team)| team.standing == TeamStanding::Alive);
        if row.is_open && is_current && is_alive && self.registry.losses == 0 {
            self.checks.violate(format!(
                "n{process:03} stopped {agent:?} of a living incarnation because {ended:?} ended"
            ));
        }
    }

    /// Checks that agents whose lease was taken, or whose incarnation is over, are stopped in time.
    pub fn check(&mut self) {
        for process in 0..self.processes.len() {
            if !self.processes[process].is_running() {
                continue;
            }
            let machine = self.processes[process].machine;
            for agent in self.stale(process) {
                let since = self.checks.stale_since.entry((process, agent));
                let since = *since.or_insert(self.now);
                // A suspended node compares only the epochs of its leases, so it does not notice a
                // new incarnation that changed no epoch.
                let hosted = self.processes[process].hosted.get(&agent);
                let is_taken =
                    hosted.is_some_and(|hosted| hosted.epoch < self.sql.row(agent).epoch);
                let taken = self.checks.taken.get(&agent).copied().unwrap_or(since);
                let suspended = self.processes[process].notes.suspended;
                let known_from = suspended
                    .map(|suspended| suspended.max(taken))
                    .filter(|_| is_taken);
                if let Some(from) = known_from
                    && self.now > from + STOPS_WHEN_SUSPENDED
                    && !self.checks.was_delayed(machine, from, self.now)
                {
                    self.checks.violate(format!(
                        "{agent:?} still runs on the suspended n{process:03}, stale since {since}"
                    ));
                }
                let calm_from = since.saturating_sub(CALM_FOR);
                let is_calm = !self.checks.is_disturbed(machine, calm_from, self.now);
                if is_calm && self.now > since + STOPS_WITHIN {
                    self.checks.violate(format!(
                        "{agent:?} still runs on n{process:03}, stale since {since}"
                    ));
                }
            }
        }
    }

    pub fn stale(&mut self, process: usize) -> Vec<AgentKey> {
        let sessions = &self.sql.sessions;
        let is_stale = |agent: &AgentKey, epoch: i64, incarnation: i64| {
            let row = &sessions[agent.0].row;
            row.leases[agent.1].epoch > epoch || row.incarnation > incarnation
        };
        let hosted = self.processes[process].hosted.iter();
        let stale: Vec<AgentKey> = hosted
            .filter(|(agent, hosted)| is_stale(agent, hosted.epoch, hosted.incarnation))
            .map(|(agent, _)| *agent)
            .collect();
        let is_still = |(of, agent): &(usize, AgentKey)| *of != process || stale.contains(agent);
        self.checks.stale_since.retain(|stale, _| is_still(stale));
        stale
    }
}
