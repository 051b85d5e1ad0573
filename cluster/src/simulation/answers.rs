//! Delivers to a simulated node what the registry sends: answers to the node's requests, and
//! changes of the nodes' records.

use super::{
    process::{ProcessEvent, ProcessState, RegistryAnswer, RegistryRequest, TeamReader},
    registry::SimRecord,
    world::{SimWorld, WorldEvent},
};
use crate::membership::{MembershipInput, ReadSource};

impl SimWorld {
    pub fn open_registry(&mut self, process: usize) {
        let notes = &mut self.processes[process].notes;
        if !std::mem::replace(&mut notes.is_opening, true) {
            self.request(process, RegistryRequest::Open);
        }
    }

    pub fn answered(&mut self, process: usize, request: RegistryRequest, answer: RegistryAnswer) {
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
            // The state machine repeats a request that is not answered.
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

    pub fn watched(&mut self, process: usize, peer: usize, record: &SimRecord) {
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

    /// Schedules the report of a changed node record on every watch, with a delay but in order. The
    /// watches of nodes that do not reach the registry miss it.
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

    /// Restarts a watch. Requests a read of all records, and schedules a report of each current
    /// record.
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
