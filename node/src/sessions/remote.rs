//! Operations on sessions and agents that another node may host. That node then performs the
//! operation. A command is passed on at most once: a node that receives a command from another node
//! does not pass the command on again.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future;
use planck_common::{
    AgentId, NodeId,
    command::{
        Aborted, AgentInfo, AgentState, AgentStateNow, AgentVerb, Because, Empty, SessionVerb,
    },
    event::json,
    reply::{Code, Refusal},
    subject::Address,
};
use serde_json::value::RawValue;

use super::{
    AgentHost, Sessions,
    reach::{MemberPlaces, without_host},
};
use crate::{actor::AT_ONCE, agent::Command};
use planck_store::{AgentRecord, SessionRecord};

/// How long the host may take to perform a command that was passed on. Closing a session is slow
/// because it waits until processes on other nodes have ended.
const RELAY: Duration = Duration::from_secs(20);

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
                let ok: Box<RawValue> = self.peers.relay(host, address, body, RELAY).await?;
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
        let Some(host) = host.filter(|host| self.view.is_alone() && *host != self.view.id()) else {
            return Ok(());
        };
        match self.store.node_lives(host).await? {
            Some(true) => Err(Refusal::new(
                Code::Busy,
                "the session is at work in another process; set NATS_URL for both, so that they reach each other, or wait until that one ends",
            )),
            Some(false) | None => Ok(()),
        }
    }

    /// Returns the information that the agent's host has, or `None` if no living node hosts the
    /// agent, or if the host refuses or does not answer in time.
    pub async fn agent_info(&self, agent: &AgentRecord) -> Option<AgentInfo> {
        match self.placement.other_host(agent) {
            Some(node) if self.view.is_gone(node) => None,
            Some(node) => self.info_of(node, &agent.id).await.ok(),
            None => self.host.info(&agent.id).await.ok(),
        }
    }

    async fn info_of(&self, node: &NodeId, agent: &AgentId) -> Result<AgentInfo, Refusal> {
        let info = (agent, AgentVerb::Info);
        self.peers.command(node, info, &Empty {}, LOOK).await
    }

    /// Checks that a node hosts an agent and answers, because only the agent itself can refuse an
    /// input that may not wait. An agent without a living host is taken up first.
    pub(super) async fn check_answers(&self, agent: &AgentId) -> Result<(), Refusal> {
        // An agent that is about to start here reads its inbox once it has started.
        if self.host.has(agent) || self.placement.local().admission().leave_news(agent) {
            return Ok(());
        }
        let record = self.lookup.agent(agent).await?;
        match self.reached(&record, true).await? {
            AgentHost::Here => Ok(()),
            AgentHost::On(node) => self.info_of(&node, agent).await.map(drop),
        }
    }

    /// Aborts an agent's running turn, whichever node hosts the agent. An agent without a living
    /// host is taken up for that if it has an open turn.
    pub async fn abort_agent(
        &self,
        agent: &AgentRecord,
        reason: Option<String>,
    ) -> Result<AgentState, Refusal> {
        let host = match self.host_of(agent).await {
            Some(host) => host,
            None if agent.state == AgentState::Idle => return Ok(AgentState::Idle),
            None => self.taken_up(agent, false).await?,
        };
        match host {
            AgentHost::Here => {
                let abort = Command::Abort { reason };
                let aborted = self.host.command(&agent.id, abort).await;
                aborted.map_err(|gone| Refusal::unavailable(gone.to_string()))
            }
            AgentHost::On(host) => {
                let (abort, why) = ((&agent.id, AgentVerb::Abort), Because { reason });
                let now: AgentStateNow = self.peers.command(&host, abort, &why, RELAY).await?;
                Ok(now.state)
            }
        }
    }

    /// Stops an agent permanently, whichever node hosts it. Stopping the orchestrator closes its
    /// session. An agent of an open session that has no living host is taken up first, so that its
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
                let now: AgentStateNow = self.peers.command(&host, stop, &because, RELAY).await?;
                Ok(now.state)
            }
        }
    }

    /// Aborts the running turns of a session: on all nodes if a client asks, and only on this node
    /// if another node asks. For a client, agents with an open turn and without a living host are
    /// taken up first. Returns the agents that had a running turn. If some cannot be reached, the
    /// others are still aborted, and the call fails afterwards.
    pub async fn abort(
        &self,
        session: &SessionRecord,
        reason: Option<&str>,
        origin: CommandOrigin,
    ) -> Result<Vec<AgentId>, Refusal> {
        let places = match origin {
            CommandOrigin::Client => self.reached_members(session).await?,
            CommandOrigin::Peer => {
                let places = self.places(&session.id).await?;
                MemberPlaces {
                    here: places.here,
                    ..MemberPlaces::default()
                }
            }
        };
        let (aborted, also) = tokio::join!(
            self.abort_here(&places.here, reason),
            self.abort_elsewhere(session, reason, &places.nodes),
        );
        let also = also?;
        match places.lost {
            Some(lost) => Err(without_host(&lost)),
            None => Ok(aborted.into_iter().chain(also).collect()),
        }
    }

    async fn abort_here(&self, agents: &[AgentRecord], reason: Option<&str>) -> Vec<AgentId> {
        let mut aborted = Vec::new();
        for some in agents.chunks(AT_ONCE) {
            let aborts = some.iter().map(|agent| self.abort_if_busy(agent, reason));
            aborted.extend(future::join_all(aborts).await.into_iter().flatten());
        }
        aborted
    }

    /// Asks other nodes to abort the session's running turns. If one node fails, the others are
    /// still asked, and the call fails afterwards.
    async fn abort_elsewhere(
        &self,
        session: &SessionRecord,
        reason: Option<&str>,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<Vec<AgentId>, Refusal> {
        let mut aborts = Vec::with_capacity(nodes.len());
        for node in nodes {
            aborts.push(self.abort_on(node, session, reason));
        }
        let answers: Result<Vec<Vec<AgentId>>, Refusal> =
            future::join_all(aborts).await.into_iter().collect();
        Ok(answers?.into_iter().flatten().collect())
    }

    async fn abort_on(
        &self,
        node: &NodeId,
        session: &SessionRecord,
        reason: Option<&str>,
    ) -> Result<Vec<AgentId>, Refusal> {
        self.check_reachable(Some(node)).await?;
        let address = Address::session(&session.id, SessionVerb::Abort.name());
        let because = json(&Because {
            reason: reason.map(str::to_owned),
        });
        let answer: Aborted = self
            .peers
            .relay(node, &address, because.as_bytes(), RELAY)
            .await?;
        Ok(answer.aborted)
    }

    /// Aborts the agent's turn, if it has one. An agent without a task either is idle or waits for
    /// answers from outside, and its record says which. Only the one that waits is loaded.
    async fn abort_if_busy(&self, agent: &AgentRecord, reason: Option<&str>) -> Option<AgentId> {
        let id = &agent.id;
        if agent.state == AgentState::Idle && self.host.is_at_rest(id) {
            return None;
        }
        if self.host.info(id).await.ok()?.state == AgentState::Idle {
            return None;
        }
        let reason = reason.map(str::to_owned);
        let aborted = self.host.command(id, Command::Abort { reason }).await;
        aborted.ok().map(|_| id.clone())
    }
}
