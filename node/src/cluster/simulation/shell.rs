//! What a node's shell does: it hands what happens to the deciders, and performs what they ask for.

use planck_common::registry::{NodeStanding, TeamStanding};

use super::{
    process::{Local, Outcome, State, Write, number},
    registry::{Entry, Key, Team, Value},
    sql::{Reply, Statement},
    work::parts,
    world::{Event, World, life},
};
use crate::cluster::{
    cascade::{self, SeenTeam},
    membership::{Effect, Input, News, Source},
    moment::Moment,
};

/// A node that ended is started again after so long.
const RESTARTS_AFTER: u64 = 1_000;
/// Of so many heartbeats one is lost.
const LOST_BEATS: u32 = 200;

impl World {
    pub fn handle(&mut self, process: usize, local: Local) {
        match local {
            Local::Wake { ticket } => self.wake(process, ticket),
            Local::Heartbeat { from, seq } => {
                let node = self.processes[from].id.clone();
                self.member(process, Input::Heard { node, seq });
            }
            Local::Answer { write, outcome } => self.answered(process, write, outcome),
            Local::Sql { statement, reply } => self.replied(process, statement, reply),
            Local::Watched { key, entry } => self.watched(process, key, entry.as_ref()),
            Local::StopTeam {
                asker,
                session,
                incarnation,
            } => self.stop_team(process, asker, session, incarnation),
            Local::TeamStopped { from, session } => self.team_stopped(process, from, session),
            Local::Host {
                session,
                agent,
                seen,
                incarnation,
                revision,
                tools_from,
            } => {
                if self.may_act(process) {
                    self.request(
                        process,
                        Write::Member {
                            session,
                            agent,
                            seen,
                            incarnation,
                            revision,
                            tools_from,
                        },
                    );
                }
            }
            Local::Agent {
                session,
                agent,
                epoch,
            } => self.step(process, session, agent, epoch),
            Local::Sweep => self.sweep(process),
            Local::Claim {
                session,
                seen,
                incarnation,
                from,
                hosts,
            } => {
                self.begin_claim(process, session, seen, incarnation, from, &hosts);
            }
        }
        self.set_alarm(process);
    }

    pub fn may_act(&self, process: usize) -> bool {
        let process = &self.processes[process];
        process.is_running() && process.membership.may_act(process.local(self.now))
    }

    pub fn local_time(&self, process: usize) -> Moment {
        self.processes[process].local(self.now)
    }

    pub fn member(&mut self, process: usize, input: Input) {
        let now = self.local_time(process);
        for effect in self.processes[process].membership.on(now, input) {
            self.perform(process, effect);
        }
    }

    pub fn cascade(&mut self, process: usize, input: cascade::Input) {
        let now = self.local_time(process);
        for effect in self.processes[process].cascade.on(now, input) {
            self.trace(|| format!("n{process:03} cascade {effect:?}"));
            match effect {
                cascade::Effect::Read { life } => self.request(process, Write::ReadTeam { life }),
                cascade::Effect::MarkDead { life, expects, end } => {
                    self.request(process, Write::MarkDead { life, expects, end });
                }
                cascade::Effect::Reassert { life } => {
                    let (session, incarnation) = parts(&life);
                    self.request(
                        process,
                        Write::CreateTeam {
                            session,
                            incarnation,
                        },
                    );
                }
                cascade::Effect::Stop { life, agents, .. } => {
                    let (session, _) = parts(&life);
                    for agent in agents {
                        self.stop_agent(process, session, number(&agent));
                    }
                }
                cascade::Effect::Purge { life, agent } => {
                    let (session, incarnation) = parts(&life);
                    self.registry
                        .remove(self.now, Key::Member(session, incarnation, number(&agent)));
                }
            }
        }
    }

    fn wake(&mut self, process: usize, ticket: u64) {
        let state = &mut self.processes[process];
        if state.notes.wake_ticket != ticket {
            return;
        }
        state.notes.wake_at = None;
        let now = state.local(self.now);
        let cascade_due = state.cascade.next_wake().is_some_and(|at| at <= now);
        let due =
            |claim: &crate::cluster::claiming::Claim| claim.next_wake().is_some_and(|at| at <= now);
        let claims: Vec<usize> = state
            .claims
            .iter()
            .filter(|(_, claim)| due(claim))
            .map(|(at, _)| *at)
            .collect();
        self.member(process, Input::Woken);
        if cascade_due {
            self.cascade(process, cascade::Input::Woken);
        }
        for session in claims {
            self.claim(process, session, crate::cluster::claiming::Input::Woken);
        }
    }

    /// One timer for all deciders of a process.
    fn set_alarm(&mut self, process: usize) {
        let state = &mut self.processes[process];
        if state.state == State::Gone {
            return;
        }
        let claims = state.claims.values().filter_map(|claim| claim.next_wake());
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
            self.at(
                at,
                Event::Local {
                    process,
                    local: Local::Wake { ticket },
                },
            );
        }
    }

    fn perform(&mut self, process: usize, effect: Effect) {
        if !matches!(effect, Effect::Beat { .. } | Effect::Prove { .. }) {
            self.trace(|| format!("n{process:03} {effect:?}"));
        }
        match effect {
            Effect::Beat { seq } => self.beat(process, seq),
            Effect::Prove { sent_at, expects } => {
                self.request(process, Write::Prove { sent_at, expects })
            }
            Effect::Write { standing, expects } => {
                self.request(process, Write::Own { standing, expects })
            }
            Effect::Read { node } => self.request(
                process,
                Write::ReadNode {
                    process: number(&node),
                },
            ),
            Effect::ReadProof { node, asked_at } => {
                self.read_proof(process, number(&node), asked_at)
            }
            Effect::ReadAll => self.request(process, Write::ReadNodes),
            Effect::Convict {
                node,
                expects,
                own,
                silent,
            } => {
                let decided = self.now;
                self.request(
                    process,
                    Write::Convict {
                        process: number(&node),
                        expects,
                        own,
                        silent,
                        decided,
                    },
                );
            }
            Effect::CheckLeases { asked_at } => {
                let asked_at = asked_at.as_millis();
                self.query(
                    process,
                    Statement::OwnLeases {
                        asked_at,
                        me: process,
                    },
                );
            }
            Effect::KillTools => self.kill_tools(process),
            Effect::Suspend { .. } => {}
            Effect::Resume => self.processes[process].notes.resumed = self.now,
            Effect::Peer { node, news } => self.news(process, number(&node), news),
            Effect::Exit { .. } => self.exit(process),
        }
    }

    pub fn beat(&mut self, process: usize, seq: u64) {
        let from = self.processes[process].machine;
        if !self.net.connected(from, self.now) {
            if self.rng.bool() {
                self.late_beats.push((process, seq));
            }
            return;
        }
        for peer in 0..self.processes.len() {
            let to = self.processes[peer].machine;
            let heard =
                self.processes[peer].state != State::Gone && self.net.hears(from, to, self.now);
            if heard && self.rng.u32(0..LOST_BEATS) != 0 {
                let delay = self.latency(from) + self.latency(to);
                self.tell(peer, delay, Local::Heartbeat { from: process, seq });
            }
        }
    }

    fn news(&mut self, process: usize, peer: usize, news: News) {
        match news {
            News::Suspect | News::Back => {}
            News::Left => self.query(process, Statement::Leases),
            News::Died { quiet_since } => {
                let node = self.processes[peer].id.clone();
                self.processes[process]
                    .notes
                    .quiet
                    .insert(peer, quiet_since);
                self.cascade(process, cascade::Input::NodeDied { node });
                self.query(process, Statement::Leases);
            }
        }
    }

    pub fn exit(&mut self, process: usize) {
        self.trace(|| format!("n{process:03} ends"));
        self.processes[process].state = State::Gone;
        let hosted: Vec<(usize, usize)> = self.processes[process].hosted.keys().copied().collect();
        for (session, agent) in hosted {
            self.stop_agent(process, session, agent);
        }
        let machine = self.processes[process].machine;
        self.after(RESTARTS_AFTER, Event::Start { machine });
    }

    fn answered(&mut self, process: usize, write: Write, outcome: Outcome) {
        let of = |process: usize| super::process::node_id(process);
        match (write, outcome) {
            (Write::Prove { sent_at, .. }, Outcome::Done(_)) => {
                self.processes[process].notes.last_proof = self.processes[process].world(sent_at);
                self.member(process, Input::ProofCommitted { sent_at });
            }
            (Write::Prove { sent_at, .. }, Outcome::Refused) => {
                self.member(process, Input::ProofRefused { sent_at })
            }
            (Write::Prove { sent_at, .. }, _) => {
                self.member(process, Input::ProofUnknown { sent_at })
            }
            (Write::Own { standing, .. }, Outcome::Done(revision)) => {
                self.member(process, Input::Written { revision, standing });
            }
            (Write::Own { .. }, _) => self.member(process, Input::NotWritten),
            (Write::ReadNode { process: read }, Outcome::Node(seen)) => {
                self.member(
                    process,
                    Input::Record {
                        node: of(read),
                        seen,
                        source: Source::Leader,
                    },
                );
            }
            (
                Write::ReadProof {
                    process: peer,
                    asked_at,
                },
                Outcome::Proof(proof),
            ) => {
                self.member(
                    process,
                    Input::Proof {
                        node: of(peer),
                        asked_at,
                        proof,
                    },
                );
            }
            (Write::ReadNodes, Outcome::Nodes(records, created)) => {
                let at = self.processes[process].local(created);
                self.member(process, Input::RegistryCreated { at });
                let records = records
                    .into_iter()
                    .map(|(process, seen)| (of(process), seen))
                    .collect();
                self.member(process, Input::Records(records));
            }
            (
                Write::Convict {
                    process: convict, ..
                },
                Outcome::Done(_),
            ) => {
                self.member(process, Input::Convicted { node: of(convict) });
            }
            (
                Write::Convict {
                    process: convict, ..
                },
                _,
            ) => self.member(process, Input::NotConvicted { node: of(convict) }),
            (Write::ReadTeam { life }, Outcome::Team(found)) => {
                let (session, incarnation) = parts(&life);
                self.team_read(process, session, incarnation, found);
            }
            (Write::MarkDead { life, .. }, outcome) => {
                let done = matches!(outcome, Outcome::Done(_));
                self.cascade(process, cascade::Input::Marked { life, done });
            }
            (
                Write::CreateTeam {
                    session,
                    incarnation,
                },
                outcome,
            ) => {
                self.team_created(process, session, incarnation, &outcome);
            }
            (Write::Bury { session, .. }, Outcome::Done(_)) => {
                self.claim(process, session, crate::cluster::claiming::Input::Buried);
            }
            (
                Write::Member {
                    session,
                    agent,
                    seen,
                    incarnation,
                    tools_from,
                    ..
                },
                Outcome::Done(_),
            ) => {
                self.processes[process]
                    .notes
                    .births
                    .insert((session, agent), tools_from);
                self.query(
                    process,
                    Statement::ClaimWorker {
                        session,
                        agent,
                        seen,
                        incarnation,
                        me: process,
                    },
                );
            }
            // What was not answered is asked again by whoever asked.
            _ => {}
        }
    }

    fn team_read(
        &mut self,
        process: usize,
        session: usize,
        incarnation: i64,
        found: Option<(u64, Team)>,
    ) {
        let lives = |team: &Team| team.node == process && team.standing == TeamStanding::Alive;
        if let Some((revision, _)) = found.filter(|(_, team)| lives(team)) {
            self.processes[process]
                .teams
                .insert((session, incarnation), revision);
        }
        let quiet = &self.processes[process].notes.quiet;
        let seen = found.map(|(revision, team)| SeenTeam {
            revision,
            standing: team.standing,
            reason: team.end,
            node: self.processes[team.node].id.clone(),
            node_died: quiet.contains_key(&team.node),
        });
        self.cascade(
            process,
            cascade::Input::Read {
                life: life(session, incarnation),
                seen,
            },
        );
    }

    fn replied(&mut self, process: usize, statement: Statement, reply: Reply) {
        use crate::cluster::claiming::{Input as Claiming, Lease};
        match (statement, reply) {
            (Statement::Append { session, row, .. }, reply) => {
                self.appended(process, session, row, &reply)
            }
            (Statement::ClaimLead { session, .. }, Reply::Claimed { .. }) => {
                self.claim(process, session, Claiming::LeaseTaken)
            }
            (Statement::ClaimLead { session, .. }, Reply::Refused) => {
                self.claim(process, session, Claiming::LeaseRefused)
            }
            (
                Statement::ReadLead { session },
                Reply::Lead {
                    node,
                    epoch,
                    incarnation,
                },
            ) => {
                let node = node.map(|node| self.processes[node].id.clone());
                self.claim(
                    process,
                    session,
                    Claiming::LeaseRead(Lease {
                        node,
                        epoch,
                        incarnation,
                    }),
                );
            }
            (
                Statement::ClaimWorker {
                    session,
                    agent,
                    incarnation,
                    ..
                },
                reply,
            ) => {
                let tools_from = self.processes[process]
                    .notes
                    .births
                    .remove(&(session, agent))
                    .unwrap_or_default();
                if let Reply::Claimed {
                    epoch,
                    last_seq,
                    open_call,
                } = reply
                {
                    self.start_agent(
                        process,
                        (session, agent),
                        incarnation,
                        (epoch, last_seq, open_call),
                        tools_from,
                    );
                }
            }
            (Statement::Leases, Reply::Leases(rows)) => self.look_at_leases(process, &rows),
            (Statement::OwnLeases { asked_at, .. }, Reply::Leases(rows)) => {
                self.drop_what_was_raised(process, &rows);
                self.member(
                    process,
                    Input::LeasesChecked {
                        asked_at: Moment::from_millis(asked_at),
                    },
                );
            }
            _ => {}
        }
    }

    fn watched(&mut self, process: usize, key: Key, entry: Option<&Entry>) {
        let outdated = self.registry.revision(key) > entry.map(|entry| entry.revision);
        if outdated && self.rng.u32(0..10) < 4 {
            return;
        }
        let source = if self.flaws.trust_watch {
            Source::Leader
        } else {
            Source::Watch
        };
        match (key, entry.map(|entry| &entry.value)) {
            (Key::Node(peer), value) => {
                let alive =
                    matches!(value, Some(Value::Node { standing, .. }) if !standing.is_final());
                self.processes[process].notes.watched.insert(peer, alive);
                let (node, seen) = (self.processes[peer].id.clone(), entry.and_then(Entry::seen));
                if seen.is_some() || self.flaws.trust_watch {
                    self.member(process, Input::Record { node, seen, source });
                }
            }
            (Key::Team(session, incarnation), Some(Value::Team(team))) => {
                let end = team
                    .end
                    .unwrap_or(planck_common::registry::TeamEnd::NodeDead);
                let over = if team.standing == TeamStanding::Dead {
                    incarnation
                } else {
                    incarnation - 1
                };
                self.cascade(
                    process,
                    cascade::Input::Over {
                        life: life(session, over),
                        end,
                    },
                );
            }
            _ => {}
        }
    }

    fn sweep(&mut self, process: usize) {
        self.request(process, Write::ReadNodes);
        self.cascade(process, cascade::Input::Sweep);
        self.query(process, Statement::Leases);
        let next = self.rng.u64(8_000..12_000);
        self.tell(process, next, Local::Sweep);
    }

    /// Whether a node's leases may be claimed.
    pub fn is_gone(&self, process: usize, peer: usize) -> bool {
        let state = &self.processes[process];
        if self.flaws.trust_watch {
            return !state.notes.watched.get(&peer).copied().unwrap_or(false);
        }
        state.membership.is_gone(&self.processes[peer].id)
    }

    /// Tells every watch of a change: late, in order, and not of all that was in between.
    pub fn notify(&mut self, key: Key) {
        for process in 0..self.processes.len() {
            let machine = self.processes[process].machine;
            if self.processes[process].state == State::Gone
                || !self.net.can_write(machine, self.now)
            {
                continue;
            }
            let entry = self.registry.get(key).cloned();
            let delay = self.latency(machine) + self.rng.u64(0..self.net.watch_lag);
            self.show(process, delay, key, entry);
        }
    }

    /// A watch begins anew with what there is.
    pub fn resync_watch(&mut self, process: usize) {
        let shown = self
            .registry
            .keys()
            .into_iter()
            .filter(|key| !matches!(key, Key::Member(..)));
        for key in shown.collect::<Vec<_>>() {
            let entry = self.registry.get(key).cloned();
            let delay = 10 + self.rng.u64(0..self.net.watch_lag);
            self.show(process, delay, key, entry);
        }
    }

    fn show(&mut self, process: usize, delay: u64, key: Key, entry: Option<Entry>) {
        let at = (self.now + delay).max(self.processes[process].notes.watch_at);
        self.processes[process].notes.watch_at = at;
        self.at(
            at,
            Event::Local {
                process,
                local: Local::Watched { key, entry },
            },
        );
    }

    pub fn is_final(&self, process: usize) -> bool {
        self.registry
            .node(process)
            .is_some_and(|seen| seen.standing == NodeStanding::Dead)
    }
}
