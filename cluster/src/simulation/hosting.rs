//! Starts agents on a simulated node, as in `placement/hosting.rs`. For a
//! member, the node writes the member's record on condition of the team's record, then claims the
//! lease, and then starts the actor. A lead's lease is claimed before its record is written.

use planck_common::registry::TeamStanding;

use super::{
    process::{
        HostOrder, HostPurpose, HostedAgent, ProcessEvent, RegistryAnswer, RegistryRequest,
        SqlCaller, TeamReader,
    },
    sql::{AgentKey, ClaimedLease, LeaseClaim, SqlReply, SqlStatement},
    world::SimWorld,
};
use crate::{
    planted::{PlantedFault, is_planted},
    recovery::{MemberPlan, MemberStep},
};

/// How long a node has to start an agent, in milliseconds.
const HOST_PATIENCE: u64 = 8_000;
/// The maximum number of attempts to write a record whose condition changes meanwhile.
const TRIES: u32 = 3;

impl SimWorld {
    /// Returns the agent as the process has it that holds the agent's lease, if that one hosts it.
    pub fn at_holder(&self, agent: AgentKey) -> Option<&HostedAgent> {
        let node = self.sql.row(agent).node?;
        self.processes[node].hosted.get(&agent)
    }

    /// Returns a random node that is not known to be gone.
    pub fn choose_node(&mut self, process: usize, with_this: bool) -> usize {
        let peers = self.processes[process].membership.peers();
        let mut nodes: Vec<usize> = peers.map(|node| super::process::number(node)).collect();
        if with_this || nodes.is_empty() {
            nodes.push(process);
        }
        nodes[self.rng.usize(0..nodes.len())]
    }

    pub fn send_order(&mut self, process: usize, order: HostOrder) {
        if order.host == process {
            return self.host(process, order);
        }
        self.send(process, order.host, ProcessEvent::Host(Box::new(order)));
        let (order, done) = (Box::new(order), false);
        self.tell(process, HOST_PATIENCE, ProcessEvent::Hosted { order, done });
    }

    /// Carries out an order, from this node or another one, to start an agent on this node.
    pub fn host(&mut self, process: usize, order: HostOrder) {
        let is_own = order.asker == process;
        let accepts = self.may_act(process) && self.processes[process].drain.is_none();
        if !is_own && !accepts {
            return self.answer_order(process, order, false);
        }
        match order.purpose {
            HostPurpose::MovedLead => {
                let statement = SqlStatement::ClaimLead {
                    claim: claim(process, &order),
                    after_death: false,
                };
                self.query(process, statement, SqlCaller::Host(order));
            }
            HostPurpose::Member | HostPurpose::ClaimedLead(_) => self.create_record(process, order),
            HostPurpose::LostMember => self.claim_member(process, order),
        }
    }

    fn create_record(&mut self, process: usize, order: HostOrder) {
        let is_without_records = [PlantedFault::NoMemberRecords, PlantedFault::NoTeamRecords]
            .map(is_planted)
            .contains(&true);
        if is_without_records {
            return self.member_created(process, order, &RegistryAnswer::Done(0));
        }
        if order.tries >= TRIES {
            return self.answer_order(process, order, false);
        }
        let order = HostOrder {
            tries: order.tries + 1,
            ..order
        };
        let (team, reader) = (order.team(), TeamReader::Host(order));
        self.request(process, RegistryRequest::ReadTeam { team, reader });
    }

    pub fn team_read_to_host(&mut self, process: usize, order: HostOrder, answer: &RegistryAnswer) {
        match answer {
            RegistryAnswer::Team(Some((revision, team)))
                if team.standing == TeamStanding::Alive =>
            {
                let revision = *revision;
                self.request(process, RegistryRequest::CreateMember { order, revision });
            }
            _ => self.answer_order(process, order, false),
        }
    }

    pub fn member_created(&mut self, process: usize, order: HostOrder, answer: &RegistryAnswer) {
        match (answer, order.purpose) {
            (RegistryAnswer::Done(_), HostPurpose::ClaimedLead(lease)) => {
                self.start_ordered(process, order, lease);
            }
            (RegistryAnswer::Done(_), _) => self.claim_member(process, order),
            (RegistryAnswer::Refused | RegistryAnswer::Unknown, _) => {
                self.create_record(process, order);
            }
            _ => self.answer_order(process, order, false),
        }
    }

    fn claim_member(&mut self, process: usize, order: HostOrder) {
        let statement = SqlStatement::ClaimMember {
            claim: claim(process, &order),
            incarnation: order.incarnation,
        };
        self.query(process, statement, SqlCaller::Host(order));
    }

    pub fn host_replied(
        &mut self,
        process: usize,
        order: HostOrder,
        statement: &SqlStatement,
        reply: &SqlReply,
    ) {
        match (statement, reply, order.purpose) {
            (SqlStatement::ClaimLead { .. }, SqlReply::Claimed(lease), _) => {
                let order = HostOrder {
                    purpose: HostPurpose::ClaimedLead(*lease),
                    ..order
                };
                self.request(process, RegistryRequest::MoveLead { order });
            }
            (
                SqlStatement::ClaimMember { .. },
                SqlReply::Claimed(lease),
                HostPurpose::LostMember,
            ) => {
                let statement = SqlStatement::Release {
                    agent: order.agent,
                    epoch: lease.epoch,
                    for_good: true,
                };
                self.query(process, statement, SqlCaller::Host(order));
            }
            (SqlStatement::ClaimMember { .. }, SqlReply::Claimed(lease), _) => {
                let tools_from = self.tools_from_claim(process, &order);
                let order = HostOrder {
                    tools_from,
                    ..order
                };
                self.start_ordered(process, order, *lease);
            }
            (SqlStatement::Release { .. }, SqlReply::Done, _) => {
                self.answer_order(process, order, true);
            }
            (SqlStatement::ClaimMember { .. }, _, HostPurpose::Member) => {
                if !self.processes[process].hosted.contains_key(&order.agent) {
                    self.remove_member(process, order.team(), order.agent.1);
                }
                // If another node took the member's lease, this node need not start the member.
                let is_own = order.asker == process;
                let done = is_own && *reply == SqlReply::Refused;
                self.answer_order(process, order, done);
            }
            _ => self.answer_order(process, order, false),
        }
    }

    fn tools_from_claim(&self, process: usize, order: &HostOrder) -> u64 {
        let state = &self.processes[process];
        let plan = MemberPlan {
            step: MemberStep::ClaimHere,
            after_death: order.after_death,
            tools_from: Some(state.local(order.tools_from)),
        };
        let from = plan.tools_from_claim(self.local_time(process));
        from.map_or(0, |from| state.world(from))
    }

    pub fn lead_moved(&mut self, process: usize, order: HostOrder, answer: &RegistryAnswer) {
        if matches!(answer, RegistryAnswer::Done(_)) {
            self.create_record(process, order);
        } else {
            self.answer_order(process, order, false);
        }
    }

    fn start_ordered(&mut self, process: usize, order: HostOrder, lease: ClaimedLease) {
        self.start_agent(process, &order, lease);
        self.answer_order(process, order, true);
    }

    fn answer_order(&mut self, process: usize, order: HostOrder, done: bool) {
        self.processes[process].sweep.may_miss = true;
        if order.asker == process {
            self.order_done(process, order, done);
        } else {
            let asker = order.asker;
            let order = Box::new(order);
            self.send(process, asker, ProcessEvent::Hosted { order, done });
        }
    }

    /// Handles the outcome of an order that this node gave.
    pub fn order_done(&mut self, process: usize, order: HostOrder, done: bool) {
        if self.is_move(process, &order) {
            self.move_done(process, &order, done);
        } else {
            self.take_up_order_done(process, order, done);
        }
    }
}

fn claim(process: usize, order: &HostOrder) -> LeaseClaim {
    LeaseClaim {
        agent: order.agent,
        seen: order.seen,
        me: process,
    }
}
