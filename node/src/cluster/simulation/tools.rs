//! The checks on tools: each call is announced and runs once, under a lease and a young proof, and
//! beside nothing of an earlier incarnation.

use super::{
    sql::{AgentKey, CallNumber, LogRow, LogRowKind},
    world::SimWorld,
};

/// How long after the lease was taken a tool may start, as an answer of SQL was on its way.
const ANSWER_TAKES: u64 = 1_000;
/// How old the newest proof of a node that starts a tool may be, with the difference of clocks.
const PROOF_LIMIT: u64 = 12_050;
/// How long before a tool starts a disturbance excuses that another one still runs.
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
        let is_start = row.kind == LogRowKind::ToolStart;
        if !is_start || !stored.log.iter().rev().any(|other| *other == row) {
            self.checks.violate(format!(
                "call {} of s{session} ran without a start in the log",
                row.call
            ));
        }
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
        self.check_overlap(&run);
        self.checks.running.push(run);
    }

    /// Nothing of an earlier incarnation or epoch still runs, except on a machine that was cut off
    /// or disturbed.
    fn check_overlap(&mut self, run: &ToolRun) {
        let is_earlier = |other: &&ToolRun| {
            let is_superseded = other.row.agent == run.row.agent && other.row.epoch < run.row.epoch;
            other.session == run.session && (is_superseded || other.incarnation < run.incarnation)
        };
        let earlier = self.checks.running.iter().filter(is_earlier);
        for other in earlier.copied().collect::<Vec<_>>() {
            let state = &self.processes[other.process];
            let from = self.now.saturating_sub(EXCUSED_FOR);
            let is_disturbed =
                state.is_running() && self.checks.is_disturbed(state.machine, from, self.now);
            if is_disturbed || self.checks.was_cut_off(state.machine, from, self.now) {
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
}
