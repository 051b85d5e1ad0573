//! The checks at the end of a run, when all faults are over.

use std::collections::BTreeMap;

use super::{
    process::ProcessState,
    sql::{AgentKey, CallNumber, LogRowKind},
    world::SimWorld,
};

impl SimWorld {
    /// Checks that, after all faults are over, every node may work, no node runs a stale agent,
    /// every agent of an open session has a host unless it was stopped, no session is open that had
    /// to close, no wait is forgotten, and the logs are in order.
    pub fn check_end(&mut self) {
        for process in 0..self.processes.len() {
            let is_gone = self.processes[process].state == ProcessState::Gone;
            if !is_gone && !self.may_act(process) {
                self.checks
                    .violate(format!("n{process:03} does not serve at the end"));
            }
            let stale = self.stale(process).first().copied();
            if let Some(agent) = stale.filter(|_| self.processes[process].is_running()) {
                self.checks.violate(format!(
                    "n{process:03} still runs a stale {agent:?} at the end"
                ));
            }
        }
        for session in 0..self.sql.sessions.len() {
            let row = &self.sql.sessions[session].row;
            if row.is_open && self.checks.lost.contains(&session) {
                let what = format!("s{session} is open at the end, though it stops with its node");
                return self.checks.violate(what);
            }
            if row.is_open {
                for agent in 0..row.leases.len() {
                    self.check_hosted((session, agent));
                }
            }
            self.check_log(session);
        }
        self.check_waits_at_end();
    }

    fn check_hosted(&mut self, agent: AgentKey) {
        let lease = *self.sql.row(agent);
        let host = lease
            .node
            .and_then(|node| self.processes[node].hosted.get(&agent));
        let is_hosted = host.is_some_and(|hosted| hosted.epoch == lease.epoch);
        if !is_hosted && !lease.is_stopped {
            self.checks
                .violate(format!("{agent:?} has no host at the end: {lease:?}"));
        }
    }

    /// Checks that each call that began ended, or was answered as interrupted, before the next call
    /// of its agent began, and that a call that asked first began only after its wait.
    fn check_log(&mut self, session: usize) {
        let mut open: BTreeMap<usize, CallNumber> = BTreeMap::new();
        let mut asked: BTreeMap<usize, CallNumber> = BTreeMap::new();
        for row in &self.sql.sessions[session].log {
            let is_legal = match row.kind {
                LogRowKind::ToolStart => {
                    let is_asked = asked.contains_key(&row.agent);
                    open.insert(row.agent, row.call).is_none() && !is_asked
                }
                LogRowKind::WaitOpened => {
                    let is_open = open.contains_key(&row.agent);
                    asked.insert(row.agent, row.call).is_none() && !is_open
                }
                LogRowKind::Allowed => {
                    open.insert(row.agent, row.call).is_none()
                        && asked.remove(&row.agent) == Some(row.call)
                }
                LogRowKind::NotAllowed => asked.remove(&row.agent) == Some(row.call),
                LogRowKind::ToolEnd | LogRowKind::Interrupted => {
                    open.remove(&row.agent) == Some(row.call)
                }
            };
            if !is_legal {
                let what = format!("s{session} has {row:?} where it does not belong");
                return self.checks.violate(what);
            }
        }
    }
}
