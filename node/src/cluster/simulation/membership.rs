//! The membership thread of a simulated node: what happens goes to the machine, and its effects are
//! performed, as `cluster/thread` does it.

use super::{
    process::{
        ProcessEvent, ProcessState, RegistryAnswer, RegistryRequest, SqlCaller, TeamReader, number,
    },
    registry::SimRecord,
    sql::SqlStatement,
    world::{SimWorld, WorldEvent},
};
use crate::cluster::{
    cascade::CascadeInput,
    membership::{MembershipEffect, MembershipInput, PeerNews, ReadSource},
    moment::Moment,
};

/// A node that ended is started again after so long.
const RESTARTS_AFTER: u64 = 1_000;
/// One of so many heartbeats is lost.
const LOST_BEATS: u32 = 200;

impl SimWorld {
    pub fn handle(&mut self, process: usize, event: ProcessEvent) {
        match event {
            ProcessEvent::Wake { ticket } => self.wake(process, ticket),
            ProcessEvent::Heartbeat { from, seq } => {
                let (node, now) = (self.processes[from].id.clone(), self.now);
                self.processes[process].notes.heard.insert(from, now);
                self.member(process, MembershipInput::Heartbeat { node, seq });
            }
            ProcessEvent::Answer { request, answer } => self.answered(process, request, answer),
            ProcessEvent::Sql {
                statement,
                caller,
                reply,
            } => self.replied(process, statement, caller, reply),
            ProcessEvent::Watched { peer, record } => self.watched(process, peer, &record),
            ProcessEvent::StopTeam { asker, team } => self.stop_requested(process, asker, team),
            ProcessEvent::TeamStopped { from, session } => {
                self.team_stopped(process, from, session);
            }
            ProcessEvent::Host(order) => self.host(process, order),
            ProcessEvent::Hosted { order, done } => self.order_done(process, order, done),
            ProcessEvent::Agent { agent, epoch } => self.step(process, agent, epoch),
            ProcessEvent::Prompt { session } => self.take_up(process, session),
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

    /// Whether new work may begin, as the permit of the membership thread says.
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
        let state = &mut self.processes[process];
        state.permit = state.membership.may_act_until(now);
    }

    fn wake(&mut self, process: usize, ticket: u64) {
        let state = &mut self.processes[process];
        if state.notes.wake_ticket != ticket {
            return;
        }
        state.notes.wake_at = None;
        let now = state.local(self.now);
        let cascade_due = state.cascade.next_wake().is_some_and(|at| at <= now);
        self.member(process, MembershipInput::Woken);
        if cascade_due {
            self.cascade(process, CascadeInput::Woken);
        }
        self.wake_claims(process, now);
    }

    /// Sets the one timer of all deciders of a process.
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
            MembershipEffect::Suspend { .. } => self.processes[process].permit = None,
            MembershipEffect::Resume => {
                self.processes[process].notes.resumed = self.now;
                self.request_sweep(process);
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
        for peer in 0..self.processes.len() {
            let to = self.processes[peer].machine;
            let is_heard = self.processes[peer].state != ProcessState::Gone
                && self.net.reaches(from, to, self.now);
            if is_heard && self.rng.u32(0..LOST_BEATS) != 0 {
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

    pub fn open_registry(&mut self, process: usize) {
        let notes = &mut self.processes[process].notes;
        if !std::mem::replace(&mut notes.is_opening, true) {
            self.request(process, RegistryRequest::Open);
        }
    }

    fn answered(&mut self, process: usize, request: RegistryRequest, answer: RegistryAnswer) {
        let is_missing = matches!(answer, RegistryAnswer::Missing);
        match request {
            RegistryRequest::ReadTeam { team, reader } => {
                return match reader {
                    TeamReader::Cascade => self.team_read(process, team, &answer),
                    TeamReader::TakeUp { ticket } => {
                        self.team_looked_up(process, team, ticket, &answer);
                    }
                    TeamReader::Host(order) => self.team_read_to_host(process, order, &answer),
                };
            }
            RegistryRequest::MarkDead { team, which } => {
                return self.marked_dead(process, team, which, &answer);
            }
            RegistryRequest::CreateTeam { team } => {
                return self.team_created(process, team, &answer);
            }
            RegistryRequest::MoveLead { order } => {
                return self.lead_moved(process, order, &answer);
            }
            RegistryRequest::CreateMember { order, .. } => {
                return self.member_created(process, order, &answer);
            }
            RegistryRequest::Open => {
                self.processes[process].notes.is_opening = false;
                return match answer {
                    RegistryAnswer::Opened(created) => {
                        let at = self.processes[process].local(created);
                        self.member(process, MembershipInput::RegistryCreated { at });
                    }
                    _ => self.open_registry(process),
                };
            }
            RegistryRequest::Prove { .. }
            | RegistryRequest::WriteOwn { .. }
            | RegistryRequest::ReadNode { .. }
            | RegistryRequest::ReadNodes
            | RegistryRequest::ReadProof { .. }
            | RegistryRequest::DeclareDead { .. } => {}
        }
        if is_missing {
            self.open_registry(process);
        }
        self.member_answered(process, request, answer);
    }

    fn member_answered(
        &mut self,
        process: usize,
        request: RegistryRequest,
        answer: RegistryAnswer,
    ) {
        let of = super::process::node_id;
        let input = match (request, answer) {
            (RegistryRequest::Prove { sent_at, .. }, RegistryAnswer::Done(_)) => {
                let state = &mut self.processes[process];
                state.notes.last_proof = state.world(sent_at);
                MembershipInput::ProofCommitted { sent_at }
            }
            (RegistryRequest::Prove { sent_at, .. }, RegistryAnswer::Refused) => {
                MembershipInput::ProofRefused { sent_at }
            }
            (RegistryRequest::Prove { sent_at, .. }, _) => {
                MembershipInput::ProofUnknown { sent_at }
            }
            (RegistryRequest::WriteOwn { standing, .. }, RegistryAnswer::Done(revision)) => {
                MembershipInput::Written { revision, standing }
            }
            (RegistryRequest::WriteOwn { .. }, _) => MembershipInput::NotWritten,
            (RegistryRequest::ReadNode { process: read }, RegistryAnswer::Node(seen)) => {
                let source = ReadSource::Leader;
                self.known(process, read);
                MembershipInput::Record {
                    node: of(read),
                    seen,
                    source,
                }
            }
            (
                RegistryRequest::ReadProof {
                    process: peer,
                    asked_at,
                },
                RegistryAnswer::Proof(proof),
            ) => MembershipInput::Proof {
                node: of(peer),
                asked_at,
                proof,
            },
            (RegistryRequest::ReadNodes, RegistryAnswer::Nodes(records)) => {
                for (peer, _) in &records {
                    self.known(process, *peer);
                }
                let records = records.into_iter().map(|(peer, seen)| (of(peer), seen));
                MembershipInput::Records(records.collect())
            }
            (RegistryRequest::DeclareDead { process: peer, .. }, RegistryAnswer::Done(_)) => {
                MembershipInput::DeclaredDead { node: of(peer) }
            }
            (RegistryRequest::DeclareDead { process: peer, .. }, _) => {
                MembershipInput::NotDeclaredDead { node: of(peer) }
            }
            // The machine asks again for what is not answered.
            _ => return,
        };
        self.member(process, input);
    }

    fn known(&mut self, process: usize, peer: usize) {
        let now = self.now;
        self.processes[process]
            .notes
            .heard
            .entry(peer)
            .or_insert(now);
    }

    fn watched(&mut self, process: usize, peer: usize, record: &SimRecord) {
        let newest = self.registry.node(peer).map(|seen| seen.revision);
        let is_outdated = newest > Some(record.revision);
        if is_outdated && self.rng.u32(0..10) < 4 {
            return;
        }
        self.known(process, peer);
        let (node, seen) = (self.processes[peer].id.clone(), record.seen());
        let source = ReadSource::Watch;
        self.member(process, MembershipInput::Record { node, seen, source });
    }

    /// Has every watch show a change of a node's record: late, in order, and not each change.
    pub fn notify(&mut self, peer: usize) {
        for process in 0..self.processes.len() {
            let machine = self.processes[process].machine;
            let is_gone = self.processes[process].state == ProcessState::Gone;
            if !is_gone && self.net.can_write(machine, self.now) {
                let delay = self.latency(machine) + self.rng.u64(0..self.net.watch_lag);
                self.show(process, delay, peer);
            }
        }
    }

    /// A watch begins again: it says to look at all records, and shows what there is.
    pub fn resync_watch(&mut self, process: usize) {
        self.request(process, RegistryRequest::ReadNodes);
        for (peer, _) in self.registry.nodes() {
            let delay = 10 + self.rng.u64(0..self.net.watch_lag);
            self.show(process, delay, peer);
        }
    }

    fn show(&mut self, process: usize, delay: u64, peer: usize) {
        let key = super::registry::SimKey::Node(peer);
        let Some(record) = self.registry.get(key).cloned() else {
            return;
        };
        let at = (self.now + delay).max(self.processes[process].notes.watch_at);
        self.processes[process].notes.watch_at = at;
        let event = ProcessEvent::Watched { peer, record };
        self.at(at, WorldEvent::Process { process, event });
    }
}
