//! The checks on tools. Each call has a start in the log and runs once, under a lease and a recent
//! proof, and not while a tool of an earlier incarnation runs. All times are in virtual
//! milliseconds.

use super::{
    sql::{AgentKey, CallNumber, LogRow, LogRowKind},
    world::SimWorld,
};

/// How long after its lease was taken an agent may still start a tool, because an answer of SQL had
/// not arrived yet.
const ANSWER_TAKES: u64 = 1_000;
/// The maximum age of the newest proof of a node that starts a tool, including the difference
/// between clocks.
const PROOF_LIMIT: u64 = 12_050;
/// How long a suspended node that reads its leases in SQL every second may take to stop an agent
/// whose lease was taken.
const SEEN_IN_SQL: u64 = 1_300;
/// For how long a lost answer from SQL excuses that a node does not know its leases.
const MISSED_FOR: u64 = 4_000;
/// How far back from the start of a tool a fault excuses that an earlier tool still runs.
const EXCUSED_FOR: u64 = 13_000;

/// A tool that runs.
#[derive(Debug, Clone, Copy)]
pub struct ToolRun {
    process: usize,
    session: usize,
    incarnation: i64,
    row: LogRow,
    pub ends: u64,
}

impl ToolRun {
    pub fn call(&self) -> CallNumber {
        self.row.call
    }

    pub fn is_of(&self, process: usize, agent: Option<AgentKey>) -> bool {
        let own = (self.session, self.row.agent);
        self.process == process && agent.is_none_or(|agent| agent == own)
    }
}

impl SimWorld {
    pub fn start_tool(&mut self, process: usize, session: usize, row: LogRow, incarnation: i64) {
        self.checks.report.tools += 1;
        let run = ToolRun {
            process,
            session,
            incarnation,
            row,
            ends: u64::MAX,
        };
        let now = self.now;
        self.checks.running.retain(|run| run.ends > now);
        let stored = &self.sql.sessions[session];
        let is_start = matches!(row.kind, LogRowKind::ToolStart | LogRowKind::Allowed);
        if !is_start || !stored.log.iter().rev().any(|other| *other == row) {
            self.checks.violate(format!(
                "call {} of s{session} ran without a start in the log",
                row.call
            ));
        }
        self.check_allowed(session, row.call);
        if self.checks.running.iter().any(|run| run.call() == row.call) {
            self.checks
                .violate(format!("call {} of s{session} ran twice", row.call));
        }
        let agent = (session, row.agent);
        let taken = self.checks.taken.get(&agent).copied().unwrap_or_default();
        if self.sql.row(agent).epoch > row.epoch && now > taken + ANSWER_TAKES {
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
        let is_resumed = incarnation >= self.sql.sessions[session].row.incarnation;
        if is_resumed && self.checks.lost.contains(&session) {
            self.checks.violate(format!(
                "n{process:03} started call {} of s{session}, which stops with its node",
                row.call
            ));
        }
        self.check_overlap(&run);
        self.checks.running.push(run);
    }

    /// Checks that no tool of an earlier incarnation or epoch still runs, except on a machine that
    /// was cut off or disturbed and could not know that it lost the lease.
    fn check_overlap(&mut self, run: &ToolRun) {
        let is_earlier = |other: &&ToolRun| {
            let is_superseded = other.row.agent == run.row.agent && other.row.epoch < run.row.epoch;
            other.session == run.session && (is_superseded || other.incarnation < run.incarnation)
        };
        let earlier = self.checks.running.iter().filter(is_earlier);
        for other in &earlier.copied().collect::<Vec<_>>() {
            let state = &self.processes[other.process];
            let from = self.now.saturating_sub(EXCUSED_FOR);
            let is_disturbed =
                state.is_running() && self.checks.is_disturbed(state.machine, from, self.now);
            let is_cut_off = self.checks.was_cut_off(state.machine, from, self.now);
            if (is_disturbed || is_cut_off) && !self.knows_of_loss(other, run) {
                self.checks.report.overlaps += 1;
            } else {
                let what = format!(
                    "n{:03} started call {} of {:?} while call {} of {:?} still ran on n{:03}",
                    run.process,
                    run.call(),
                    (run.session, run.row.agent, run.incarnation, run.row.epoch),
                    other.call(),
                    (
                        other.session,
                        other.row.agent,
                        other.incarnation,
                        other.row.epoch
                    ),
                    other.process
                );
                self.checks.violate(what);
            }
        }
    }

    /// Returns whether the node of the tool `run` should have read in SQL that its agent's lease
    /// was taken. That is the case if the node was suspended for long enough before `next` started,
    /// and neither SQL nor an answer from it was missing.
    fn knows_of_loss(&self, run: &ToolRun, next: &ToolRun) -> bool {
        let state = &self.processes[run.process];
        let agent = (run.session, run.row.agent);
        let is_taken = self.sql.row(agent).epoch > run.row.epoch;
        let taken = self.checks.taken.get(&agent).filter(|_| is_taken);
        let (Some(taken), Some(suspended)) = (taken, state.notes.suspended) else {
            return false;
        };
        // A member is claimed later than its lead, so a tool of the lead may start soon after the
        // claim of the member.
        let is_same = next.row.agent == run.row.agent;
        let waited_from = if is_same {
            suspended
        } else {
            suspended.max(*taken)
        };
        let missed = state.notes.leases_missed;
        let has_missed = missed.is_some_and(|at| self.now < at + MISSED_FOR);
        let from = self.now.saturating_sub(EXCUSED_FOR);
        state.is_running()
            && !has_missed
            && self.now > waited_from + SEEN_IN_SQL
            && !self.checks.was_delayed(state.machine, from, self.now)
    }
}
