//! What another node hosts is asked there, once: what was relayed is not relayed again.

use std::time::Duration;

use planck_common::{
    NodeId,
    command::{AgentInfo, AgentState, AgentStateNow, AgentVerb, Because, Empty, NodeVerb, Relay},
    event::json,
    reply::{self, Code, Refusal, ReplyError},
    subject::Address,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{
    agent::Command,
    bus::BusError,
    node::Node,
    store::{AgentRecord, SessionRecord},
};

/// How long the hosting node has for a relayed command; a close waits for processes of other nodes
/// to end.
const RELAY: Duration = Duration::from_secs(20);

/// How long it has to say how an agent is doing.
const LOOK: Duration = Duration::from_secs(2);

/// How long an answer may be on its way after the node that sent it is known to be gone.
const LAST_WORDS: Duration = Duration::from_secs(1);

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
                self.relay(host, address, body, RELAY).await
            }
            Hop::Last => Err(Refusal::unavailable(format!(
                "it is on node {host} now; ask again"
            ))),
        }
    }

    pub(crate) async fn relay(
        &self,
        host: &NodeId,
        address: &Address,
        body: &[u8],
        patience: Duration,
    ) -> Result<String, Refusal> {
        let inner: Box<RawValue> = match body {
            [] => RawValue::from_string("{}".into()),
            body => serde_json::from_slice(body),
        }
        .map_err(|error| Refusal::bad_request(format!("the body cannot be read: {error}")))?;
        let word = json(&Relay {
            subject: address.to_string(),
            body: inner,
        });
        let ok: Box<RawValue> = self.ask_node(host, NodeVerb::Relay, word, patience).await?;
        Ok(ok.get().to_owned())
    }

    pub(crate) async fn ask_node<T: DeserializeOwned>(
        &self,
        node: &NodeId,
        verb: NodeVerb,
        body: String,
        patience: Duration,
    ) -> Result<T, Refusal> {
        let address = Address::node(node, verb.name());
        let answer = tokio::select! {
            answer = self.bus().request(&address, body.into(), patience) => answer,
            () = async { self.liveness().until_gone(node).await; tokio::time::sleep(LAST_WORDS).await } => {
                return Err(Refusal::unavailable(format!("node {node} was gone before it answered; it may have done what it was asked")));
            }
        };
        let answer = answer.map_err(|error| match error {
            BusError::TooLarge { .. } => Refusal::new(Code::TooLarge, error.to_string()),
            BusError::NoResponders(_)
            | BusError::TimedOut { .. }
            | BusError::Denied(_)
            | BusError::Away(_)
            | BusError::Unfit(_) => {
                Refusal::unavailable(format!("node {node} does not answer: {error}"))
            }
        })?;
        reply::decode(&answer).map_err(|error| match error {
            ReplyError::Refused(refusal) => refusal,
            ReplyError::Foreign | ReplyError::Malformed(_) => {
                Refusal::unavailable(format!("node {node}: {error}"))
            }
        })
    }

    /// How an agent is doing, as its host tells; `None` where that does not answer in time.
    pub(crate) async fn look_at(&self, agent: &AgentRecord) -> Option<AgentInfo> {
        match self.elsewhere(agent) {
            Some(host) => self
                .tell(agent, host, AgentVerb::Info, &Empty {}, LOOK)
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
                    .tell(agent, host, AgentVerb::Abort, &Because { reason }, RELAY)
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
                    .tell(agent, host, AgentVerb::Stop, &because, RELAY)
                    .await?;
                Ok(now.state)
            }
            None => self.stop_agent_here(agent, reason).await,
        }
    }

    async fn tell<T: DeserializeOwned>(
        &self,
        agent: &AgentRecord,
        host: &NodeId,
        verb: AgentVerb,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, Refusal> {
        let ok = self
            .relay(
                host,
                &Address::agent(&agent.id, verb.name()),
                json(body).as_bytes(),
                patience,
            )
            .await?;
        serde_json::from_str(&ok)
            .map_err(|error| Refusal::unavailable(format!("node {host}: {error}")))
    }
}
