//! The checks at the end of a run, when all faults are over.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    process::ProcessState,
    sql::{AgentKey, CallNumber, LogRowKind, OpenCall},
    world::SimWorld,
};

impl SimWorld {
    /// Checks that, after all faults are over, every node may work, no node runs a stale agent,
    /// every agent of an open session has a host unless it was stopped or released, no session is open that had
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
        let hosted = self.at_holder(agent);
        let is_hosted = hosted.is_some_and(|hosted| hosted.epoch == lease.epoch);
        if !is_hosted && !lease.is_stopped && !self.is_released(agent) {
            self.checks
                .violate(format!("{agent:?} has no host at the end: {lease:?}"));
        }
    }

    /// Returns whether a node that left released an agent that was idle or waited for an answer. Such
    /// an agent needs a host only when there is something to read.
    pub fn is_released(&self, agent: AgentKey) -> bool {
        let open = self.sql.sessions[agent.0].open_work(agent.1);
        let is_waiting = matches!(open.call, Some(OpenCall::Asked(_)));
        self.sql.row(agent).node.is_none() && (!open.is_in_turn || is_waiting)
    }

    /// Checks that each call that began ended, or was answered as interrupted, before the next call
    /// of its agent began, and that a call that asked first began only after its wait. Turns follow
    /// one another, and no call is outside of one.
    fn check_log(&mut self, session: usize) {
        let mut open: BTreeMap<usize, CallNumber> = BTreeMap::new();
        let mut asked: BTreeMap<usize, CallNumber> = BTreeMap::new();
        let never_rests = self.sql.sessions[session].never_rests;
        let mut in_turn = BTreeSet::new();
        for row in &self.sql.sessions[session].log {
            let agent = row.agent;
            let is_in_turn = never_rests || in_turn.contains(&agent);
            let is_free = !open.contains_key(&agent) && !asked.contains_key(&agent);
            let is_legal = match row.kind {
                LogRowKind::TurnStart => in_turn.insert(agent) && is_free,
                LogRowKind::TurnEnd => in_turn.remove(&agent) && is_free,
                LogRowKind::ToolStart => {
                    open.insert(agent, row.call);
                    is_free && is_in_turn
                }
                LogRowKind::WaitOpened => {
                    asked.insert(agent, row.call);
                    is_free && is_in_turn
                }
                LogRowKind::Allowed => {
                    open.insert(agent, row.call).is_none() && asked.remove(&agent) == Some(row.call)
                }
                LogRowKind::NotAllowed => asked.remove(&agent) == Some(row.call),
                LogRowKind::Aborted => {
                    asked.remove(&agent) == Some(row.call) && in_turn.remove(&agent)
                }
                LogRowKind::ToolEnd | LogRowKind::Interrupted => {
                    open.remove(&agent) == Some(row.call)
                }
            };
            if !is_legal {
                let what = format!("s{session} has {row:?} where it does not belong");
                return self.checks.violate(what);
            }
        }
    }
}
