//! What another node hosts is asked there, once: what was relayed is not relayed again.

use std::time::Duration;

use planck_common::{
    NodeId,
    command::{AgentInfo, AgentState, AgentStateNow, AgentVerb, Because, Empty},
    reply::Refusal,
    subject::Address,
};
use serde_json::value::RawValue;

use crate::{
    agent::Command,
    node::Node,
    store::{AgentRecord, SessionRecord},
};

/// How long the hosting node has for a relayed command; a close waits for processes of other nodes
/// to end.
const RELAY: Duration = Duration::from_secs(20);

/// How long it has to say how an agent is doing.
const LOOK: Duration = Duration::from_secs(2);

/// How a command came here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// From whoever wants it.
    First,
    /// From the node that was asked first.
    Last,
}

impl Node {
    /// The other node that holds an agent, by the agent's record.
    pub(crate) fn elsewhere<'a>(&self, agent: &'a AgentRecord) -> Option<&'a NodeId> {
        agent
            .node
            .as_ref()
            .filter(|node| *node != self.id() && !self.host().has(&agent.id))
    }

    /// The other node that does what only a session's host can do: the living one that holds its
    /// lead, or, where nobody does and the lead does not fit here, one that it fits. `None`: this
    /// one.
    pub(crate) async fn host_of(&self, session: &SessionRecord) -> Result<Option<NodeId>, Refusal> {
        if let Some(owner) = &session.owner {
            if owner == self.id() {
                return Ok(None);
            }
            if self.liveness().is_alive(owner).await {
                return Ok(Some(owner.clone()));
            }
        }
        if self.settings().alone {
            return Ok(None);
        }
        if self.sees(session) {
            return self.better_home(session).await;
        }
        self.peer_for(&session.spec.workspace).map(Some)
    }

    /// Whether this node sees the session's workspace.
    pub(super) fn sees(&self, session: &SessionRecord) -> bool {
        self.workspaces()
            .place(&session.spec.workspace, &session.spec.dir)
            .is_ok()
    }

    /// Asks the node that hosts what a command is about, unless this one was asked as that.
    pub(crate) async fn pass_on(
        &self,
        hop: Hop,
        host: &NodeId,
        address: &Address,
        body: &[u8],
    ) -> Result<String, Refusal> {
        match hop {
            Hop::First => {
                self.check_reach(Some(host)).await?;
                let ok: Box<RawValue> = self.peers().relay(host, address, body, RELAY).await?;
                Ok(ok.get().to_owned())
            }
            Hop::Last => Err(Refusal::unavailable(format!(
                "it is on node {host} now; ask again"
            ))),
        }
    }

    /// How an agent is doing, as its host tells; `None` where that does not answer in time.
    pub(crate) async fn look_at(&self, agent: &AgentRecord) -> Option<AgentInfo> {
        match self.elsewhere(agent) {
            Some(host) => self
                .peers()
                .command(host, (&agent.id, AgentVerb::Info), &Empty {}, LOOK)
                .await
                .ok(),
            None => self.host().info(&agent.id).await.ok(),
        }
    }

    /// Ends an agent's running turn, wherever it is.
    pub(crate) async fn abort_agent(
        &self,
        agent: &AgentRecord,
        reason: Option<String>,
    ) -> Result<AgentState, Refusal> {
        match self.elsewhere(agent) {
            Some(host) => {
                let now: AgentStateNow = self
                    .peers()
                    .command(
                        host,
                        (&agent.id, AgentVerb::Abort),
                        &Because { reason },
                        RELAY,
                    )
                    .await?;
                Ok(now.state)
            }
            None => {
                let aborted = self
                    .host()
                    .command(&agent.id, Command::Abort { reason })
                    .await;
                aborted.map_err(|gone| Refusal::unavailable(gone.to_string()))
            }
        }
    }

    /// Stops an agent for good, wherever it is; a lead takes its session with it.
    pub(crate) async fn stop_agent(
        &self,
        agent: &AgentRecord,
        reason: &str,
    ) -> Result<AgentState, Refusal> {
        match self.elsewhere(agent) {
            Some(host) => {
                let because = Because {
                    reason: Some(reason.to_owned()),
                };
                let now: AgentStateNow = self
                    .peers()
                    .command(host, (&agent.id, AgentVerb::Stop), &because, RELAY)
                    .await?;
                Ok(now.state)
            }
            None => self.stop_agent_here(agent, reason).await,
        }
    }
}
