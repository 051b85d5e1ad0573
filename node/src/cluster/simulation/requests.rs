//! Requests to the registry and to SQL on their way: late, lost, queued in a client, or with a lost
//! answer.

use planck_common::registry::{NodeStanding, TeamStanding};

use super::{
    process::{Local, Outcome, State, Write},
    registry::{Key, Team, Value},
    sql::{Reply, Statement},
    work::parts,
    world::{DEADLINE, Event, World},
};
use crate::cluster::moment::Moment;

/// How long reading a proof takes.
const PROOF_READ: u64 = 2;

impl World {
    pub fn request(&mut self, process: usize, write: Write) {
        let machine = self.processes[process].machine;
        if self.net.can_write(machine, self.now) {
            let delay = self.latency(machine);
            self.after(
                delay,
                Event::Registry {
                    process,
                    write,
                    awaited: true,
                },
            );
        } else {
            self.miss(process, write, true);
        }
    }

    /// Reads a peer's proof, or gets no answer. It draws no random numbers, so that seeds play what
    /// they played before nodes looked at proofs.
    pub fn read_proof(&mut self, process: usize, peer: usize, asked_at: Moment) {
        let machine = self.processes[process].machine;
        if self.net.can_write(machine, self.now) {
            let write = Write::ReadProof {
                process: peer,
                asked_at,
            };
            let outcome = self.execute(process, &write);
            self.tell(process, PROOF_READ, Local::Answer { write, outcome });
        }
    }

    /// The registry was not there; the client may still send the request when it is.
    fn miss(&mut self, process: usize, write: Write, awaited: bool) {
        if self.rng.bool() {
            self.late.push((process, write.clone()));
        }
        if awaited {
            self.tell(
                process,
                DEADLINE,
                Local::Answer {
                    write,
                    outcome: Outcome::Unknown,
                },
            );
        }
    }

    pub fn reach_registry(&mut self, process: usize, write: Write, awaited: bool) {
        let machine = self.processes[process].machine;
        if !self.net.can_write(machine, self.now) {
            return self.miss(process, write, awaited);
        }
        let outcome = self.execute(process, &write);
        if !awaited {
            return;
        }
        let (delay, outcome) = if self.loses_answer() {
            (DEADLINE, Outcome::Unknown)
        } else {
            (self.latency(machine), outcome)
        };
        self.tell(process, delay, Local::Answer { write, outcome });
    }

    /// Clients that are connected again send what they had queued.
    pub fn send_late(&mut self) {
        for (process, write) in std::mem::take(&mut self.late) {
            let Sender { machine, state } = self.sender(process);
            if state == State::Running && self.net.can_write(machine, self.now) {
                let delay = self.latency(machine);
                self.after(
                    delay,
                    Event::Registry {
                        process,
                        write,
                        awaited: false,
                    },
                );
            } else if state != State::Gone {
                self.late.push((process, write));
            }
        }
        for (process, seq) in std::mem::take(&mut self.late_beats) {
            let Sender { machine, state } = self.sender(process);
            if state == State::Running && self.net.connected(machine, self.now) {
                self.beat(process, seq);
            } else if state != State::Gone {
                self.late_beats.push((process, seq));
            }
        }
    }

    fn sender(&self, process: usize) -> Sender {
        let process = &self.processes[process];
        Sender {
            machine: process.machine,
            state: process.state,
        }
    }

    fn execute(&mut self, process: usize, write: &Write) -> Outcome {
        match write {
            Write::Prove { expects, .. } => {
                let accepted = self.registry.revision(Key::Node(process)) == Some(*expects);
                if accepted {
                    self.registry.prove(process);
                }
                done(accepted)
            }
            Write::ReadProof { process, .. } => Outcome::Proof(self.registry.proof(*process)),
            Write::Own { standing, expects } => {
                let value = Value::Node {
                    standing: *standing,
                    by: process,
                    silent: None,
                };
                self.put_if(Key::Node(process), *expects, value)
            }
            Write::ReadNode { process } => Outcome::Node(self.registry.node(*process)),
            Write::ReadNodes => Outcome::Nodes(self.registry.nodes(), self.registry.created),
            Write::Convict {
                process: convict,
                expects,
                own,
                silent,
                decided,
            } => {
                let proven = self.registry.revision(Key::Node(process)) == Some(*own);
                if !proven && !self.flaws.no_batch {
                    return Outcome::Refused;
                }
                let value = Value::Node {
                    standing: NodeStanding::Dead,
                    by: process,
                    silent: Some(*silent),
                };
                let outcome = self.put_if(Key::Node(*convict), *expects, value);
                if matches!(outcome, Outcome::Done(_)) {
                    self.convicted(process, *convict, *decided);
                }
                outcome
            }
            Write::ReadTeam { life } => {
                let (session, incarnation) = parts(life);
                Outcome::Team(self.registry.team(session, incarnation))
            }
            Write::MarkDead { life, expects, end } => {
                let (session, incarnation) = parts(life);
                let node = self
                    .registry
                    .team(session, incarnation)
                    .map_or(process, |(_, team)| team.node);
                let dead = Team {
                    standing: TeamStanding::Dead,
                    node,
                    end: Some(*end),
                };
                self.put_if(Key::Team(session, incarnation), *expects, Value::Team(dead))
            }
            Write::CreateTeam {
                session,
                incarnation,
            } => self.create_team(process, *session, *incarnation),
            Write::Bury {
                session,
                incarnation,
            } => self.bury(process, *session, *incarnation),
            Write::Member {
                session,
                agent,
                incarnation,
                revision,
                ..
            } => self.write_member(*session, *agent, *incarnation, *revision),
        }
    }

    fn put_if(&mut self, key: Key, expects: Option<u64>, value: Value) -> Outcome {
        if self.registry.revision(key) != expects {
            return Outcome::Refused;
        }
        self.check_finality(key, &value);
        let revision = self.registry.put(self.now, key, value);
        self.notify(key);
        Outcome::Done(revision)
    }

    /// Created, or found to be one's own.
    fn create_team(&mut self, process: usize, session: usize, incarnation: i64) -> Outcome {
        match self.registry.team(session, incarnation) {
            Some((revision, team))
                if team.node == process && team.standing == TeamStanding::Alive =>
            {
                Outcome::Done(revision)
            }
            Some(_) => Outcome::Refused,
            None => {
                let team = Team {
                    standing: TeamStanding::Alive,
                    node: process,
                    end: None,
                };
                self.put_if(Key::Team(session, incarnation), None, Value::Team(team))
            }
        }
    }

    fn bury(&mut self, process: usize, session: usize, incarnation: i64) -> Outcome {
        let found = self.registry.team(session, incarnation);
        if let Some((
            revision,
            Team {
                standing: TeamStanding::Dead,
                ..
            },
        )) = found
        {
            return Outcome::Done(revision);
        }
        let node = found.map_or(process, |(_, team)| team.node);
        let end = Some(planck_common::registry::TeamEnd::NodeDead);
        let dead = Team {
            standing: TeamStanding::Dead,
            node,
            end,
        };
        self.put_if(
            Key::Team(session, incarnation),
            found.map(|(revision, _)| revision),
            Value::Team(dead),
        )
    }

    fn write_member(
        &mut self,
        session: usize,
        agent: usize,
        incarnation: i64,
        expects: u64,
    ) -> Outcome {
        if self.registry.revision(Key::Team(session, incarnation)) != Some(expects) {
            return Outcome::Refused;
        }
        self.check_birth(session, incarnation);
        Outcome::Done(self.registry.put(
            self.now,
            Key::Member(session, incarnation, agent),
            Value::Member,
        ))
    }

    pub fn query(&mut self, process: usize, statement: Statement) {
        let machine = self.processes[process].machine;
        if self.net.has_sql(machine) {
            let delay = self.latency(machine);
            self.after(delay, Event::Sql { process, statement });
        } else {
            self.tell(
                process,
                DEADLINE,
                Local::Sql {
                    statement,
                    reply: Reply::Unknown,
                },
            );
        }
    }

    pub fn reach_sql(&mut self, process: usize, statement: Statement) {
        let machine = self.processes[process].machine;
        if !self.net.has_sql(machine) {
            return self.tell(
                process,
                DEADLINE,
                Local::Sql {
                    statement,
                    reply: Reply::Unknown,
                },
            );
        }
        self.before_statement(process, &statement);
        let reply = self.sql.run(&statement, !self.flaws.no_fence);
        self.after_statement(&statement, &reply);
        let (delay, reply) = if self.loses_answer() {
            (DEADLINE, Reply::Unknown)
        } else {
            (self.latency(machine), reply)
        };
        self.tell(process, delay, Local::Sql { statement, reply });
    }
}

struct Sender {
    machine: usize,
    state: State,
}

fn done(accepted: bool) -> Outcome {
    if accepted {
        Outcome::Done(0)
    } else {
        Outcome::Refused
    }
}
