//! **Pure**: what becomes of the teams that have agents on this node when an orchestrator, its node
//! or the team dies. A decision is made once, in the registry; whatever is missed is found again by
//! a sweep, and doing it twice does no harm.

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

use super::{membership::Revision, moment::Moment};

/// How long an answer of the registry is waited for before it is asked again.
const PATIENCE: Duration = Duration::from_secs(2);

/// A team record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenTeam {
    pub revision: Revision,
    pub standing: TeamStanding,
    pub reason: Option<TeamEnd>,
    /// Of the orchestrator.
    pub node: NodeId,
    /// Whether that node is known to be dead.
    pub node_died: bool,
}

/// One life of a team.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life {
    pub team: TeamId,
    pub incarnation: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The time of `next_wake` has come.
    Woken,
    /// An agent of the team runs here; `lead` if it leads it.
    Up {
        life: Life,
        agent: AgentId,
        lead: bool,
    },
    /// It stopped, or moved away, and the team goes on.
    Down {
        life: Life,
        agent: AgentId,
    },
    /// The orchestrator, which ran here, ended.
    LeadEnded {
        life: Life,
        end: TeamEnd,
    },
    NodeDied {
        node: NodeId,
    },
    /// A team's record as the leader has it; `None` where there is none.
    Read {
        life: Life,
        seen: Option<SeenTeam>,
    },
    /// A watch, a claimer, or another record told that this life of the team is over. All before it
    /// are too.
    Over {
        life: Life,
        end: TeamEnd,
    },
    /// The outcome of `MarkDead`; a refused or unknown one is no.
    Marked {
        life: Life,
        done: bool,
    },
    /// Compare everything with the registry.
    Sweep,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read a team's record from the leader.
    Read { life: Life },
    /// Write the team dead, on condition that its record is at `expects`, or not there.
    MarkDead {
        life: Life,
        expects: Option<Revision>,
        end: TeamEnd,
    },
    /// The registry lost the team: write its record again, and those of its members here.
    Reassert { life: Life },
    /// Stop these agents, their model calls and processes, as `end` says, and purge their records.
    Stop {
        life: Life,
        agents: Vec<AgentId>,
        end: TeamEnd,
    },
    /// Purge a member's record.
    Purge { life: Life, agent: AgentId },
}

#[derive(Debug, Default)]
struct Hosted {
    agents: BTreeSet<AgentId>,
    lead: Option<AgentId>,
    orchestrator: Option<(NodeId, Revision)>,
    /// How it is to end, as soon as the registry says so.
    ending: Option<TeamEnd>,
    /// Until when an answer is waited for.
    asked_until: Option<Moment>,
}

#[derive(Debug, Default)]
pub struct Cascade {
    teams: BTreeMap<Life, Hosted>,
}

impl Cascade {
    pub fn on(&mut self, now: Moment, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        match input {
            Input::Woken => {}
            Input::Up { life, agent, lead } => self.up(life, agent, lead, &mut out),
            Input::Down { life, agent } => self.down(life, agent, &mut out),
            Input::LeadEnded { life, end } => self.lead_ended(life, end, &mut out),
            Input::NodeDied { node } => self.node_died(&node),
            Input::Read {
                life,
                seen: Some(seen),
            } => self.read(now, &life, &seen, &mut out),
            Input::Read { life, seen: None } => self.missing(now, &life, &mut out),
            Input::Over { life, end } => self.over(&life, end, &mut out),
            Input::Marked { life, done: true } => self.marked(&life, &mut out),
            Input::Marked { life, done: false } => self.ask(now, &life, &mut out),
            Input::Sweep => out.extend(
                self.teams
                    .keys()
                    .map(|life| Effect::Read { life: life.clone() }),
            ),
        }
        self.end_what_is_to_end(now, &mut out);
        out
    }

    /// When it must be called again, if nothing happens before.
    pub fn next_wake(&self) -> Option<Moment> {
        self.teams
            .values()
            .filter(|hosted| hosted.ending.is_some())
            .filter_map(|hosted| hosted.asked_until)
            .min()
    }

    /// The lives of teams that have agents here.
    pub fn lives(&self) -> impl Iterator<Item = &Life> {
        self.teams.keys()
    }

    /// Of a life that is new here the record is read: its orchestrator's node may have died while
    /// the agent was born.
    fn up(&mut self, life: Life, agent: AgentId, lead: bool, out: &mut Vec<Effect>) {
        if !self.teams.contains_key(&life) {
            out.push(Effect::Read { life: life.clone() });
        }
        let hosted = self.teams.entry(life).or_default();
        if lead {
            hosted.lead = Some(agent.clone());
        }
        hosted.agents.insert(agent);
    }

    fn down(&mut self, life: Life, agent: AgentId, out: &mut Vec<Effect>) {
        let Some(hosted) = self.teams.get_mut(&life) else {
            return;
        };
        if hosted.lead.as_ref() == Some(&agent) {
            hosted.lead = None;
        }
        if hosted.agents.remove(&agent) {
            out.push(Effect::Purge {
                life: life.clone(),
                agent,
            });
        }
        if hosted.agents.is_empty() && hosted.ending.is_none() {
            self.teams.remove(&life);
        }
    }

    /// What is here stops at once; the record says it to the others.
    fn lead_ended(&mut self, life: Life, end: TeamEnd, out: &mut Vec<Effect>) {
        let hosted = self.teams.entry(life.clone()).or_default();
        hosted.ending.get_or_insert(end);
        let agents = std::mem::take(&mut hosted.agents);
        stop(&life, agents, end, out);
    }

    fn node_died(&mut self, node: &NodeId) {
        // Where no record was read yet, the orchestrator may have been there: the record will tell.
        for hosted in self
            .teams
            .values_mut()
            .filter(|hosted| hosted.lead.is_none())
        {
            if hosted
                .orchestrator
                .as_ref()
                .is_none_or(|(orchestrator, _)| orchestrator == node)
            {
                hosted.ending.get_or_insert(TeamEnd::NodeDead);
            }
        }
    }

    fn read(&mut self, now: Moment, life: &Life, seen: &SeenTeam, out: &mut Vec<Effect>) {
        let Some(hosted) = self.teams.get_mut(life) else {
            return;
        };
        if seen.standing == TeamStanding::Dead {
            return self.over(life, seen.reason.unwrap_or(TeamEnd::NodeDead), out);
        }
        hosted.orchestrator = Some((seen.node.clone(), seen.revision));
        hosted.ending = match hosted.ending {
            Some(TeamEnd::NodeDead) | None => seen.node_died.then_some(TeamEnd::NodeDead),
            ended => ended,
        };
        if let Some(end) = hosted.ending {
            hosted.asked_until = Some(now + PATIENCE);
            out.push(Effect::MarkDead {
                life: life.clone(),
                expects: Some(seen.revision),
                end,
            });
        }
    }

    /// The registry lost the record. It is for the orchestrator's node to write it again, unless
    /// that is dead.
    fn missing(&mut self, now: Moment, life: &Life, out: &mut Vec<Effect>) {
        let Some(hosted) = self.teams.get_mut(life) else {
            return;
        };
        if let Some(end) = hosted.ending {
            hosted.asked_until = Some(now + PATIENCE);
            out.push(Effect::MarkDead {
                life: life.clone(),
                expects: None,
                end,
            });
        } else if hosted.lead.is_some() {
            out.push(Effect::Reassert { life: life.clone() });
        }
    }

    fn over(&mut self, life: &Life, end: TeamEnd, out: &mut Vec<Effect>) {
        let first = Life {
            team: life.team.clone(),
            incarnation: i64::MIN,
        };
        let over: Vec<Life> = self
            .teams
            .range(first..=life.clone())
            .map(|(life, _)| life.clone())
            .collect();
        for ended in over {
            let end = if ended == *life {
                end
            } else {
                TeamEnd::NodeDead
            };
            let hosted = self.teams.remove(&ended).unwrap_or_default();
            stop(&ended, hosted.agents, end, out);
        }
    }

    fn marked(&mut self, life: &Life, out: &mut Vec<Effect>) {
        let end = self.teams.get(life).and_then(|hosted| hosted.ending);
        if let Some(end) = end {
            self.over(life, end, out);
        }
    }

    fn ask(&mut self, now: Moment, life: &Life, out: &mut Vec<Effect>) {
        if let Some(hosted) = self.teams.get_mut(life) {
            hosted.asked_until = Some(now + PATIENCE);
            out.push(Effect::Read { life: life.clone() });
        }
    }

    fn end_what_is_to_end(&mut self, now: Moment, out: &mut Vec<Effect>) {
        for (life, hosted) in &mut self.teams {
            let Some(end) = hosted.ending else { continue };
            if hosted.asked_until.is_some_and(|until| now < until) {
                continue;
            }
            // The first try trusts the revision that is known; after that the record is read.
            let first = hosted.asked_until.is_none();
            hosted.asked_until = Some(now + PATIENCE);
            let life = life.clone();
            out.push(match &hosted.orchestrator {
                Some((_, revision)) if first => Effect::MarkDead {
                    life,
                    expects: Some(*revision),
                    end,
                },
                Some(_) | None => Effect::Read { life },
            });
        }
    }
}

fn stop(life: &Life, agents: BTreeSet<AgentId>, end: TeamEnd, out: &mut Vec<Effect>) {
    if !agents.is_empty() {
        out.push(Effect::Stop {
            life: life.clone(),
            agents: agents.into_iter().collect(),
            end,
        });
    }
}
