//! The membership thread of a simulated node. It passes inputs to the state machine and performs
//! the effects, as `cluster/thread` does.

use super::{
    process::{ProcessEvent, ProcessState, RegistryRequest, SqlCaller, number},
    sql::SqlStatement,
    world::{SimWorld, WorldEvent},
};
use crate::{
    cascade::CascadeInput,
    membership::{MembershipEffect, MembershipInput, PeerNews},
    moment::Moment,
};

/// How long after its end a node is started again, in milliseconds.
const RESTARTS_AFTER: u64 = 1_000;
/// The number of heartbeats of a node that are kept for the checks.
const BEATS_KEPT: usize = 24;
/// One in this many heartbeats is lost on its way to a peer.
const LOST_BEATS: u32 = 200;

impl SimWorld {
    pub fn handle(&mut self, process: usize, event: ProcessEvent) {
        match event {
            // The timer was replaced meanwhile.
            ProcessEvent::Wake { ticket }
                if self.processes[process].notes.wake_ticket != ticket =>
            {
                return;
            }
            ProcessEvent::Wake { .. } => self.wake(process),
            ProcessEvent::Heartbeat { from, seq } => {
                let (node, now) = (self.processes[from].id.clone(), self.now);
                self.processes[process].notes.heard.insert(from, now);
                self.member(process, MembershipInput::Heartbeat { node, seq });
            }
            ProcessEvent::Answer { request, answer } => self.answered(process, *request, answer),
            ProcessEvent::Sql {
                statement,
                caller,
                reply,
            } => self.replied(process, *statement, *caller, reply),
            ProcessEvent::Watched { peer, record } => self.watched(process, peer, &record),
            ProcessEvent::StopTeam { asker, team } => self.stop_requested(process, asker, team),
            ProcessEvent::TeamStopped { from, session } => {
                self.team_stopped(process, from, session);
            }
            ProcessEvent::Host(order) => self.host(process, *order),
            ProcessEvent::Hosted { order, done } => self.order_done(process, *order, done),
            ProcessEvent::Agent { agent, epoch } => self.step(process, agent, epoch),
            ProcessEvent::Look { agent } => self.look(process, agent),
            ProcessEvent::TakeUp { session } => self.take_up(process, session),
            ProcessEvent::Arrived { input } => self.arrived(process, input),
            ProcessEvent::Load { agent, epoch } => self.load_again(process, agent, epoch),
            ProcessEvent::Abort { abort } => self.abort(process, abort),
            ProcessEvent::ReadNodes => {
                self.request(process, RegistryRequest::ReadNodes);
                let next = self.rng.u64(8_000..12_000);
                self.tell(process, next, ProcessEvent::ReadNodes);
            }
            ProcessEvent::CompareTeams => {
                self.cascade(process, CascadeInput::Sweep);
                let next = self.rng.u64(8_000..12_000);
                self.tell(process, next, ProcessEvent::CompareTeams);
            }
            ProcessEvent::SweepDue { ticket } => self.sweep_due(process, ticket),
            ProcessEvent::ClaimOverdue { session, ticket } => {
                self.claim_overdue(process, session, ticket);
            }
            ProcessEvent::Drain => self.drain(process),
            ProcessEvent::DrainLook => self.drain_look(process),
        }
        self.set_alarm(process);
    }

    /// Returns whether new work may begin, which the permit of the membership thread decides.
    pub fn may_act(&self, process: usize) -> bool {
        let process = &self.processes[process];
        let now = process.local(self.now);
        process.is_running() && process.permit.is_some_and(|until| now < until)
    }

    pub fn local_time(&self, process: usize) -> Moment {
        self.processes[process].local(self.now)
    }

    pub fn member(&mut self, process: usize, input: MembershipInput) {
        let now = self.local_time(process);
        for effect in self.processes[process].membership.on(now, input) {
            self.perform(process, effect);
        }
        let could_act = self.may_act(process);
        let state = &mut self.processes[process];
        state.permit = state.membership.may_act_until(now);
        if !could_act && self.may_act(process) {
            self.request_sweep(process);
        }
    }

    fn wake(&mut self, process: usize) {
        let state = &mut self.processes[process];
        state.notes.wake_at = None;
        let now = state.local(self.now);
        let cascade_due = state.cascade.next_wake().is_some_and(|at| at <= now);
        self.member(process, MembershipInput::Woken);
        if cascade_due {
            self.cascade(process, CascadeInput::Woken);
        }
        self.wake_claims(process, now);
    }

    /// Sets the only timer of a process to the earliest time at which its decision logic must wake.
    fn set_alarm(&mut self, process: usize) {
        let state = &mut self.processes[process];
        if state.state == ProcessState::Gone {
            return;
        }
        let claims = state.take_ups.values();
        let claims = claims.filter_map(super::process::TakeUp::next_wake);
        let others = claims.chain(state.cascade.next_wake());
        let wake = others.fold(state.membership.next_wake(), Moment::min);
        let at = state.world(wake).max(self.now + 1);
        if state
            .notes
            .wake_at
            .is_none_or(|set| at < set || set <= self.now)
        {
            state.notes.wake_ticket += 1;
            state.notes.wake_at = Some(at);
            let ticket = state.notes.wake_ticket;
            let event = ProcessEvent::Wake { ticket };
            self.at(at, WorldEvent::Process { process, event });
        }
    }

    fn perform(&mut self, process: usize, effect: MembershipEffect) {
        if !matches!(
            effect,
            MembershipEffect::Beat { .. }
                | MembershipEffect::Prove { .. }
                | MembershipEffect::ReadProof { .. }
        ) {
            self.trace(|| format!("n{process:03} {effect:?}"));
        }
        match effect {
            MembershipEffect::Beat { seq } => self.beat(process, seq),
            MembershipEffect::Prove { sent_at, expects } => {
                self.request(process, RegistryRequest::Prove { sent_at, expects });
            }
            MembershipEffect::Write { standing, expects } => {
                self.request(process, RegistryRequest::WriteOwn { standing, expects });
            }
            MembershipEffect::Read { node } => {
                let read = number(&node);
                self.request(process, RegistryRequest::ReadNode { process: read });
            }
            MembershipEffect::ReadProof { node, asked_at } => {
                let peer = number(&node);
                let request = RegistryRequest::ReadProof {
                    process: peer,
                    asked_at,
                };
                self.read_proof(process, request);
            }
            MembershipEffect::ReadAll => self.request(process, RegistryRequest::ReadNodes),
            MembershipEffect::DeclareDead {
                node,
                expects,
                own,
                silent,
            } => {
                let request = RegistryRequest::DeclareDead {
                    process: number(&node),
                    expects,
                    own,
                    silent,
                    decided: self.now,
                };
                self.request(process, request);
            }
            MembershipEffect::CheckLeases { asked_at } => {
                let here = self.processes[process].hosted.iter();
                let statement = SqlStatement::OwnLeases {
                    asked_at: asked_at.as_millis(),
                    me: process,
                    here: here.map(|(agent, hosted)| (*agent, hosted.epoch)).collect(),
                };
                self.query(process, statement, SqlCaller::Leases);
            }
            MembershipEffect::KillTools => self.kill_tools(process),
            MembershipEffect::Suspend { .. } => {
                let now = self.now;
                self.processes[process].permit = None;
                self.processes[process].notes.suspended = Some(now);
            }
            MembershipEffect::Resume => {
                let notes = &mut self.processes[process].notes;
                (notes.resumed, notes.suspended) = (self.now, None);
            }
            MembershipEffect::Peer { node, news } => self.news(process, number(&node), news),
            MembershipEffect::Exit { .. } => self.exit(process),
        }
    }

    pub fn beat(&mut self, process: usize, seq: u64) {
        let from = self.processes[process].machine;
        if !self.net.is_connected(from, self.now) {
            if self.rng.bool() {
                self.late_beats.push((process, seq));
            }
            return;
        }
        let beats = &mut self.processes[process].notes.beats;
        beats.push_back(self.now);
        if beats.len() > BEATS_KEPT {
            beats.pop_front();
        }
        for peer in 0..self.processes.len() {
            let to = self.processes[peer].machine;
            let is_heard = self.processes[peer].state != ProcessState::Gone
                && self.net.reaches(from, to, self.now);
            if !is_heard {
                continue;
            }
            if self.rng.u32(0..LOST_BEATS) == 0 {
                self.processes[process].notes.beat_lost = Some(self.now);
            } else {
                let delay = self.latency(from) + self.latency(to);
                self.tell(peer, delay, ProcessEvent::Heartbeat { from: process, seq });
            }
        }
    }

    fn news(&mut self, process: usize, peer: usize, news: PeerNews) {
        match news {
            PeerNews::Suspect | PeerNews::Back => {}
            PeerNews::Left => self.request_sweep(process),
            PeerNews::Died { quiet_since } => {
                let node = self.processes[peer].id.clone();
                let quiet = &mut self.processes[process].notes.quiet;
                quiet.insert(peer, quiet_since);
                self.cascade(process, CascadeInput::NodeDied { node });
                self.request_sweep(process);
            }
        }
    }

    pub fn exit(&mut self, process: usize) {
        self.trace(|| format!("n{process:03} ends"));
        self.processes[process].state = ProcessState::Gone;
        let hosted: Vec<_> = self.processes[process].hosted.keys().copied().collect();
        for agent in hosted {
            self.drop_agent(process, agent);
        }
        let machine = self.processes[process].machine;
        self.after(RESTARTS_AFTER, WorldEvent::Start { machine });
    }
}
