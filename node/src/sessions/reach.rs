//! Finds the node on which an agent can be reached, and passes operations on to it. An agent that
//! no living node hosts is taken over first, so that a command does to it what it does to a loaded
//! agent. A command is passed on at most once: a node that receives a command from another node
//! does not pass the command on again.

use std::{collections::BTreeSet, time::Duration};

use planck_common::{
    AgentId, NodeId, SessionId,
    command::{
        AgentInfo, AgentState, AgentStateNow, AgentVerb, Because, Empty, SessionState, SessionVerb,
    },
    event::json,
    reply::{Code, Refusal},
    subject::Address,
};
use planck_store::{AgentRecord, SessionRecord};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::Sessions;
use crate::{agent::Command, takeover::IfClosed};

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
                let is_alive = self.handles.view.is_alive(node).await;
                is_alive.then(|| AgentHost::On(node.clone()))
            }
            None => self.handles.host.has(&agent.id).then_some(AgentHost::Here),
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
        let agent = self.handles.lookup.agent(&agent.id).await?;
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
        for agent in self.handles.lookup.members(session).await? {
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
        let record = self.handles.lookup.session(session).await?;
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
            .handles
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

/// How long the host may take to perform a command that was passed on. Closing a session is slow
/// because it waits until processes on other nodes have ended.
pub(super) const RELAY: Duration = Duration::from_secs(20);

/// How long the host may take to return the information about an agent.
const LOOK: Duration = Duration::from_secs(2);

/// The sender of a command that this node received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandOrigin {
    /// A client. This node passes the command on if another node hosts the target.
    Client,
    /// Another node, which considers this node the target's host or chose it to start a session.
    Peer,
}

impl Sessions {
    /// Passes a client's command on to the node that hosts its target, and returns that node's
    /// reply. A command that another node has already passed on is refused.
    pub async fn pass_on(
        &self,
        origin: CommandOrigin,
        host: &NodeId,
        address: &Address,
        body: &[u8],
    ) -> Result<String, Refusal> {
        match origin {
            CommandOrigin::Client => {
                self.check_reachable(Some(host)).await?;
                let ok: Box<RawValue> =
                    self.handles.peers.relay(host, address, body, RELAY).await?;
                Ok(ok.get().to_owned())
            }
            CommandOrigin::Peer => Err(Refusal::unavailable(format!(
                "it is on node {host} now; ask again"
            ))),
        }
    }

    /// Returns a refusal if `host` is another live node of this computer and this node works
    /// without NATS, so that it cannot reach `host`.
    pub(super) async fn check_reachable(&self, host: Option<&NodeId>) -> Result<(), Refusal> {
        let Some(host) =
            host.filter(|host| self.handles.view.is_alone() && *host != self.handles.view.id())
        else {
            return Ok(());
        };
        match self.handles.store.node_lives(host).await? {
            Some(true) => Err(Refusal::new(
                Code::Busy,
                "the session is at work in another process; end that one, let it be `planck serve`, which other commands use, or set NATS_URL for both",
            )),
            Some(false) | None => Ok(()),
        }
    }

    /// Returns the information that the agent's host has, or `None` if no living node hosts the
    /// agent, or if the host refuses or does not answer in time.
    pub async fn agent_info(&self, agent: &AgentRecord) -> Option<AgentInfo> {
        match self.placement.other_host(agent) {
            Some(node) if self.handles.view.is_gone(node) => None,
            Some(node) => self.info_of(node, &agent.id).await.ok(),
            None => self.handles.host.info(&agent.id).await.ok(),
        }
    }

    async fn info_of(&self, node: &NodeId, agent: &AgentId) -> Result<AgentInfo, Refusal> {
        let info = (agent, AgentVerb::Info);
        self.handles
            .peers
            .command(node, info, &Empty {}, LOOK)
            .await
    }

    /// Checks that a node hosts an agent and answers, because only the agent itself can refuse an
    /// input that may not wait. An agent without a living host is taken over first.
    pub(super) async fn check_answers(&self, agent: &AgentId) -> Result<(), Refusal> {
        // An agent that is about to start here reads its inbox once it has started.
        if self.handles.host.has(agent) || self.placement.local().admission().leave_news(agent) {
            return Ok(());
        }
        let record = self.handles.lookup.agent(agent).await?;
        match self.reached(&record, true).await? {
            AgentHost::Here => Ok(()),
            AgentHost::On(node) => self.info_of(&node, agent).await.map(drop),
        }
    }

    /// Aborts an agent's running turn, whichever node hosts the agent. An agent without a living
    /// host is taken over for that if it has an open turn.
    pub async fn abort_agent(
        &self,
        agent: &AgentRecord,
        reason: Option<String>,
    ) -> Result<AgentState, Refusal> {
        let host = match self.host_of(agent).await {
            Some(host) => host,
            None if agent.state == AgentState::Idle => return Ok(AgentState::Idle),
            None => self.taken_over(agent, false).await?,
        };
        match host {
            AgentHost::Here => {
                let abort = Command::Abort { reason };
                let aborted = self.handles.host.command(&agent.id, abort).await;
                aborted.map_err(|gone| Refusal::unavailable(gone.to_string()))
            }
            AgentHost::On(host) => {
                let (abort, why) = ((&agent.id, AgentVerb::Abort), Because { reason });
                let now: AgentStateNow = self
                    .handles
                    .peers
                    .command(&host, abort, &why, RELAY)
                    .await?;
                Ok(now.state)
            }
        }
    }

    /// Stops an agent permanently, whichever node hosts it. Stopping the orchestrator closes its
    /// session. An agent of an open session that has no living host is taken over first, so that its
    /// log gets the end of its turn and its own end.
    pub async fn stop_agent(
        &self,
        agent: &AgentRecord,
        reason: &str,
    ) -> Result<AgentState, Refusal> {
        match self.reached(agent, false).await? {
            AgentHost::Here => self.takeover.stop_agent(agent, reason).await,
            AgentHost::On(host) => {
                let because = Because {
                    reason: Some(reason.to_owned()),
                };
                let stop = (&agent.id, AgentVerb::Stop);
                let now: AgentStateNow = self
                    .handles
                    .peers
                    .command(&host, stop, &because, RELAY)
                    .await?;
                Ok(now.state)
            }
        }
    }
}
