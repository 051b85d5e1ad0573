//! What must hold, whatever goes wrong: looked at when it happens, every second, and at the end.

use std::collections::{BTreeMap, BTreeSet};

use planck_common::registry::TeamStanding;

use super::{
    Report,
    faults::Fault,
    process::State,
    registry::{Entry, Key, Value},
    sql::{Call, Kind, Reply, Row, Statement},
    world::{Event, World},
};

/// A verdict about a node that was silent may be carried out so late: a client held it back.
const BLAME_LASTS: u64 = 13_000;
/// What a watch and a message both missed is found by a sweep: twelve seconds, and one to stop.
const STOPS_WITHIN: u64 = 13_000;
const CALM_FOR: u64 = 15_000;
const VERDICT_WITHIN: u64 = 4_000;
const FAILOVER_WITHIN: u64 = 8_000;
/// What an answer of SQL takes at most, after which a tool starts.
const ANSWER_TAKES: u64 = 1_000;
const PROOF_LIMIT: u64 = 12_050;

/// A tool that really ran.
#[derive(Debug, Clone, Copy)]
struct Run {
    call: Call,
    process: usize,
    session: usize,
    incarnation: i64,
    row: Row,
    ends: u64,
}

#[derive(Debug)]
struct Disturbance {
    begin: u64,
    end: u64,
    /// Whom it touches; nobody in particular is everybody.
    machines: Vec<usize>,
    /// Whether a machine's heartbeats are missed.
    silences: bool,
    /// Whether it runs on where nobody reaches it.
    cuts: bool,
}

#[derive(Debug)]
pub struct Checks {
    pub violation: Option<String>,
    pub report: Report,
    calls: Call,
    running: Vec<Run>,
    disturbances: Vec<Disturbance>,
    machines: usize,
    convicts: BTreeSet<usize>,
    /// Since when a lease is not its host's any more, by session and agent.
    raised: BTreeMap<(usize, usize), u64>,
    stale_since: BTreeMap<(usize, usize, usize), u64>,
}

impl Checks {
    pub fn new(machines: usize) -> Self {
        Self {
            violation: None,
            report: Report::default(),
            calls: 0,
            running: Vec::new(),
            disturbances: Vec::new(),
            machines,
            convicts: BTreeSet::new(),
            raised: BTreeMap::new(),
            stale_since: BTreeMap::new(),
        }
    }

    pub fn is_violated(&self) -> bool {
        self.violation.is_some()
    }

    pub fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub fn next_call(&mut self) -> Call {
        self.calls += 1;
        self.calls
    }

    pub fn disturb(&mut self, fault: &Fault, begin: u64, end: u64) {
        let everybody = || (0..self.machines).collect();
        let (machines, silences, cuts) = match fault {
            Fault::Crash { machine } | Fault::Pause { machine } => (vec![*machine], true, false),
            Fault::Cut { machine } => (vec![*machine], true, true),
            Fault::Island { .. } => (everybody(), true, true),
            Fault::SqlCut { machine } | Fault::Slow { machine, .. } => {
                (vec![*machine], false, false)
            }
            Fault::Outage | Fault::LostTail { .. } | Fault::Wiped => (everybody(), false, true),
            Fault::Election | Fault::Lag { .. } | Fault::NoSql => (everybody(), false, false),
        };
        self.disturbances.push(Disturbance {
            begin,
            end,
            machines,
            silences,
            cuts,
        });
    }

    /// Whether anything that touches a machine goes on in a stretch of time.
    fn is_disturbed(&self, machine: usize, from: u64, to: u64) -> bool {
        let touches = |fault: &&Disturbance| {
            fault.machines.contains(&machine) && fault.begin <= to && fault.end >= from
        };
        self.disturbances.iter().any(|fault| touches(&fault))
    }

    fn was_cut_off(&self, machine: usize, from: u64, to: u64) -> bool {
        let of = |fault: &&Disturbance| fault.cuts && fault.machines.contains(&machine);
        self.disturbances
            .iter()
            .filter(of)
            .any(|fault| fault.begin <= to && fault.end >= from)
    }

    fn is_to_blame(&self, machine: usize, now: u64) -> bool {
        let silent = self
            .disturbances
            .iter()
            .filter(|fault| fault.silences && fault.machines.contains(&machine));
        silent
            .into_iter()
            .any(|fault| fault.begin <= now && now <= fault.end + BLAME_LASTS)
    }

    pub fn tool_ended(&mut self, call: Call, now: u64) {
        self.tools(|run| run.call == call)
            .for_each(|run| run.ends = run.ends.min(now));
    }

    pub fn tools_end(&mut self, process: usize, who: Option<(usize, usize)>, at: u64) {
        let of = |run: &Run| {
            run.process == process && who.is_none_or(|who| who == (run.session, run.row.agent))
        };
        self.tools(of).for_each(|run| run.ends = run.ends.min(at));
    }

    /// Its process went on before the reapers missed it: what has not ended goes on too.
    pub fn spared(&mut self, process: usize, now: u64) {
        self.tools(|run| run.process == process && run.ends > now)
            .for_each(|run| run.ends = u64::MAX);
    }

    fn tools(&mut self, wanted: impl Fn(&Run) -> bool) -> impl Iterator<Item = &mut Run> {
        self.running.iter_mut().filter(move |run| wanted(run))
    }
}

impl World {
    /// Its tools' reapers miss it after 2.5 s, whatever happens to it.
    pub fn reap(&mut self, process: usize) {
        let at = self.now + self.rng.u64(2_300..2_800);
        self.checks.tools_end(process, None, at);
    }

    pub fn convicted(&mut self, judge: usize, convict: usize, decided: u64) {
        self.trace(|| format!("n{convict:03} is dead, says n{judge:03}"));
        self.checks.report.verdicts += 1;
        // One that rose again after the registry forgot it is convicted again.
        let first = self.checks.convicts.insert(convict);
        if self.is_final(judge) {
            self.checks.violate(format!(
                "n{convict:03} was convicted by n{judge:03}, which is dead"
            ));
        }
        let state = &self.processes[convict];
        if first && state.state != State::Gone && !self.checks.is_to_blame(state.machine, self.now)
        {
            self.checks.violate(format!(
                "n{convict:03} was convicted though it was never silent"
            ));
        }
        if first
            && state.state != State::Gone
            && state.notes.resumed > decided
            && self.registry.losses == 0
        {
            self.checks.violate(format!(
                "n{convict:03} was convicted though it was back since n{judge:03} decided so"
            ));
        }
    }

    pub fn check_finality(&mut self, key: Key, value: &Value) {
        let was_final = |entry: &Entry| match (&entry.value, value) {
            (
                Value::Node {
                    standing: before, ..
                },
                Value::Node { standing, .. },
            ) => before.is_final() && before != standing,
            (Value::Team(before), Value::Team(team)) => {
                before.standing == TeamStanding::Dead && team.standing != TeamStanding::Dead
            }
            _ => false,
        };
        if self.registry.get(key).is_some_and(was_final) {
            self.checks
                .violate(format!("{key:?} was final and became {value:?}"));
        }
    }

    pub fn check_birth(&mut self, session: usize, incarnation: i64) {
        let alive = self
            .registry
            .team(session, incarnation)
            .is_some_and(|(_, team)| team.standing == TeamStanding::Alive);
        // A registry that lost its tail gives revisions out again; the birth's row in SQL is what
        // refuses then.
        if !alive && self.registry.losses == 0 {
            self.checks.violate(format!(
                "a member was born into life {incarnation} of s{session}, which is over"
            ));
        }
    }

    pub fn before_statement(&mut self, process: usize, statement: &Statement) {
        let Statement::ClaimLead { session, seen, .. } = statement else {
            return;
        };
        let lease = self.sql.sessions[*session].leases[0];
        let owner = lease
            .node
            .filter(|node| *node != process && lease.epoch == *seen);
        if let Some(owner) = owner.filter(|owner| !self.checks.convicts.contains(owner)) {
            self.checks.violate(format!(
                "n{process:03} took s{session} from n{owner:03}, which nobody convicted"
            ));
        }
    }

    pub fn after_statement(&mut self, statement: &Statement, reply: &Reply) {
        match (statement, reply) {
            (Statement::Append { session, row, .. }, Reply::Appended { .. }) => {
                let epoch = self.sql.sessions[*session].leases[row.agent].epoch;
                if epoch != row.epoch {
                    self.checks.violate(format!(
                        "s{session} took {row:?} of a stale epoch: it is {epoch}"
                    ));
                }
            }
            (Statement::ClaimLead { session, .. }, Reply::Claimed { .. }) => {
                self.checks.report.claims += 1;
                self.checks.raised.insert((*session, 0), self.now);
            }
            (Statement::ClaimWorker { session, agent, .. }, Reply::Claimed { .. }) => {
                self.checks.raised.insert((*session, *agent), self.now);
            }
            _ => {}
        }
    }

    pub fn start_tool(&mut self, process: usize, session: usize, row: Row, incarnation: i64) {
        self.checks.report.tools += 1;
        let run = Run {
            call: row.call,
            process,
            session,
            incarnation,
            row,
            ends: u64::MAX,
        };
        let now = self.now;
        self.checks.running.retain(|run| run.ends > now);
        let stored = &self.sql.sessions[session];
        let announced = stored
            .log
            .iter()
            .rev()
            .any(|other| *other == row && row.kind == Kind::ToolStart);
        if !announced {
            self.checks.violate(format!(
                "call {} of s{session} ran without a start in the log",
                row.call
            ));
        }
        if self
            .checks
            .running
            .iter()
            .any(|other| other.call == row.call)
        {
            self.checks
                .violate(format!("call {} of s{session} ran twice", row.call));
        }
        let raised = self
            .checks
            .raised
            .get(&(session, row.agent))
            .copied()
            .unwrap_or_default();
        if stored.leases[row.agent].epoch > row.epoch && now > raised + ANSWER_TAKES {
            self.checks.violate(format!(
                "n{process:03} started call {} long after it lost a{}",
                row.call, row.agent
            ));
        }
        if now > self.processes[process].notes.last_proof + PROOF_LIMIT {
            self.checks.violate(format!(
                "n{process:03} started call {} without a young proof",
                row.call
            ));
        }
        self.check_overlap(&run);
        self.checks.running.push(run);
    }

    /// Nothing of an earlier life still runs, unless on a machine that nobody could reach.
    fn check_overlap(&mut self, run: &Run) {
        let earlier = |other: &Run| {
            let superseded = other.row.agent == run.row.agent && other.row.epoch < run.row.epoch;
            other.session == run.session && (superseded || other.incarnation < run.incarnation)
        };
        let overlapping: Vec<Run> = self
            .checks
            .running
            .iter()
            .filter(|other| earlier(other))
            .copied()
            .collect();
        for other in overlapping {
            let state = &self.processes[other.process];
            let from = self.now.saturating_sub(BLAME_LASTS);
            let disturbed =
                state.is_running() && self.checks.is_disturbed(state.machine, from, self.now);
            if disturbed || self.checks.was_cut_off(state.machine, from, self.now) {
                self.checks.report.overlaps += 1;
            } else {
                let (earlier, process) = (other.process, run.process);
                let what = format!(
                    "n{process:03} started call {} while call {} of n{earlier:03} still ran",
                    run.call, other.call
                );
                self.checks.violate(what);
            }
        }
    }

    /// After a crash in calm times the verdict and the failover keep to their bounds.
    pub fn await_verdict(&mut self, process: usize) {
        let now = self.now;
        let other = |fault: &Disturbance| {
            let itself = fault.begin == now;
            !itself && fault.begin <= now + FAILOVER_WITHIN && fault.end + CALM_FOR >= now
        };
        if !self.checks.disturbances.iter().any(other) {
            self.after(
                VERDICT_WITHIN,
                Event::Due {
                    process,
                    since: now,
                },
            );
            self.after(
                FAILOVER_WITHIN,
                Event::Due {
                    process,
                    since: now,
                },
            );
        }
    }

    pub fn check_verdict(&mut self, process: usize, since: u64) {
        self.checks.report.bounds += 1;
        if !self.checks.convicts.contains(&process) && !self.left(process) {
            self.checks.violate(format!(
                "n{process:03} crashed at {since} and is not convicted"
            ));
        }
        if self.now < since + FAILOVER_WITHIN {
            return;
        }
        for session in 0..self.sql.sessions.len() {
            if self.sql.sessions[session].leases[0].node == Some(process) {
                self.checks.violate(format!(
                    "s{session} of n{process:03}, which crashed at {since}, was not taken up"
                ));
            }
        }
    }

    /// It was not known to anybody yet.
    fn left(&self, process: usize) -> bool {
        self.registry.node(process).is_none()
    }

    /// Agents whose lease was raised are stopped, within the time of a sweep.
    pub fn check(&mut self) {
        for process in 0..self.processes.len() {
            if !self.processes[process].is_running() {
                continue;
            }
            let machine = self.processes[process].machine;
            for who in self.stale(process) {
                let since = *self
                    .checks
                    .stale_since
                    .entry((process, who.0, who.1))
                    .or_insert(self.now);
                let calm =
                    !self
                        .checks
                        .is_disturbed(machine, since.saturating_sub(CALM_FOR), self.now);
                if calm && self.now > since + STOPS_WITHIN {
                    let (session, agent) = who;
                    self.checks.violate(format!(
                        "a{agent} of s{session} still runs on n{process:03}, stale since {since}"
                    ));
                }
            }
        }
        self.send_late();
    }

    fn stale(&mut self, process: usize) -> Vec<(usize, usize)> {
        let sessions = &self.sql.sessions;
        let is_stale = |(session, agent): (usize, usize), epoch: i64, incarnation: i64| {
            sessions[session].leases[agent].epoch > epoch
                || sessions[session].incarnation > incarnation
        };
        let hosted = self.processes[process].hosted.iter();
        let stale: Vec<(usize, usize)> = hosted
            .filter(|(who, hosted)| is_stale(**who, hosted.epoch, hosted.incarnation))
            .map(|(who, _)| *who)
            .collect();
        let fresh = |(of, session, agent): &(usize, usize, usize)| {
            *of != process || stale.contains(&(*session, *agent))
        };
        self.checks.stale_since.retain(|who, _| fresh(who));
        stale
    }

    /// When all is whole again, everybody serves and every session is hosted, once.
    pub fn check_end(&mut self) {
        for process in 0..self.processes.len() {
            if self.processes[process].state != State::Gone && !self.may_act(process) {
                self.checks
                    .violate(format!("n{process:03} does not serve at the end"));
            }
            if let Some((session, agent)) = self
                .stale(process)
                .first()
                .filter(|_| self.processes[process].is_running())
            {
                self.checks.violate(format!(
                    "n{process:03} still runs a stale a{agent} of s{session} at the end"
                ));
            }
        }
        for session in 0..self.sql.sessions.len() {
            for agent in 0..self.sql.sessions[session].leases.len() {
                self.check_hosted(session, agent);
            }
            self.check_log(session);
        }
    }

    fn check_hosted(&mut self, session: usize, agent: usize) {
        let lease = self.sql.sessions[session].leases[agent];
        let host = lease
            .node
            .and_then(|node| self.processes[node].hosted.get(&(session, agent)));
        if host.is_none_or(|hosted| hosted.epoch != lease.epoch) {
            self.checks.violate(format!(
                "a{agent} of s{session} is hosted by nobody at the end: {lease:?}"
            ));
        }
    }

    /// Every call that began has an end, or an answer that it was interrupted; but the last of each
    /// agent, which may be open.
    fn check_log(&mut self, session: usize) {
        let mut open: BTreeMap<usize, Call> = BTreeMap::new();
        let log = self.sql.sessions[session].log.clone();
        for row in log {
            let legal = match row.kind {
                Kind::ToolStart => open.insert(row.agent, row.call).is_none(),
                Kind::ToolEnd | Kind::Interrupted => open.remove(&row.agent) == Some(row.call),
            };
            if !legal {
                self.checks
                    .violate(format!("s{session} has {row:?} where it does not belong"));
            }
        }
    }
}
