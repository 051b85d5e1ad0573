//! Carries requests to the registry and to SQL. A request may be delayed, lost or held back by a
//! client, and its answer may be lost.

use planck_common::registry::{Key, NodeRecord, NodeStanding, TeamStanding};

use super::{
    process::{ProcessEvent, ProcessState, RegistryAnswer, RegistryRequest, SqlCaller},
    registry::{SimKey, SimTeam, SimValue, TeamKey, nonce},
    sql::{SqlReply, SqlStatement},
    world::{DEADLINE, SimWorld, WorldEvent},
};
use crate::{
    membership::Revision,
    registry::{DeathOf, NodeDeath, TeamDeathStep, placeholder_record},
};

/// How long reading a proof takes, in milliseconds.
const PROOF_READ: u64 = 2;

impl SimWorld {
    pub fn request(&mut self, process: usize, request: RegistryRequest) {
        let machine = self.processes[process].machine;
        if self.net.can_write(machine, self.now) {
            let delay = self.latency(machine);
            let request = Box::new(request);
            self.after(
                delay,
                WorldEvent::Registry {
                    process,
                    request,
                    is_awaited: true,
                },
            );
        } else {
            self.miss(process, Box::new(request), true);
        }
    }

    /// Reads a peer's proof. Gives no answer if the machine does not reach the registry.
    pub fn read_proof(&mut self, process: usize, request: RegistryRequest) {
        let machine = self.processes[process].machine;
        if self.net.can_write(machine, self.now) {
            let answer = self.execute(process, &request);
            let request = Box::new(request);
            self.tell(
                process,
                PROOF_READ,
                ProcessEvent::Answer { request, answer },
            );
        }
    }

    /// Handles a request that does not reach the registry. The client may still send it later.
    fn miss(&mut self, process: usize, request: Box<RegistryRequest>, is_awaited: bool) {
        if self.rng.bool() {
            self.late.push((process, request.clone()));
        }
        if is_awaited {
            let answer = RegistryAnswer::Unknown;
            self.tell(process, DEADLINE, ProcessEvent::Answer { request, answer });
        }
    }

    pub fn reach_registry(
        &mut self,
        process: usize,
        request: Box<RegistryRequest>,
        is_awaited: bool,
    ) {
        let machine = self.processes[process].machine;
        if !self.net.can_write(machine, self.now) {
            return self.miss(process, request, is_awaited);
        }
        let answer = self.execute(process, &request);
        if !is_awaited {
            return;
        }
        let (delay, answer) = if self.loses_answer() {
            (DEADLINE, RegistryAnswer::Unknown)
        } else {
            (self.latency(machine), answer)
        };
        self.tell(process, delay, ProcessEvent::Answer { request, answer });
    }

    /// Sends the requests and heartbeats that clients held back, if the clients are connected
    /// again.
    pub fn send_late(&mut self) {
        for (process, request) in std::mem::take(&mut self.late) {
            let (machine, state) = self.sender(process);
            if state == ProcessState::Running && self.net.can_write(machine, self.now) {
                let delay = self.latency(machine);
                self.after(
                    delay,
                    WorldEvent::Registry {
                        process,
                        request,
                        is_awaited: false,
                    },
                );
            } else if state != ProcessState::Gone {
                self.late.push((process, request));
            }
        }
        for (process, seq) in std::mem::take(&mut self.late_beats) {
            let (machine, state) = self.sender(process);
            if state == ProcessState::Running && self.net.is_connected(machine, self.now) {
                self.beat(process, seq);
            } else if state != ProcessState::Gone {
                self.late_beats.push((process, seq));
            }
        }
    }

    fn sender(&self, process: usize) -> (usize, ProcessState) {
        let process = &self.processes[process];
        (process.machine, process.state)
    }

    fn execute(&mut self, process: usize, request: &RegistryRequest) -> RegistryAnswer {
        if self.registry.created.is_none() && !matches!(request, RegistryRequest::Open) {
            return RegistryAnswer::Missing;
        }
        match request {
            RegistryRequest::Open => {
                let now = self.now;
                RegistryAnswer::Opened(*self.registry.created.get_or_insert(now))
            }
            RegistryRequest::Prove { expects, .. } => {
                let accepted = self.registry.revision(SimKey::Node(process)) == Some(*expects);
                if !accepted {
                    return RegistryAnswer::Refused;
                }
                self.registry.prove(process);
                RegistryAnswer::Done(0)
            }
            RegistryRequest::WriteOwn { standing, expects } => {
                let value = SimValue::Node {
                    standing: *standing,
                    by: process,
                    silent: None,
                };
                let answer = self.put_if(SimKey::Node(process), *expects, value);
                if *standing == NodeStanding::Left && matches!(answer, RegistryAnswer::Done(_)) {
                    self.checks.node_left(process);
                }
                answer
            }
            RegistryRequest::ReadNode { process } => {
                RegistryAnswer::Node(self.registry.node(*process))
            }
            RegistryRequest::ReadNodes => RegistryAnswer::Nodes(self.registry.nodes()),
            RegistryRequest::ReadProof { process, .. } => {
                RegistryAnswer::Proof(self.registry.proof(*process))
            }
            RegistryRequest::DeclareDead {
                process: suspect,
                expects,
                own,
                silent,
                decided,
            } => {
                let silent = SimValue::Node {
                    standing: NodeStanding::Dead,
                    by: process,
                    silent: Some(*silent),
                };
                self.declare_dead((process, *own), (*suspect, *expects), silent, *decided)
            }
            RegistryRequest::ReadTeam { team, .. } => {
                RegistryAnswer::Team(self.registry.team(*team))
            }
            RegistryRequest::MarkDead { team, which } => self.mark_dead(process, *team, *which),
            RegistryRequest::CreateTeam { team } => self.create_team(process, *team),
            RegistryRequest::MoveLead { order } => self.move_lead(process, order.team()),
            RegistryRequest::CreateMember { order, revision } => {
                self.create_member(process, order.team(), order.agent.1, *revision)
            }
        }
    }

    /// Checks the conditions of the atomic batch that the real registry client builds, and writes
    /// the death if they hold.
    fn declare_dead(
        &mut self,
        (observer, own): (usize, Revision),
        (suspect, expects): (usize, Option<Revision>),
        value: SimValue,
        decided: u64,
    ) -> RegistryAnswer {
        let id = |process: usize| self.processes[process].id.clone();
        let batch = NodeDeath {
            observer: &id(observer),
            own,
            suspect: &id(suspect),
            expects,
            record: &node_record(suspect),
        }
        .batch(expects.unwrap_or_default());
        for write in &batch {
            let holds = match &write.only_if {
                None => true,
                Some(condition) => match Key::parse(&condition.key) {
                    Some(Key::Node(node)) => {
                        let key = SimKey::Node(super::process::number(&node));
                        self.registry.revision(key).unwrap_or_default() == condition.revision
                    }
                    Some(Key::Store | Key::Proof(_) | Key::Team(..) | Key::Member(..)) | None => {
                        true
                    }
                },
            };
            if !holds {
                return RegistryAnswer::Refused;
            }
        }
        let answer = self.put_if(SimKey::Node(suspect), expects, value);
        if matches!(answer, RegistryAnswer::Done(_)) {
            self.declared_dead(observer, suspect, decided);
        }
        answer
    }

    fn put_if(
        &mut self,
        key: SimKey,
        expects: Option<Revision>,
        value: SimValue,
    ) -> RegistryAnswer {
        if self.registry.revision(key) != expects {
            return RegistryAnswer::Refused;
        }
        self.check_finality(key, &value);
        let revision = self.registry.put(self.now, key, value);
        if let SimKey::Node(peer) = key {
            self.notify(peer);
        }
        RegistryAnswer::Done(revision)
    }

    fn mark_dead(&mut self, process: usize, team: TeamKey, which: DeathOf) -> RegistryAnswer {
        let found = self.registry.team(team);
        let stands = found.map(|(revision, team)| (revision, team.standing));
        match which.step(stands) {
            TeamDeathStep::IsDead => RegistryAnswer::Done(0),
            TeamDeathStep::Changed => RegistryAnswer::Refused,
            TeamDeathStep::Write { expects } => {
                if let (DeathOf::RecordAt(_), Some((_, record))) = (which, found) {
                    self.check_team_death(process, team, record.node);
                }
                let dead = SimTeam {
                    standing: TeamStanding::Dead,
                    node: found.map_or(process, |(_, team)| team.node),
                };
                self.put_if(SimKey::Team(team), expects, SimValue::Team(dead))
            }
        }
    }

    /// Creates a team's record. Succeeds also if there is a living record that names this node.
    fn create_team(&mut self, process: usize, team: TeamKey) -> RegistryAnswer {
        match self.registry.team(team) {
            Some((revision, team))
                if team.node == process && team.standing == TeamStanding::Alive =>
            {
                RegistryAnswer::Done(revision)
            }
            Some(_) => RegistryAnswer::Refused,
            None => self.put_if(SimKey::Team(team), None, SimValue::Team(alive(process))),
        }
    }

    fn move_lead(&mut self, process: usize, team: TeamKey) -> RegistryAnswer {
        match self.registry.team(team) {
            Some((revision, found)) if found.standing == TeamStanding::Alive => self.put_if(
                SimKey::Team(team),
                Some(revision),
                SimValue::Team(alive(process)),
            ),
            Some(_) | None => RegistryAnswer::Refused,
        }
    }

    fn create_member(
        &mut self,
        process: usize,
        team: TeamKey,
        agent: usize,
        expects: Revision,
    ) -> RegistryAnswer {
        if self.registry.revision(SimKey::Team(team)) != Some(expects) {
            return RegistryAnswer::Refused;
        }
        self.check_member(team);
        let key = SimKey::Member(team, agent);
        RegistryAnswer::Done(self.registry.put(self.now, key, SimValue::Member(process)))
    }

    pub fn query(&mut self, process: usize, statement: SqlStatement, caller: SqlCaller) {
        let (statement, caller) = (Box::new(statement), Box::new(caller));
        let machine = self.processes[process].machine;
        if self.net.has_sql(machine) {
            let delay = self.latency(machine);
            self.after(
                delay,
                WorldEvent::Sql {
                    process,
                    statement,
                    caller,
                },
            );
        } else {
            self.miss_sql(process, statement, caller);
        }
    }

    fn miss_sql(&mut self, process: usize, statement: Box<SqlStatement>, caller: Box<SqlCaller>) {
        let reply = SqlReply::Unknown;
        self.tell(
            process,
            DEADLINE,
            ProcessEvent::Sql {
                statement,
                caller,
                reply,
            },
        );
    }

    pub fn reach_sql(
        &mut self,
        process: usize,
        statement: Box<SqlStatement>,
        caller: Box<SqlCaller>,
    ) {
        let machine = self.processes[process].machine;
        if !self.net.has_sql(machine) {
            return self.miss_sql(process, statement, caller);
        }
        self.before_statement(process, &statement);
        self.sql.now = self.now;
        let reply = self.sql.run(&statement);
        self.after_statement(&statement, &reply);
        let (delay, reply) = if self.loses_answer() {
            if matches!(*caller, SqlCaller::Leases) {
                self.processes[process].notes.leases_missed = Some(self.now);
            }
            (DEADLINE, SqlReply::Unknown)
        } else {
            (self.latency(machine), reply)
        };
        self.tell(
            process,
            delay,
            ProcessEvent::Sql {
                statement,
                caller,
                reply,
            },
        );
    }
}

fn alive(node: usize) -> SimTeam {
    SimTeam {
        standing: TeamStanding::Alive,
        node,
    }
}

fn node_record(process: usize) -> NodeRecord {
    NodeRecord {
        nonce: nonce(process),
        ..placeholder_record("", NodeStanding::Dead)
    }
}
