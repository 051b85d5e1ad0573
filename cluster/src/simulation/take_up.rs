//! Takes sessions over on a simulated node, as in `takeover/session.rs` and
//! `takeover/incarnation.rs`.
//! Reads the facts, and performs what `recovery` and `claiming` decide.

use std::collections::BTreeSet;

use super::{
    process::{
        HostOrder, HostPurpose, ProcessEvent, RegistryAnswer, RegistryRequest, SqlCaller, TakeUp,
        TakeUpStep, TeamReader, number,
    },
    registry::TeamKey,
    sql::{ClaimedLease, LeaseClaim, SessionRow, SqlReply, SqlStatement},
    world::SimWorld,
};
use crate::{
    claiming::{ClaimEffect, ClaimInput, ClaimPlan, ClaimPolicy, LeadLease, TeamClaim},
    moment::Moment,
    recovery::{self, LeadFacts, LeadStep, LedTeam, TeamHost},
    registry::DeathOf,
    times::ClusterTimes,
};

/// How long a claim may take, in milliseconds.
const CLAIM_PATIENCE: u64 = 20_000;

impl TakeUp {
    pub fn next_wake(&self) -> Option<Moment> {
        match &self.step {
            TakeUpStep::Claiming(claim) => claim.next_wake(),
            TakeUpStep::Reading
            | TakeUpStep::ReadingTeam
            | TakeUpStep::StartingLead
            | TakeUpStep::Closing
            | TakeUpStep::Members(_) => None,
        }
    }
}

impl SimWorld {
    /// Begins to take a session up. If this node is already doing that, continues the sweep and
    /// requests another one after it.
    pub fn take_up(&mut self, process: usize, session: usize) {
        let state = &mut self.processes[process];
        if state.take_ups.contains_key(&session) {
            state.sweep.is_requested |= state.sweep.sessions.is_some();
            return self.sweep_on(process);
        }
        let ticket = state.next_ticket();
        let take_up = TakeUp {
            ticket,
            step: TakeUpStep::Reading,
            session: None,
            led: None,
            has_failed: false,
        };
        state.take_ups.insert(session, take_up);
        let caller = SqlCaller::TakeUp { session, ticket };
        self.query(process, SqlStatement::ReadSession { session }, caller);
    }

    /// Ends a take-up, and continues the sweep. After a failure, the next sweep also reads which
    /// leases of this node have no agent.
    pub fn end_take_up(&mut self, process: usize, session: usize, is_done: bool) {
        let state = &mut self.processes[process];
        state.take_ups.remove(&session);
        state.sweep.may_miss |= !is_done;
        self.sweep_on(process);
    }

    pub fn take_up_of(
        &mut self,
        process: usize,
        (session, ticket): (usize, u64),
    ) -> Option<&mut TakeUp> {
        let take_up = self.processes[process].take_ups.get_mut(&session);
        take_up.filter(|take_up| take_up.ticket == ticket)
    }

    pub fn take_up_replied(
        &mut self,
        process: usize,
        (session, ticket): (usize, u64),
        statement: &SqlStatement,
        reply: SqlReply,
    ) {
        if self.take_up_of(process, (session, ticket)).is_none() {
            return;
        }
        match (statement, reply) {
            (SqlStatement::ReadSession { .. }, SqlReply::Session(row)) => {
                self.session_read(process, (session, ticket), row);
            }
            (SqlStatement::ClaimLead { .. }, SqlReply::Claimed(_)) => {
                self.claim(process, session, ClaimInput::LeaseTaken);
            }
            (SqlStatement::ClaimLead { .. }, SqlReply::Refused) => {
                self.claim(process, session, ClaimInput::LeaseRefused);
            }
            (SqlStatement::ReadLead { .. }, SqlReply::Session(row)) => {
                let lead = row.leases[0];
                let lease = LeadLease {
                    node: lead.node.map(|node| self.processes[node].id.clone()),
                    epoch: lead.epoch,
                    incarnation: row.incarnation,
                };
                self.claim(process, session, ClaimInput::LeaseRead(lease));
            }
            // The claim repeats a request whose outcome is unknown.
            (SqlStatement::ClaimLead { .. } | SqlStatement::ReadLead { .. }, _) => {}
            (SqlStatement::Close { .. }, SqlReply::Done) => {
                self.checks.report.closes += 1;
                self.processes[process].notes.closing.remove(&session);
                self.end_take_up(process, session, true);
            }
            _ => self.end_take_up(process, session, false),
        }
    }

    fn session_read(&mut self, process: usize, (session, ticket): (usize, u64), row: SessionRow) {
        let lead = row.leases[0];
        if !row.is_open {
            self.processes[process].notes.closing.remove(&session);
        }
        if !row.is_open || !self.may_act(process) || self.processes[process].drain.is_some() {
            return self.end_take_up(process, session, !row.is_open);
        }
        let holder = self.holder(process, lead.node);
        let closing = &self.processes[process].notes.closing;
        let has_begun = closing.contains(&session);
        let is_lost = recovery::is_lost(holder, row.on_node_death, has_begun);
        let closing = &mut self.processes[process].notes.closing;
        if is_lost {
            closing.insert(session);
        } else {
            closing.remove(&session);
        }
        let step = recovery::lead_step(LeadFacts {
            is_hosted_here: self.processes[process].hosted.contains_key(&(session, 0)),
            holder,
            is_alone: false,
            is_ending: false,
        });
        let led = if step == LeadStep::HostedElsewhere {
            self.led_elsewhere(process, &row)
        } else {
            LedTeam::led_here(row.on_node_death)
        };
        let team = (session, row.incarnation);
        let Some(take_up) = self.take_up_of(process, (session, ticket)) else {
            return;
        };
        (take_up.session, take_up.led) = (Some(row), Some(led));
        match step {
            LeadStep::Hosted | LeadStep::HostedElsewhere => self.take_up_members(process, session),
            LeadStep::MoveOrBegin => {
                take_up.step = TakeUpStep::ReadingTeam;
                let reader = TeamReader::TakeUp { ticket };
                self.request(process, RegistryRequest::ReadTeam { team, reader });
            }
            LeadStep::TakeLease { .. } | LeadStep::BeginIncarnation => {
                self.begin_claim(process, session, is_lost);
            }
        }
    }

    pub fn team_looked_up(
        &mut self,
        process: usize,
        team: TeamKey,
        ticket: u64,
        answer: &RegistryAnswer,
    ) {
        use planck_common::registry::TeamStanding;
        let session = team.0;
        let Some(take_up) = self.take_up_of(process, (session, ticket)) else {
            return;
        };
        let RegistryAnswer::Team(found) = answer else {
            return self.end_take_up(process, session, false);
        };
        if found.is_none_or(|(_, team)| team.standing == TeamStanding::Dead) {
            return self.begin_claim(process, session, false);
        }
        take_up.step = TakeUpStep::StartingLead;
        let seen = take_up
            .session
            .as_ref()
            .map_or(0, |row| row.leases[0].epoch);
        let order = HostOrder {
            agent: (session, 0),
            purpose: HostPurpose::MovedLead,
            after_death: false,
            seen,
            incarnation: team.1,
            tools_from: self.now,
            host: process,
            asker: process,
            ticket,
            tries: 0,
        };
        self.host(process, order);
    }

    fn begin_claim(&mut self, process: usize, session: usize, is_lost: bool) {
        let Some(row) = self.processes[process]
            .take_ups
            .get(&session)
            .and_then(|take_up| take_up.session.clone())
        else {
            return;
        };
        let now = self.local_time(process);
        let plan = self.plan(process, &row, is_lost);
        let (claim, effects) = TeamClaim::begin(plan, now);
        let Some(take_up) = self.processes[process].take_ups.get_mut(&session) else {
            return;
        };
        let ticket = take_up.ticket;
        take_up.step = TakeUpStep::Claiming(Box::new(claim));
        let overdue = ProcessEvent::ClaimOverdue { session, ticket };
        self.tell(process, CLAIM_PATIENCE, overdue);
        self.perform_claim(process, session, effects);
    }

    fn plan(&mut self, process: usize, row: &SessionRow, is_lost: bool) -> ClaimPlan {
        let nodes: BTreeSet<usize> = row.leases.iter().filter_map(|lease| lease.node).collect();
        let mut hosts = Vec::with_capacity(nodes.len());
        for node in nodes {
            let holder = self.holder(process, Some(node));
            hosts.push(TeamHost {
                node: self.processes[node].id.clone(),
                is_alive: holder != recovery::LeaseHolder::Gone,
                quiet_from: self.quiet_from(process, node),
            });
        }
        let id = |node: usize| self.processes[node].id.clone();
        let lead = row.leases[0];
        let seen = LeadLease {
            node: lead.node.map(id),
            epoch: lead.epoch,
            incarnation: row.incarnation,
        };
        let policy = if is_lost {
            ClaimPolicy::Stop
        } else {
            ClaimPolicy::Resume
        };
        let now = self.local_time(process);
        let grace = ClusterTimes::default().tool_grace;
        recovery::claim_plan((id(process), seen), hosts, policy, now, grace)
    }

    /// Returns from when nothing runs on `node`, or `None` if this process did not see its death.
    pub fn quiet_from(&self, process: usize, node: usize) -> Option<Moment> {
        let quiet = self.processes[process].notes.quiet.get(&node);
        quiet.map(|quiet| *quiet + ClusterTimes::default().tool_grace)
    }

    pub fn claim(&mut self, process: usize, session: usize, input: ClaimInput) {
        let now = self.local_time(process);
        let take_up = self.processes[process].take_ups.get_mut(&session);
        if let Some(TakeUp {
            step: TakeUpStep::Claiming(claim),
            ..
        }) = take_up
        {
            let effects = claim.on(now, input);
            self.perform_claim(process, session, effects);
        }
    }

    pub fn wake_claims(&mut self, process: usize, now: Moment) {
        let take_ups = self.processes[process].take_ups.iter();
        let due = take_ups.filter(|(_, take_up)| take_up.next_wake().is_some_and(|at| at <= now));
        for session in due.map(|(session, _)| *session).collect::<Vec<_>>() {
            self.claim(process, session, ClaimInput::Woken);
        }
    }

    pub fn claim_overdue(&mut self, process: usize, session: usize, ticket: u64) {
        let take_up = self.take_up_of(process, (session, ticket));
        if take_up.is_some_and(|take_up| matches!(take_up.step, TakeUpStep::Claiming(_))) {
            self.end_take_up(process, session, false);
        }
    }

    fn perform_claim(&mut self, process: usize, session: usize, effects: Vec<ClaimEffect>) {
        let Some(ticket) = self.processes[process]
            .take_ups
            .get(&session)
            .map(|take_up| take_up.ticket)
        else {
            return;
        };
        let caller = || SqlCaller::TakeUp { session, ticket };
        for effect in effects {
            self.trace(|| format!("n{process:03} claiming s{session} {effect:?}"));
            match effect {
                ClaimEffect::TakeLease { seen } => {
                    let claim = LeaseClaim {
                        agent: (session, 0),
                        seen,
                        me: process,
                    };
                    let after_death = true;
                    let statement = SqlStatement::ClaimLead { claim, after_death };
                    self.query(process, statement, caller());
                }
                ClaimEffect::ReadLease => {
                    self.query(process, SqlStatement::ReadLead { session }, caller());
                }
                ClaimEffect::StopTeam { node, incarnation } => {
                    let (peer, team) = (number(&node), (session, incarnation));
                    if peer == process {
                        self.stop_requested(process, process, team);
                    } else {
                        let asker = process;
                        self.send(process, peer, ProcessEvent::StopTeam { asker, team });
                    }
                }
                ClaimEffect::MarkTeamDead { incarnation } => {
                    let (team, which) = ((session, incarnation), DeathOf::AnyRecord);
                    self.request(process, RegistryRequest::MarkDead { team, which });
                }
                ClaimEffect::CreateTeam { incarnation } => {
                    let team = (session, incarnation);
                    self.request(process, RegistryRequest::CreateTeam { team });
                }
                ClaimEffect::Start {
                    epoch,
                    incarnation,
                    tools_from,
                } => self.start_lead(process, session, (epoch, incarnation), tools_from),
                ClaimEffect::Close { epoch, .. } => {
                    if let Some(take_up) = self.take_up_of(process, (session, ticket)) {
                        take_up.step = TakeUpStep::Closing;
                    }
                    self.query(process, SqlStatement::Close { session, epoch }, caller());
                }
                ClaimEffect::Lost => self.lead_is_elsewhere(process, session),
            }
        }
    }

    pub fn team_stopped(&mut self, process: usize, from: usize, session: usize) {
        let node = self.processes[from].id.clone();
        self.claim(process, session, ClaimInput::Stopped { node });
    }

    pub fn last_team_dead(&mut self, process: usize, team: TeamKey) {
        self.claim(process, team.0, ClaimInput::TeamMarkedDead);
    }

    pub fn team_created(&mut self, process: usize, team: TeamKey, answer: &RegistryAnswer) {
        let input = match answer {
            RegistryAnswer::Done(_) => ClaimInput::TeamCreated,
            RegistryAnswer::Refused => ClaimInput::TeamTaken,
            _ => return,
        };
        self.claim(process, team.0, input);
    }

    fn start_lead(
        &mut self,
        process: usize,
        session: usize,
        (epoch, incarnation): (i64, i64),
        tools_from: Moment,
    ) {
        let stored = &self.sql.sessions[session];
        let lease = ClaimedLease {
            epoch,
            last_seq: stored.row.leases[0].last_seq,
            incarnation,
            open: stored.open_work(0),
        };
        let tools_from_world = self.processes[process].world(tools_from);
        let Some(take_up) = self.processes[process].take_ups.get_mut(&session) else {
            return;
        };
        take_up.step = TakeUpStep::StartingLead;
        let ticket = take_up.ticket;
        if let Some(led) = &mut take_up.led {
            led.is_new_incarnation = true;
            led.tools_from = Some(tools_from);
        }
        let order = HostOrder {
            agent: (session, 0),
            purpose: HostPurpose::ClaimedLead(lease),
            after_death: false,
            seen: epoch,
            incarnation,
            tools_from: tools_from_world,
            host: process,
            asker: process,
            ticket,
            tries: 0,
        };
        self.host(process, order);
    }
}
