//! Finds the node on which an agent can be reached. An agent that no living node hosts is taken over
//! first, so that a command does to it what it does to a loaded agent.

use std::{collections::BTreeSet, time::Duration};

use planck_common::{
    AgentId, NodeId, SessionId,
    command::{AgentState, Because, SessionState, SessionVerb},
    event::json,
    reply::Refusal,
    subject::Address,
};
use serde::de::IgnoredAny;

use super::Sessions;
use crate::takeover::IfClosed;
use planck_store::{AgentRecord, SessionRecord};

/// How long the session's host may take to take over the agents that have no host.
const RESUME: Duration = Duration::from_secs(5);

/// The reason that the log records if a command takes a session over.
const COMMANDED: &str = "commanded";

/// The host of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentHost {
    /// This node. If the agent has no task here, the next message to it starts one.
    Here,
    /// Another node, which counts as alive.
    On(NodeId),
}

/// Where the agents of a session are.
#[derive(Debug, Default)]
pub(super) struct MemberPlaces {
    /// The agents on this node.
    pub(super) here: Vec<AgentRecord>,
    /// The other nodes that host agents of the session.
    pub(super) nodes: BTreeSet<NodeId>,
    /// An agent with an open turn that no living node hosts.
    pub(super) lost: Option<AgentId>,
}

impl Sessions {
    /// Returns the host of an agent, or `None` if no living node hosts it.
    pub async fn host_of(&self, agent: &AgentRecord) -> Option<AgentHost> {
        match self.placement.other_host(agent) {
            Some(node) => {
                let is_alive = self.base.view.is_alive(node).await;
                is_alive.then(|| AgentHost::On(node.clone()))
            }
            None => self.base.host.has(&agent.id).then_some(AgentHost::Here),
        }
    }

    /// Returns the host of an agent. If no living node hosts the agent, has it taken over first, and
    /// opens a closed session for that only if `may_open` is set.
    pub(super) async fn reached(
        &self,
        agent: &AgentRecord,
        may_open: bool,
    ) -> Result<AgentHost, Refusal> {
        match self.host_of(agent).await {
            Some(host) => Ok(host),
            None => self.taken_over(agent, may_open).await,
        }
    }

    /// Has an agent that no living node hosts taken over, and returns its host. Opens a closed session
    /// only if `may_open` is set.
    pub async fn taken_over(
        &self,
        agent: &AgentRecord,
        may_open: bool,
    ) -> Result<AgentHost, Refusal> {
        self.take_over_agent(&agent.session, &agent.id, may_open, COMMANDED)
            .await?;
        let agent = self.base.lookup.agent(&agent.id).await?;
        let host = self.host_of(&agent).await;
        host.ok_or_else(|| without_host(&agent.id))
    }

    /// Returns where the agents of a session are, after it was taken over if an agent with an open
    /// turn had no living host. Such an agent waits for an answer after its node has left, or its
    /// node has died. A closed session is not taken over.
    pub(super) async fn reached_members(
        &self,
        session: &SessionRecord,
    ) -> Result<MemberPlaces, Refusal> {
        let places = self.places(&session.id).await?;
        let Some(lost) = places.lost.as_ref() else {
            return Ok(places);
        };
        if session.state == SessionState::Closed {
            return Ok(MemberPlaces {
                lost: None,
                ..places
            });
        }
        let taken_over = self.take_over_agent(&session.id, lost, false, COMMANDED);
        match taken_over.await {
            Ok(()) => self.places(&session.id).await,
            Err(refusal) => {
                tracing::debug!(agent = %lost, %refusal, "cannot take the agent over for a command to its session");
                Ok(places)
            }
        }
    }

    pub(super) async fn places(&self, session: &SessionId) -> Result<MemberPlaces, Refusal> {
        let mut places = MemberPlaces::default();
        let mut gone = BTreeSet::new();
        for agent in self.base.lookup.members(session).await? {
            let other = self.placement.other_host(&agent).cloned();
            let host = match &other {
                Some(node) if places.nodes.contains(node) => continue,
                Some(node) if gone.contains(node) => None,
                Some(_) | None => self.host_of(&agent).await,
            };
            match host {
                Some(AgentHost::Here) => places.here.push(agent),
                Some(AgentHost::On(node)) => {
                    places.nodes.insert(node);
                }
                None => {
                    gone.extend(other);
                    if agent.state != AgentState::Idle {
                        places.lost.get_or_insert(agent.id);
                    }
                }
            }
        }
        Ok(places)
    }

    /// Takes up the agents of a session that have no host, on this node or by asking the session's
    /// host. Does nothing if the session is closed, unless `may_open`. If the session's host fails
    /// to take the agents over, leaves that to its next sweep.
    pub(super) async fn take_over_agent(
        &self,
        session: &SessionId,
        agent: &AgentId,
        may_open: bool,
        reason: &str,
    ) -> Result<(), Refusal> {
        let record = self.base.lookup.session(session).await?;
        if record.state == SessionState::Closed && !may_open {
            return Ok(());
        }
        let Some(host) = self.placement.session_host(&record).await? else {
            let if_closed = if may_open {
                IfClosed::Open
            } else {
                IfClosed::Leave
            };
            return self.takeover.take_over(&record.id, reason, if_closed).await;
        };
        let address = Address::session(session, SessionVerb::Resume.name());
        let because = Because {
            reason: Some(reason.to_owned()),
        };
        let resumed: Result<IgnoredAny, Refusal> = self
            .base
            .peers
            .relay(&host, &address, json(&because).as_bytes(), RESUME)
            .await;
        if let Err(refusal) = resumed {
            tracing::debug!(%agent, %host, %refusal, "the session's host did not take the agent over; its next sweep does");
        }
        Ok(())
    }
}

pub(super) fn without_host(agent: &AgentId) -> Refusal {
    Refusal::unavailable(format!("no node hosts agent {agent} now; ask again"))
}
