//! The sessions' work: leads and members that begin and end tool calls, wherever they are claimed
//! and placed.

use std::collections::BTreeSet;

use planck_common::AgentId;

use super::{
    process::{Hosted, Local, Outcome, Stage, Write, number},
    sql::{Call, Kind, LeaseRow, Reply, Row, Statement},
    world::{World, life, session_id},
};
use crate::cluster::{
    cascade::{self, Life},
    claiming::{self, Claim, Lease, Plan, Policy},
    membership::Input,
};

const TOOL_GRACE: u64 = 4_500;
/// After so long a member that was asked for and did not come is asked for again.
const PLACE_AGAIN_AFTER: u64 = 3_000;

pub fn parts(life: &Life) -> (usize, i64) {
    (number(&life.team), life.incarnation)
}

fn agent_id(agent: usize) -> AgentId {
    AgentId::parse(&format!("a{agent}")).unwrap()
}

impl World {
    /// Each session comes to some node as a prompt would.
    pub fn begin_sessions(&mut self) {
        for session in 0..self.sql.sessions.len() {
            let process = self.rng.usize(0..self.processes.len());
            self.tell(
                process,
                0,
                Local::Claim {
                    session,
                    seen: 0,
                    incarnation: 0,
                    from: None,
                    hosts: Vec::new(),
                },
            );
        }
    }

    /// What all leases say: whom to claim from, whose members to place, and what was claimed and
    /// not begun.
    pub fn look_at_leases(&mut self, process: usize, rows: &[(usize, usize, LeaseRow, i64)]) {
        for &(session, agent, row, incarnation) in rows {
            if let Some(node) = row.node.filter(|node| *node != process) {
                let node = self.processes[node].id.clone();
                self.member(process, Input::Leaseholder { node });
            }
            if agent == 0 {
                self.consider_claim(process, session, row, incarnation, rows);
            } else {
                self.consider_placing(process, session, agent, row, incarnation);
            }
        }
    }

    fn consider_claim(
        &mut self,
        process: usize,
        session: usize,
        row: LeaseRow,
        incarnation: i64,
        rows: &[(usize, usize, LeaseRow, i64)],
    ) {
        let unheld = match row.node {
            None => row.epoch > 0 || self.now > 6_000,
            Some(node) if node == process => {
                !self.processes[process].hosted.contains_key(&(session, 0))
            }
            Some(node) => self.is_gone(process, node),
        };
        if !unheld || self.processes[process].claims.contains_key(&session) {
            return;
        }
        let workers = rows
            .iter()
            .filter(|(other, agent, ..)| *other == session && *agent > 0);
        let hosts: BTreeSet<usize> = workers
            .filter_map(|(_, _, row, _)| row.node)
            .filter(|node| *node != process)
            .collect();
        let hosts = hosts
            .into_iter()
            .filter(|node| !self.is_gone(process, *node))
            .collect();
        let state = &self.processes[process];
        let turn = claiming::turn(&session_id(session), &state.id, state.membership.audible());
        let delay = u64::try_from(turn.as_millis()).unwrap();
        self.tell(
            process,
            delay,
            Local::Claim {
                session,
                seen: row.epoch,
                incarnation,
                from: row.node,
                hosts,
            },
        );
    }

    pub fn begin_claim(
        &mut self,
        process: usize,
        session: usize,
        epoch: i64,
        incarnation: i64,
        from: Option<usize>,
        hosts: &[usize],
    ) {
        let now = self.local_time(process);
        if !self.may_act(process) || self.processes[process].claims.contains_key(&session) {
            return;
        }
        let state = &self.processes[process];
        let quiet = from.map(|from| {
            state
                .notes
                .quiet
                .get(&from)
                .map_or(self.now, |quiet| state.world(*quiet))
        });
        let awaits = !self.flaws.no_stop;
        let tools_from = quiet.map_or(self.now, |quiet| quiet + TOOL_GRACE);
        let id = |node: &usize| self.processes[*node].id.clone();
        let plan = Plan {
            me: state.id.clone(),
            seen: Lease {
                node: from.as_ref().map(id),
                epoch,
                incarnation,
            },
            hosts: hosts.iter().filter(|_| awaits).map(id).collect(),
            policy: Policy::Resume,
            tools_from: state.local(tools_from),
            grace: std::time::Duration::from_millis(TOOL_GRACE),
        };
        let (claim, effects) = Claim::begin(plan, now);
        self.processes[process].claims.insert(session, claim);
        self.perform_claim(process, session, effects);
    }

    pub fn claim(&mut self, process: usize, session: usize, input: claiming::Input) {
        let now = self.local_time(process);
        let Some(claim) = self.processes[process].claims.get_mut(&session) else {
            return;
        };
        let effects = claim.on(now, input);
        self.perform_claim(process, session, effects);
    }

    fn perform_claim(&mut self, process: usize, session: usize, effects: Vec<claiming::Effect>) {
        for effect in effects {
            self.trace(|| format!("n{process:03} claiming s{session} {effect:?}"));
            match effect {
                claiming::Effect::TakeLease { seen } => {
                    self.query(
                        process,
                        Statement::ClaimLead {
                            session,
                            seen,
                            me: process,
                        },
                    );
                }
                claiming::Effect::ReadLease => self.query(process, Statement::ReadLead { session }),
                claiming::Effect::StopTeam { node, incarnation } => {
                    self.send_stop(process, number(&node), session, incarnation);
                }
                claiming::Effect::Bury { incarnation } => {
                    let over = cascade::Input::Over {
                        life: life(session, incarnation),
                        end: planck_common::registry::TeamEnd::NodeDead,
                    };
                    self.cascade(process, over);
                    self.request(
                        process,
                        Write::Bury {
                            session,
                            incarnation,
                        },
                    );
                }
                claiming::Effect::CreateTeam { incarnation } => {
                    self.request(
                        process,
                        Write::CreateTeam {
                            session,
                            incarnation,
                        },
                    );
                }
                claiming::Effect::Start {
                    epoch,
                    incarnation,
                    tools_from,
                } => {
                    self.processes[process].claims.remove(&session);
                    let tools_from = if self.flaws.no_stop {
                        self.now
                    } else {
                        self.processes[process].world(tools_from)
                    };
                    self.start_lead(process, session, epoch, incarnation, tools_from);
                }
                claiming::Effect::Close { epoch, .. } => {
                    self.processes[process].claims.remove(&session);
                    self.query(process, Statement::Close { session, epoch });
                }
                claiming::Effect::Lost => drop(self.processes[process].claims.remove(&session)),
            }
        }
    }

    fn start_lead(
        &mut self,
        process: usize,
        session: usize,
        epoch: i64,
        incarnation: i64,
        tools_from: u64,
    ) {
        let stored = &self.sql.sessions[session];
        if stored.leases[0].epoch == epoch {
            let lease = (epoch, stored.leases[0].last_seq, stored.open_call(0));
            self.start_agent(process, (session, 0), incarnation, lease, tools_from);
            self.query(process, Statement::Leases);
        }
    }

    fn send_stop(&mut self, process: usize, peer: usize, session: usize, incarnation: i64) {
        let (from, to) = (
            self.processes[process].machine,
            self.processes[peer].machine,
        );
        if self.net.hears(from, to, self.now) {
            let delay = self.latency(from) + self.latency(to);
            self.tell(
                peer,
                delay,
                Local::StopTeam {
                    asker: process,
                    session,
                    incarnation,
                },
            );
        }
    }

    pub fn stop_team(&mut self, process: usize, asker: usize, session: usize, incarnation: i64) {
        let end = planck_common::registry::TeamEnd::NodeDead;
        self.cascade(
            process,
            cascade::Input::Over {
                life: life(session, incarnation),
                end,
            },
        );
        let (from, to) = (
            self.processes[process].machine,
            self.processes[asker].machine,
        );
        if self.net.hears(from, to, self.now) {
            let delay = self.stopping_takes(process) + self.latency(from) + self.latency(to);
            self.tell(
                asker,
                delay,
                Local::TeamStopped {
                    from: process,
                    session,
                },
            );
        }
    }

    pub fn team_stopped(&mut self, process: usize, from: usize, session: usize) {
        let node = self.processes[from].id.clone();
        self.claim(process, session, claiming::Input::Stopped { node });
    }

    pub fn team_created(
        &mut self,
        process: usize,
        session: usize,
        incarnation: i64,
        outcome: &Outcome,
    ) {
        match outcome {
            Outcome::Done(revision) => {
                self.processes[process]
                    .teams
                    .insert((session, incarnation), *revision);
                self.claim(process, session, claiming::Input::TeamCreated);
            }
            Outcome::Refused => self.claim(process, session, claiming::Input::TeamTaken),
            Outcome::Node(_)
            | Outcome::Nodes(..)
            | Outcome::Proof(_)
            | Outcome::Team(_)
            | Outcome::Unknown => {}
        }
    }

    /// The lead's node starts the members that do not run in this life of the team yet, and those
    /// whose node died.
    fn consider_placing(
        &mut self,
        process: usize,
        session: usize,
        agent: usize,
        row: LeaseRow,
        incarnation: i64,
    ) {
        let state = &self.processes[process];
        let abandoned = row.node == Some(process)
            && !state.hosted.contains_key(&(session, agent))
            && !state.notes.births.contains_key(&(session, agent));
        if abandoned {
            return self.query(
                process,
                Statement::Release {
                    session,
                    agent,
                    epoch: row.epoch,
                },
            );
        }
        let Some(lead) = state
            .hosted
            .get(&(session, 0))
            .filter(|lead| lead.incarnation == incarnation)
        else {
            return;
        };
        let Some(revision) = state.teams.get(&(session, incarnation)).copied() else {
            return;
        };
        let asked = state.notes.placed.get(&(session, incarnation, agent));
        let runs = asked.is_some_and(|(seen, _)| row.epoch > *seen)
            && row.node.is_some_and(|node| !self.is_gone(process, node));
        let waits =
            asked.is_some_and(|(seen, at)| row.epoch == *seen && self.now < at + PLACE_AGAIN_AFTER);
        if runs || waits || !self.may_act(process) {
            return;
        }
        let died_late = row
            .node
            .and_then(|node| state.notes.quiet.get(&node))
            .map(|quiet| state.world(*quiet) + TOOL_GRACE);
        let tools_from = lead.tools_from.max(died_late.unwrap_or_default());
        let mut candidates: Vec<usize> = state
            .membership
            .audible()
            .map(|node| number(node))
            .collect();
        candidates.push(process);
        let target = candidates[self.rng.usize(0..candidates.len())];
        let (from, to) = (
            self.processes[process].machine,
            self.processes[target].machine,
        );
        self.processes[process]
            .notes
            .placed
            .insert((session, incarnation, agent), (row.epoch, self.now));
        if self.net.hears(from, to, self.now) {
            let delay = self.latency(from) + self.latency(to);
            self.tell(
                target,
                delay,
                Local::Host {
                    session,
                    agent,
                    seen: row.epoch,
                    incarnation,
                    revision,
                    tools_from,
                },
            );
        }
    }

    pub fn start_agent(
        &mut self,
        process: usize,
        who: (usize, usize),
        incarnation: i64,
        lease: (i64, usize, Option<Call>),
        tools_from: u64,
    ) {
        let (session, agent) = who;
        let (epoch, last_seq, open_call) = lease;
        self.stop_agent(process, session, agent);
        self.trace(|| {
            format!(
                "n{process:03} starts a{agent} of s{session} in life {incarnation}, epoch {epoch}"
            )
        });
        let stage = open_call.map_or(Stage::Thinking, Stage::Interrupting);
        let hosted = Hosted {
            incarnation,
            epoch,
            last_seq,
            stage,
            tools_from,
        };
        self.processes[process].hosted.insert(who, hosted);
        let up = cascade::Input::Up {
            life: life(session, incarnation),
            agent: agent_id(agent),
            lead: agent == 0,
        };
        self.cascade(process, up);
        self.step_after(process, who, epoch, 50, 500);
    }

    fn step_after(
        &mut self,
        process: usize,
        (session, agent): (usize, usize),
        epoch: i64,
        least: u64,
        most: u64,
    ) {
        let delay = self.rng.u64(least..most);
        self.tell(
            process,
            delay,
            Local::Agent {
                session,
                agent,
                epoch,
            },
        );
    }

    pub fn step(&mut self, process: usize, session: usize, agent: usize, epoch: i64) {
        let who = (session, agent);
        let may_act = self.may_act(process);
        let Some(hosted) = self.processes[process]
            .hosted
            .get_mut(&who)
            .filter(|hosted| hosted.epoch == epoch)
        else {
            return;
        };
        let kind = match hosted.stage {
            Stage::Thinking if !may_act => return self.step_after(process, who, epoch, 250, 350),
            Stage::Thinking if self.now < hosted.tools_from => {
                let wait = hosted.tools_from - self.now;
                return self.step_after(process, who, epoch, wait, wait + 100);
            }
            Stage::Thinking => {
                hosted.stage = Stage::Starting(self.checks.next_call());
                if agent == 0 && self.rng.u32(0..3) == 0 {
                    self.query(process, Statement::Leases);
                }
                Kind::ToolStart
            }
            Stage::Starting(_) => Kind::ToolStart,
            Stage::Running(call) => {
                self.checks.tool_ended(call, self.now);
                hosted.stage = Stage::Ending(call);
                Kind::ToolEnd
            }
            Stage::Ending(_) => Kind::ToolEnd,
            Stage::Interrupting(_) => Kind::Interrupted,
        };
        self.append(process, who, kind);
    }

    fn append(&mut self, process: usize, (session, agent): (usize, usize), kind: Kind) {
        let hosted = &self.processes[process].hosted[&(session, agent)];
        let call = match hosted.stage {
            Stage::Starting(call)
            | Stage::Running(call)
            | Stage::Ending(call)
            | Stage::Interrupting(call) => call,
            Stage::Thinking => return,
        };
        let (row, prev) = (
            Row {
                agent,
                epoch: hosted.epoch,
                kind,
                call,
            },
            hosted.last_seq,
        );
        self.query(process, Statement::Append { session, row, prev });
    }

    pub fn appended(&mut self, process: usize, session: usize, row: Row, reply: &Reply) {
        let who = (session, row.agent);
        let may_act = self.may_act(process);
        let Some(hosted) = self.processes[process]
            .hosted
            .get_mut(&who)
            .filter(|hosted| hosted.epoch == row.epoch)
        else {
            return;
        };
        match reply {
            Reply::Appended { seq } => hosted.last_seq = *seq,
            Reply::Unknown => return self.step_after(process, who, row.epoch, 50, 200),
            Reply::Stale
            | Reply::Claimed { .. }
            | Reply::Refused
            | Reply::Lead { .. }
            | Reply::Leases(_)
            | Reply::Done => {
                self.trace(|| format!("n{process:03} lost a{} of s{session}", row.agent));
                return self.leave_agent(process, session, row.agent);
            }
        }
        match hosted.stage {
            Stage::Starting(call) if may_act => {
                hosted.stage = Stage::Running(call);
                let incarnation = hosted.incarnation;
                self.start_tool(process, session, row, incarnation);
                self.step_after(process, who, row.epoch, 300, 3_000);
            }
            Stage::Starting(call) => {
                hosted.stage = Stage::Ending(call);
                self.step_after(process, who, row.epoch, 50, 100);
            }
            Stage::Ending(_) | Stage::Interrupting(_) => {
                hosted.stage = Stage::Thinking;
                self.step_after(process, who, row.epoch, 500, 4_000);
            }
            Stage::Thinking | Stage::Running(_) => {}
        }
    }

    /// Somebody else has its lease.
    fn leave_agent(&mut self, process: usize, session: usize, agent: usize) {
        let Some(hosted) = self.processes[process].hosted.get(&(session, agent)) else {
            return;
        };
        let life = life(session, hosted.incarnation);
        self.stop_agent(process, session, agent);
        self.cascade(
            process,
            cascade::Input::Down {
                life,
                agent: agent_id(agent),
            },
        );
    }

    pub fn drop_what_was_raised(&mut self, process: usize, rows: &[(usize, usize, LeaseRow, i64)]) {
        let hosted = self.processes[process].hosted.iter();
        let is_mine = |session: usize, agent: usize, epoch: i64| {
            rows.iter()
                .any(|row| (row.0, row.1) == (session, agent) && row.2.epoch == epoch)
        };
        let raised: Vec<(usize, usize)> = hosted
            .filter(|((session, agent), hosted)| !is_mine(*session, *agent, hosted.epoch))
            .map(|(who, _)| *who)
            .collect();
        for (session, agent) in raised {
            self.leave_agent(process, session, agent);
        }
    }

    pub fn stop_agent(&mut self, process: usize, session: usize, agent: usize) {
        if self.processes[process]
            .hosted
            .remove(&(session, agent))
            .is_some()
        {
            let at = self.now + self.stopping_takes(process);
            self.checks.tools_end(process, Some((session, agent)), at);
        }
    }

    pub fn kill_tools(&mut self, process: usize) {
        let at = self.now + self.stopping_takes(process);
        self.checks.tools_end(process, None, at);
    }

    fn stopping_takes(&mut self, process: usize) -> u64 {
        let slow = self.net.slow(self.processes[process].machine);
        self.rng.u64(20..100) + slow
    }
}
