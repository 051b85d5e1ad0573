//! A simulated node that drains and leaves, as in `takeover/leave.rs`. Each
//! agent moves to another node once it runs no tool, also while it waits for an answer. When the
//! time is up, the remaining agents stop. The node releases the leases of those that are idle or wait,
//! and other nodes take all of them up later.

use std::collections::BTreeMap;

use super::{
    process::{DrainState, HostOrder, HostPurpose, ProcessEvent, ProcessState, SqlCaller},
    sql::{AgentKey, SqlStatement},
    world::SimWorld,
};
use crate::membership::MembershipInput;

/// How long a drain may take, in milliseconds.
const DRAIN: u64 = 4_000;
/// The time between two checks of which agents can move, in milliseconds.
const LOOK: u64 = 100;
/// How long a node tries to record that it left, in milliseconds.
const LEAVING: u64 = 3_000;

impl SimWorld {
    pub fn drain(&mut self, process: usize) {
        let until = self.now + DRAIN;
        let state = &mut self.processes[process];
        if state.drain.is_some() {
            return;
        }
        state.drain = Some(DrainState {
            until,
            moving: BTreeMap::new(),
            left_at: None,
        });
        self.trace(|| format!("n{process:03} drains"));
        self.member(process, MembershipInput::Drain);
        self.drain_look(process);
    }

    pub fn drain_look(&mut self, process: usize) {
        let Some(drain) = &self.processes[process].drain else {
            return;
        };
        if drain.left_at.is_some_and(|at| self.now >= at + LEAVING) {
            return self.exit(process);
        }
        let is_time_up = self.now >= drain.until;
        let hosted = self.processes[process].hosted.iter();
        let ready: Vec<AgentKey> = hosted
            .filter(|(_, hosted)| is_time_up || hosted.stage.is_at_rest())
            .map(|(agent, _)| *agent)
            .collect();
        for agent in ready {
            self.move_away(process, agent, is_time_up);
        }
        let state = &self.processes[process];
        let is_empty = state.hosted.is_empty();
        let drain = state.drain.as_ref();
        let is_done = drain.is_some_and(|drain| {
            drain.left_at.is_none() && is_empty && (drain.moving.is_empty() || is_time_up)
        });
        if is_done {
            self.leave(process);
        }
        if self.processes[process].state != ProcessState::Gone {
            self.tell(process, LOOK, ProcessEvent::DrainLook);
        }
    }

    fn leave(&mut self, process: usize) {
        let now = self.now;
        if let Some(drain) = &mut self.processes[process].drain {
            drain.left_at = Some(now);
        }
        self.member(process, MembershipInput::Leave);
    }

    fn move_away(&mut self, process: usize, agent: AgentKey, is_time_up: bool) {
        let host = self.choose_node(process, false);
        let Some(hosted) = self.processes[process].hosted.get(&agent).cloned() else {
            return;
        };
        self.drop_agent(process, agent);
        if is_time_up || host == process {
            if self.has_turns && hosted.stage.is_quiet() {
                self.release(process, agent, hosted.epoch);
            }
            return;
        }
        let (seen, incarnation) = (hosted.epoch, hosted.incarnation);
        let tools_from = hosted.tools_from;
        let state = &mut self.processes[process];
        let ticket = state.next_ticket();
        if let Some(drain) = &mut state.drain {
            drain.moving.insert(agent, (ticket, hosted));
        }
        let purpose = if agent.1 == 0 {
            HostPurpose::MovedLead
        } else {
            HostPurpose::Member
        };
        let order = HostOrder {
            agent,
            purpose,
            after_death: false,
            seen,
            incarnation,
            tools_from,
            host,
            asker: process,
            ticket,
            tries: 0,
        };
        self.send_order(process, order);
    }

    fn release(&mut self, process: usize, agent: AgentKey, epoch: i64) {
        let statement = SqlStatement::Release {
            agent,
            epoch,
            for_good: false,
        };
        self.query(process, statement, SqlCaller::Agent);
    }

    pub fn is_move(&self, process: usize, order: &HostOrder) -> bool {
        let drain = self.processes[process].drain.as_ref();
        drain
            .and_then(|drain| drain.moving.get(&order.agent))
            .is_some_and(|(ticket, _)| *ticket == order.ticket)
    }

    /// Handles the outcome of an order that moves an agent. If the order failed, the agent
    /// continues here, unless this node has begun to leave.
    pub fn move_done(&mut self, process: usize, order: &HostOrder, done: bool) {
        let Some(drain) = &mut self.processes[process].drain else {
            return;
        };
        let has_left = drain.left_at.is_some();
        let Some((_, hosted)) = drain.moving.remove(&order.agent) else {
            return;
        };
        if done {
            self.checks.report.moves += 1;
        } else if !has_left {
            self.restart_agent(process, order.agent, hosted);
        }
    }
}
