//! Operations on sessions and agents that another node may host. That node then performs the
//! operation. A command is passed on at most once: a node that receives a command from another node
//! does not pass the command on again.

use std::time::Duration;

use planck_common::{
    AgentId, NodeId,
    command::{AgentInfo, AgentState, AgentStateNow, AgentVerb, Because, Empty},
    reply::{Code, Refusal},
    subject::Address,
};
use serde_json::value::RawValue;

use super::{AgentHost, Sessions};
use crate::agent::Command;
use planck_store::AgentRecord;

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
                let ok: Box<RawValue> = self.base.peers.relay(host, address, body, RELAY).await?;
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
            host.filter(|host| self.base.view.is_alone() && *host != self.base.view.id())
        else {
            return Ok(());
        };
        match self.base.store.node_lives(host).await? {
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
            Some(node) if self.base.view.is_gone(node) => None,
            Some(node) => self.info_of(node, &agent.id).await.ok(),
            None => self.base.host.info(&agent.id).await.ok(),
        }
    }

    async fn info_of(&self, node: &NodeId, agent: &AgentId) -> Result<AgentInfo, Refusal> {
        let info = (agent, AgentVerb::Info);
        self.base.peers.command(node, info, &Empty {}, LOOK).await
    }

    /// Checks that a node hosts an agent and answers, because only the agent itself can refuse an
    /// input that may not wait. An agent without a living host is taken over first.
    pub(super) async fn check_answers(&self, agent: &AgentId) -> Result<(), Refusal> {
        // An agent that is about to start here reads its inbox once it has started.
        if self.base.host.has(agent) || self.placement.local().admission().leave_news(agent) {
            return Ok(());
        }
        let record = self.base.lookup.agent(agent).await?;
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
                let aborted = self.base.host.command(&agent.id, abort).await;
                aborted.map_err(|gone| Refusal::unavailable(gone.to_string()))
            }
            AgentHost::On(host) => {
                let (abort, why) = ((&agent.id, AgentVerb::Abort), Because { reason });
                let now: AgentStateNow = self.base.peers.command(&host, abort, &why, RELAY).await?;
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
                    .base
                    .peers
                    .command(&host, stop, &because, RELAY)
                    .await?;
                Ok(now.state)
            }
        }
    }
}
