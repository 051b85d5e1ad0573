//! **Pure**: decides what happens on this node to the agents of a team when the orchestrator's node
//! dies or the team ends. The decision that binds all nodes is the write to the registry that marks
//! the team's record dead. The other nodes find the dead record at the latest when they next
//! compare their teams with the registry. Repeating an effect is harmless.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use planck_common::{
    AgentId, NodeId, TeamId,
    registry::{TeamEnd, TeamStanding},
};

use crate::{membership::Revision, moment::Moment};

/// How long to wait for the registry's answer about a team that is to end, before the team's record
/// is read again.
const PATIENCE: Duration = Duration::from_secs(2);

/// A team's record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenTeam {
    pub revision: Revision,
    pub standing: TeamStanding,
    pub reason: Option<TeamEnd>,
    /// The node of the orchestrator.
    pub node: NodeId,
    /// Whether the orchestrator's node is known to have left or died.
    pub is_node_gone: bool,
}

/// One incarnation of a team.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TeamIncarnation {
    pub team: TeamId,
    pub incarnation: i64,
}

impl TeamIncarnation {
    /// Returns whether the end of this incarnation also ends `other`, which is true for this and
    /// every earlier incarnation of the same team.
    pub fn ends_with_it(&self, other: &Self) -> bool {
        other.team == self.team && other.incarnation <= self.incarnation
    }
}

/// An input of the cascade, which is an event or the answer to an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CascadeInput {
    /// The time that `next_wake` returned has come.
    Woken,
    /// An agent of the team started on this node.
    AgentStarted {
        team: TeamIncarnation,
        agent: AgentId,
        is_lead: bool,
    },
    /// An agent of the team no longer runs on this node.
    AgentStopped {
        team: TeamIncarnation,
        agent: AgentId,
    },
    /// A node died.
    NodeDied { node: NodeId },
    /// Answers `ReadTeam`. `seen` is the record as the stream's leader has it, or `None` if there
    /// is no record.
    TeamRead {
        team: TeamIncarnation,
        seen: Option<SeenTeam>,
    },
    /// Answers `MarkDead`. `done` is true if the team is known to be dead now, or had no record to
    /// mark.
    MarkedDead { team: TeamIncarnation, done: bool },
    /// It is time to compare all teams on this node with the registry.
    Sweep,
}

/// An action that the caller must perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CascadeEffect {
    /// Read a team's record from the stream's leader.
    ReadTeam { team: TeamIncarnation },
    /// Mark a team's record as dead, on condition that it is at revision `expects`. If `expects` is
    /// `None`, create a dead record on condition that there is none.
    MarkDead {
        team: TeamIncarnation,
        expects: Option<Revision>,
        end: TeamEnd,
    },
    /// Write the team's record and those of its members on this node again, because the registry
    /// lost the team's record and this node hosts the orchestrator.
    RewriteRecords { team: TeamIncarnation },
    /// Stop the agents on this node of this incarnation and of earlier ones, with their model calls
    /// and processes, and remove the records of `agents`.
    StopMembers {
        team: TeamIncarnation,
        agents: Vec<AgentId>,
        end: TeamEnd,
    },
    /// Remove a member's record, unless it names another node.
    RemoveMember {
        team: TeamIncarnation,
        agent: AgentId,
    },
}

/// A team with agents on this node.
#[derive(Debug, Default)]
struct HostedTeam {
    agents: BTreeSet<AgentId>,
    lead: Option<AgentId>,
    /// The orchestrator's node, and the revision of the record that names it, or `None` until the
    /// record has been read.
    orchestrator: Option<(NodeId, Revision)>,
    /// Why the team is to end, or `None` if it continues. Its members stop once its record is
    /// marked dead.
    ending: Option<TeamEnd>,
    /// When to stop waiting for the registry's answer to the last request.
    asked_until: Option<Moment>,
}

/// The teams with agents on this node, and which of them are to end.
#[derive(Debug, Default)]
pub struct Cascade {
    teams: BTreeMap<TeamIncarnation, HostedTeam>,
}

impl Cascade {
    /// Takes one input, and returns the effects to perform. They do not depend on each other.
    pub fn on(&mut self, now: Moment, input: CascadeInput) -> Vec<CascadeEffect> {
        let mut out = Vec::new();
        match input {
            CascadeInput::Woken => {}
            CascadeInput::AgentStarted {
                team,
                agent,
                is_lead,
            } => self.agent_started(team, agent, is_lead, &mut out),
            CascadeInput::AgentStopped { team, agent } => self.agent_stopped(team, agent, &mut out),
            CascadeInput::NodeDied { node } => self.node_died(&node),
            CascadeInput::TeamRead {
                team,
                seen: Some(seen),
            } => self.team_read(now, &team, &seen, &mut out),
            CascadeInput::TeamRead { team, seen: None } => {
                self.record_missing(now, &team, &mut out)
            }
            CascadeInput::MarkedDead { team, done: true } => self.marked_dead(&team, &mut out),
            CascadeInput::MarkedDead { team, done: false } => self.read(now, &team, &mut out),
            CascadeInput::Sweep => {
                let teams = self.teams.keys().cloned();
                out.extend(teams.map(|team| CascadeEffect::ReadTeam { team }));
            }
        }
        self.end_teams(now, &mut out);
        out
    }

    /// Returns the latest time at which `on` must be called again.
    pub fn next_wake(&self) -> Option<Moment> {
        self.teams
            .values()
            .filter(|hosted| hosted.ending.is_some())
            .filter_map(|hosted| hosted.asked_until)
            .min()
    }

    /// Returns the incarnations that have agents on this node.
    #[cfg(test)]
    pub fn teams(&self) -> impl Iterator<Item = &TeamIncarnation> {
        self.teams.keys()
    }

    /// Adds an agent to its team. If the incarnation is new on this node, requests its record,
    /// because the orchestrator's node may have died before this node knew the team.
    fn agent_started(
        &mut self,
        team: TeamIncarnation,
        agent: AgentId,
        is_lead: bool,
        out: &mut Vec<CascadeEffect>,
    ) {
        if !self.teams.contains_key(&team) {
            out.push(CascadeEffect::ReadTeam { team: team.clone() });
        }
        let hosted = self.teams.entry(team).or_default();
        if is_lead {
            hosted.lead = Some(agent.clone());
        }
        hosted.agents.insert(agent);
    }

    fn agent_stopped(
        &mut self,
        team: TeamIncarnation,
        agent: AgentId,
        out: &mut Vec<CascadeEffect>,
    ) {
        let Some(hosted) = self.teams.get_mut(&team) else {
            return;
        };
        if hosted.lead.as_ref() == Some(&agent) {
            hosted.lead = None;
        }
        let was_here = hosted.agents.remove(&agent);
        if hosted.agents.is_empty() && hosted.ending.is_none() {
            self.teams.remove(&team);
        }
        if was_here {
            out.push(CascadeEffect::RemoveMember { team, agent });
        }
    }

    fn node_died(&mut self, node: &NodeId) {
        for hosted in self.teams.values_mut() {
            // If the team's record was not read yet, its orchestrator may have been on that node.
            // The record is then read before the team ends.
            let was_led_there = hosted
                .orchestrator
                .as_ref()
                .is_none_or(|(orchestrator, _)| orchestrator == node);
            if hosted.lead.is_none() && was_led_there {
                hosted.ending.get_or_insert(TeamEnd::NodeDead);
            }
        }
    }

    fn team_read(
        &mut self,
        now: Moment,
        team: &TeamIncarnation,
        seen: &SeenTeam,
        out: &mut Vec<CascadeEffect>,
    ) {
        let Some(hosted) = self.teams.get_mut(team) else {
            return;
        };
        if seen.standing == TeamStanding::Dead {
            return self.stop(team, seen.reason.unwrap_or(TeamEnd::NodeDead), out);
        }
        hosted.orchestrator = Some((seen.node.clone(), seen.revision));
        hosted.ending = seen.is_node_gone.then_some(TeamEnd::NodeDead);
        if let Some(end) = hosted.ending {
            hosted.asked_until = Some(now + PATIENCE);
            out.push(CascadeEffect::MarkDead {
                team: team.clone(),
                expects: Some(seen.revision),
                end,
            });
        }
    }

    /// Handles the loss of a team's record. If the team is to end, requests a dead record.
    /// Otherwise, if the orchestrator is on this node, requests that the records are written again.
    fn record_missing(
        &mut self,
        now: Moment,
        team: &TeamIncarnation,
        out: &mut Vec<CascadeEffect>,
    ) {
        let Some(hosted) = self.teams.get_mut(team) else {
            return;
        };
        if let Some(end) = hosted.ending {
            hosted.asked_until = Some(now + PATIENCE);
            out.push(CascadeEffect::MarkDead {
                team: team.clone(),
                expects: None,
                end,
            });
        } else if hosted.lead.is_some() {
            out.push(CascadeEffect::RewriteRecords { team: team.clone() });
        }
    }

    fn marked_dead(&mut self, team: &TeamIncarnation, out: &mut Vec<CascadeEffect>) {
        let end = self.teams.get(team).and_then(|hosted| hosted.ending);
        if let Some(end) = end {
            self.stop(team, end, out);
        }
    }

    /// Forgets a dead incarnation and earlier ones, and requests that their agents on this node
    /// stop.
    fn stop(&mut self, team: &TeamIncarnation, end: TeamEnd, out: &mut Vec<CascadeEffect>) {
        let ended = self.teams.keys().filter(|other| team.ends_with_it(other));
        for other in ended.cloned().collect::<Vec<_>>() {
            let hosted = self.teams.remove(&other).unwrap_or_default();
            let end = if other == *team {
                end
            } else {
                TeamEnd::NodeDead
            };
            if !hosted.agents.is_empty() {
                out.push(CascadeEffect::StopMembers {
                    team: other,
                    agents: hosted.agents.into_iter().collect(),
                    end,
                });
            }
        }
    }

    fn read(&mut self, now: Moment, team: &TeamIncarnation, out: &mut Vec<CascadeEffect>) {
        if let Some(hosted) = self.teams.get_mut(team) {
            hosted.asked_until = Some(now + PATIENCE);
            out.push(CascadeEffect::ReadTeam { team: team.clone() });
        }
    }

    /// Requests that each team that is to end is marked dead, unless an answer about it is awaited.
    /// If the revision of a team's record is unknown, or an earlier request had no result, requests
    /// the record instead.
    fn end_teams(&mut self, now: Moment, out: &mut Vec<CascadeEffect>) {
        for (team, hosted) in &mut self.teams {
            let Some(end) = hosted.ending else { continue };
            if hosted.asked_until.is_some_and(|until| now < until) {
                continue;
            }
            let is_first = hosted.asked_until.is_none();
            hosted.asked_until = Some(now + PATIENCE);
            let team = team.clone();
            out.push(match &hosted.orchestrator {
                Some((_, revision)) if is_first => CascadeEffect::MarkDead {
                    team,
                    expects: Some(*revision),
                    end,
                },
                Some(_) | None => CascadeEffect::ReadTeam { team },
            });
        }
    }
}
