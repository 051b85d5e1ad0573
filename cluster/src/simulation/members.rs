//! The members of a session that a simulated node takes over, as in `takeover/session.rs`. As
//! `recovery` decides, the node starts a member itself, places it on another node, stops it, or
//! leaves it.

use std::collections::BTreeMap;

use super::{
    process::{HostOrder, HostPurpose, TakeUpStep},
    sql::SessionRow,
    world::SimWorld,
};
use crate::{
    recovery::{self, LedTeam, MemberFacts, MemberStep},
    times::ClusterTimes,
};

impl SimWorld {
    /// Continues a take-up after another node took the lead. That node takes up the members whose
    /// leases this node does not hold.
    pub fn lead_is_elsewhere(&mut self, process: usize, session: usize) {
        let take_up = self.processes[process].take_ups.get(&session);
        let row = take_up.and_then(|take_up| take_up.session.clone());
        let led = row.map(|row| self.led_elsewhere(process, &row));
        if let Some(take_up) = self.processes[process].take_ups.get_mut(&session) {
            take_up.led = led;
        }
        self.take_up_members(process, session);
    }

    pub fn led_elsewhere(&self, process: usize, row: &SessionRow) -> LedTeam {
        let grace = ClusterTimes::default().tool_grace;
        LedTeam::led_elsewhere(row.on_node_death, self.local_time(process), grace)
    }

    /// Performs what `recovery` decides about each member.
    pub fn take_up_members(&mut self, process: usize, session: usize) {
        let Some(take_up) = self.processes[process].take_ups.get_mut(&session) else {
            return;
        };
        take_up.step = TakeUpStep::Members(BTreeMap::new());
        let (ticket, row, led) = (take_up.ticket, take_up.session.clone(), take_up.led);
        let (Some(row), Some(led)) = (row, led) else {
            return self.end_take_up(process, session, false);
        };
        let incarnation = row.incarnation + i64::from(led.is_new_incarnation);
        let mut orders = Vec::new();
        for (agent, lease) in row.leases.iter().enumerate().skip(1) {
            if lease.is_stopped {
                continue;
            }
            let holder = self.holder(process, lease.node);
            let facts = MemberFacts {
                is_hosted_here: self.processes[process]
                    .hosted
                    .contains_key(&(session, agent)),
                holder,
                is_for_work: true,
                quiet_from: lease.node.and_then(|node| self.quiet_from(process, node)),
            };
            let plan = recovery::member_plan(led, facts);
            let (purpose, host) = match plan.step {
                MemberStep::Leave => continue,
                MemberStep::StopLost => (HostPurpose::LostMember, process),
                MemberStep::ClaimHere => (HostPurpose::Member, process),
                MemberStep::Place => {
                    let living = lease
                        .node
                        .filter(|_| holder == recovery::LeaseHolder::Living);
                    let host = living.unwrap_or_else(|| self.choose_node(process, true));
                    (HostPurpose::Member, host)
                }
            };
            let state = &self.processes[process];
            orders.push(HostOrder {
                agent: (session, agent),
                purpose,
                after_death: plan.after_death,
                seen: lease.epoch,
                incarnation,
                tools_from: plan.tools_from.map_or(0, |from| state.world(from)),
                host,
                asker: process,
                ticket,
                tries: 0,
            });
        }
        if let Some(take_up) = self.take_up_of(process, (session, ticket)) {
            let hosts = orders.iter().map(|order| (order.agent.1, order.host));
            take_up.step = TakeUpStep::Members(hosts.collect());
        }
        for order in &orders {
            self.send_order(process, *order);
        }
        if orders.is_empty() {
            self.end_take_up(process, session, true);
        }
    }

    /// Handles the outcome of an order that a take-up gave. If another node did not start a member,
    /// this node starts it.
    pub fn take_up_order_done(&mut self, process: usize, order: HostOrder, done: bool) {
        let (session, agent) = order.agent;
        let Some(take_up) = self.take_up_of(process, (session, order.ticket)) else {
            return;
        };
        if agent == 0 {
            return match (done, &take_up.step) {
                (true, TakeUpStep::StartingLead) => self.take_up_members(process, session),
                (_, TakeUpStep::StartingLead) => self.end_take_up(process, session, false),
                _ => {}
            };
        }
        let TakeUpStep::Members(waiting) = &mut take_up.step else {
            return;
        };
        if waiting.get(&agent) != Some(&order.host) {
            return;
        }
        if !done && order.host != process {
            waiting.insert(agent, process);
            let order = HostOrder {
                host: process,
                ..order
            };
            return self.host(process, order);
        }
        waiting.remove(&agent);
        let is_last = waiting.is_empty();
        take_up.has_failed |= !done;
        if is_last {
            let has_failed = take_up.has_failed;
            self.end_take_up(process, session, !has_failed);
        }
    }
}
