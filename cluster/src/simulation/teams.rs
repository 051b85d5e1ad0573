//! The team registry of a simulated node. It performs what the cascade decides, and stops the
//! members that another node asks it to stop, as `team_registry` does.

use planck_common::registry::TeamEnd;

use super::{
    process::{ProcessEvent, RegistryAnswer, RegistryRequest, TeamReader, number},
    registry::{SimKey, SimValue, TeamKey},
    sql::AgentKey,
    world::{SimWorld, agent_id, team},
};
use crate::{
    cascade::{CascadeEffect, CascadeInput, SeenTeam, TeamIncarnation},
    registry::DeathOf,
};

fn key(team: &TeamIncarnation) -> TeamKey {
    (number(&team.team), team.incarnation)
}

impl SimWorld {
    pub fn cascade(&mut self, process: usize, input: CascadeInput) {
        let now = self.local_time(process);
        for effect in self.processes[process].cascade.on(now, input) {
            self.trace(|| format!("n{process:03} cascade {effect:?}"));
            match effect {
                CascadeEffect::ReadTeam { team } => {
                    let (team, reader) = (key(&team), TeamReader::Cascade);
                    self.request(process, RegistryRequest::ReadTeam { team, reader });
                }
                CascadeEffect::MarkDead { team, expects, .. } => {
                    let (team, which) = (key(&team), DeathOf::RecordAt(expects));
                    self.request(process, RegistryRequest::MarkDead { team, which });
                }
                CascadeEffect::RewriteRecords { team } => {
                    let team = key(&team);
                    self.request(process, RegistryRequest::CreateTeam { team });
                }
                CascadeEffect::StopMembers { team, agents, .. } => {
                    self.stop_team(process, &team);
                    for agent in agents {
                        self.remove_member(process, key(&team), number(&agent));
                    }
                    self.request_sweep(process);
                }
                CascadeEffect::RemoveMember { team, agent } => {
                    self.remove_member(process, key(&team), number(&agent));
                }
            }
        }
    }

    pub fn remove_member(&mut self, process: usize, team: TeamKey, agent: usize) {
        let key = SimKey::Member(team, agent);
        let machine = self.processes[process].machine;
        let record = self.registry.get(key).map(|record| &record.value);
        if record == Some(&SimValue::Member(process)) && self.net.can_write(machine, self.now) {
            self.registry.remove(self.now, key);
        }
    }

    /// Stops the agents on this node of an incarnation and of earlier ones. Writes nothing, so this
    /// node keeps their leases.
    fn stop_team(&mut self, process: usize, ended: &TeamIncarnation) {
        let hosted = self.processes[process].hosted.iter();
        let stopped: Vec<AgentKey> = hosted
            .filter(|(agent, hosted)| {
                let of = team((agent.0, hosted.incarnation));
                ended.ends_with_it(&of)
            })
            .map(|(agent, _)| *agent)
            .collect();
        self.processes[process].sweep.may_miss = true;
        for agent in stopped {
            self.check_stopped(process, agent, ended);
            self.drop_agent(process, agent);
        }
    }

    pub fn stop_requested(&mut self, process: usize, asker: usize, ended: TeamKey) {
        self.stop_team(process, &team(ended));
        let session = ended.0;
        let stopped = ProcessEvent::TeamStopped {
            from: process,
            session,
        };
        let (from, to) = (
            self.processes[process].machine,
            self.processes[asker].machine,
        );
        if self.net.reaches(from, to, self.now) {
            let delay = self.stopping_takes(process) + self.latency(from) + self.latency(to);
            self.tell(asker, delay, stopped);
        }
    }

    /// Stops an agent on this node and informs the cascade.
    pub fn drop_agent(&mut self, process: usize, agent: AgentKey) {
        if let Some(hosted) = self.stop_agent(process, agent) {
            let input = CascadeInput::AgentStopped {
                team: team((agent.0, hosted.incarnation)),
                agent: agent_id(agent.1),
            };
            self.cascade(process, input);
        }
    }

    pub fn team_read(&mut self, process: usize, of: TeamKey, answer: &RegistryAnswer) {
        let RegistryAnswer::Team(found) = answer else {
            return;
        };
        let seen = found.map(|(revision, found)| {
            let node = self.processes[found.node].id.clone();
            SeenTeam {
                revision,
                standing: found.standing,
                reason: Some(TeamEnd::NodeDead),
                is_node_gone: self.processes[process].membership.is_gone(&node) == Some(true),
                node,
            }
        });
        let team = team(of);
        self.cascade(process, CascadeInput::TeamRead { team, seen });
    }

    pub fn marked_dead(
        &mut self,
        process: usize,
        of: TeamKey,
        which: DeathOf,
        answer: &RegistryAnswer,
    ) {
        let done = matches!(answer, RegistryAnswer::Done(_));
        match which {
            DeathOf::RecordAt(_) => {
                let team = team(of);
                self.cascade(process, CascadeInput::MarkedDead { team, done });
            }
            DeathOf::AnyRecord if done => self.last_team_dead(process, of),
            DeathOf::AnyRecord => {}
        }
    }
}
