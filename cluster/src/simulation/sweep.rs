//! The sweeps of a simulated node and the checks of its leases, as in `takeover.rs` and
//! `takeover/leave.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    process::{ProcessEvent, ProcessState, SqlCaller},
    sql::{AgentKey, SqlReply, SqlStatement},
    world::SimWorld,
};
use crate::{
    liveness::SILENCE,
    membership::MembershipInput,
    moment::Moment,
    planted::{PlantedFault, is_planted},
    recovery::{self, LeaseHolder, NodeLife},
};

impl SimWorld {
    pub fn schedule_sweep(&mut self, process: usize) {
        let random = self.rng.f64();
        let sweep = &mut self.processes[process].sweep;
        let pause = sweep.schedule.pause(random);
        sweep.ticket += 1;
        let ticket = sweep.ticket;
        let pause = u64::try_from(pause.as_millis()).unwrap();
        self.tell(process, pause, ProcessEvent::SweepDue { ticket });
    }

    /// Makes the next sweep begin at once, or after the sweep that is under way.
    pub fn request_sweep(&mut self, process: usize) {
        let sweep = &mut self.processes[process].sweep;
        if sweep.sessions.is_some() {
            sweep.is_requested = true;
        } else if !std::mem::replace(&mut sweep.is_requested, true) {
            sweep.ticket += 1;
            let ticket = sweep.ticket;
            self.tell(process, 0, ProcessEvent::SweepDue { ticket });
        }
    }

    pub fn sweep_due(&mut self, process: usize, ticket: u64) {
        let alive = self.alive(process);
        let state = &mut self.processes[process];
        if state.sweep.ticket != ticket || state.sweep.sessions.is_some() {
            return;
        }
        state.sweep.is_requested = false;
        let is_full = state.sweep.schedule.begin();
        if state.drain.is_some() {
            return self.schedule_sweep(process);
        }
        let may_miss = std::mem::take(&mut state.sweep.may_miss) || is_full;
        state.sweep.sessions = Some(std::collections::VecDeque::new());
        let held_by = may_miss.then_some(process);
        // An input that is put from here on adds its session again.
        let to_sweep = std::mem::take(&mut state.sweep.to_sweep);
        let statement = SqlStatement::Sweep {
            alive,
            held_by,
            to_sweep,
        };
        self.query(process, statement, SqlCaller::Sweep);
    }

    /// Returns this node and the nodes that are not gone and sent a heartbeat or became known
    /// within [`SILENCE`].
    pub fn alive(&self, process: usize) -> Vec<usize> {
        let state = &self.processes[process];
        let silence = u64::try_from(SILENCE.as_millis()).unwrap();
        let is_heard = |(peer, heard): &(&usize, &u64)| {
            let is_gone = state.membership.is_gone(&self.processes[**peer].id);
            is_gone != Some(true) && self.now < **heard + silence && **peer != process
        };
        let peers = state.notes.heard.iter().filter(is_heard);
        peers.map(|(peer, _)| *peer).chain([process]).collect()
    }

    /// Returns the holder of a lease, as this node sees it. If this node knows no record of the
    /// holder, requests the record from the registry.
    pub fn holder(&mut self, process: usize, node: Option<usize>) -> LeaseHolder {
        let me = self.processes[process].id.clone();
        let Some(node) = node else {
            return LeaseHolder::of(None, &me, true);
        };
        let id = self.processes[node].id.clone();
        let is_gone = self.processes[process].membership.is_gone(&id);
        let life = NodeLife::of(is_gone, None);
        if life == NodeLife::Unknown && node != process {
            let node = id.clone();
            self.member(process, MembershipInput::Leaseholder { node });
        }
        LeaseHolder::of(Some(&id), &me, life != NodeLife::Gone)
    }

    fn swept(
        &mut self,
        process: usize,
        alive: &[usize],
        to_sweep: BTreeSet<usize>,
        reply: SqlReply,
    ) {
        let sweep = &mut self.processes[process].sweep;
        let SqlReply::Strays { strays, held } = reply else {
            sweep.may_miss = true;
            sweep.to_sweep.extend(to_sweep);
            return self.end_sweep(process);
        };
        if !is_planted(PlantedFault::OwnPutsUnswept) {
            let found = strays.iter().map(|(agent, _)| agent.0);
            sweep.to_sweep.extend(found);
        }
        self.wake_own(process, &strays);
        let hosted = &self.processes[process].hosted;
        let missing = held.into_iter().flatten();
        let missing = missing.filter(|agent| !hosted.contains_key(agent));
        let strays = strays
            .into_iter()
            .filter(|(_, node)| recovery::has_no_host(node.as_ref(), alive));
        let sessions: BTreeSet<usize> = strays
            .map(|(agent, _)| agent.0)
            .chain(missing.map(|agent| agent.0))
            .collect();
        self.processes[process].sweep.sessions = Some(sessions.into_iter().collect());
        self.sweep_on(process);
    }

    /// Makes those of the agents that run on this node read their inboxes and answers, because they
    /// may have missed a wake-up.
    fn wake_own(&mut self, process: usize, strays: &[(AgentKey, Option<usize>)]) {
        for (agent, _) in strays {
            self.look(process, *agent);
        }
    }

    /// Takes up the next session of the sweep, or ends the sweep.
    pub fn sweep_on(&mut self, process: usize) {
        let Some(sessions) = &mut self.processes[process].sweep.sessions else {
            return;
        };
        match sessions.pop_front() {
            Some(session) => self.take_up(process, session),
            None => self.end_sweep(process),
        }
    }

    fn end_sweep(&mut self, process: usize) {
        let sweep = &mut self.processes[process].sweep;
        sweep.sessions = None;
        if std::mem::take(&mut sweep.is_requested) {
            self.request_sweep(process);
        } else {
            self.schedule_sweep(process);
        }
    }

    pub fn replied(
        &mut self,
        process: usize,
        statement: SqlStatement,
        caller: SqlCaller,
        reply: SqlReply,
    ) {
        match (caller, statement) {
            (SqlCaller::Agent, SqlStatement::Append { session, row, .. }) => {
                self.appended(process, session, row, &reply);
            }
            (SqlCaller::Agent, SqlStatement::ReadAnswer { agent }) => {
                if let SqlReply::Unread(Some(answer)) = reply {
                    self.answer_read(process, agent, answer);
                }
            }
            (SqlCaller::Agent, statement @ SqlStatement::ReadInbox { .. }) => {
                self.inbox_read(process, &statement, &reply);
            }
            (SqlCaller::Person(answer), _) => self.person_replied(process, answer, &reply),
            (SqlCaller::Put(input), statement) => {
                self.put_replied(process, input, &statement, &reply);
            }
            (SqlCaller::Abort(abort), _) => self.abort_replied(process, abort, &reply),
            (
                SqlCaller::Sweep,
                SqlStatement::Sweep {
                    alive, to_sweep, ..
                },
            ) => self.swept(process, &alive, to_sweep, reply),
            (SqlCaller::Leases, SqlStatement::OwnLeases { asked_at, here, .. }) => {
                if let SqlReply::Held(held) = reply {
                    self.drop_superseded(process, &here, held.into_iter().collect());
                    let asked_at = Moment::from_millis(asked_at);
                    self.member(process, MembershipInput::LeasesChecked { asked_at });
                }
            }
            (SqlCaller::TakeUp { session, ticket }, statement) => {
                self.take_up_replied(process, (session, ticket), &statement, reply);
            }
            (SqlCaller::Host(order), statement) => {
                self.host_replied(process, order, &statement, &reply);
            }
            (SqlCaller::Agent | SqlCaller::Leases | SqlCaller::Sweep, _) => {}
        }
    }

    fn drop_superseded(
        &mut self,
        process: usize,
        here: &[(AgentKey, i64)],
        held: BTreeMap<AgentKey, i64>,
    ) {
        if self.processes[process].state == ProcessState::Gone {
            return;
        }
        for agent in recovery::superseded(here, &held) {
            self.trace(|| format!("n{process:03} drops {agent:?}"));
            self.drop_agent(process, agent);
        }
    }
}
