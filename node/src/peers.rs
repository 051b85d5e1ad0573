//! Requests to other nodes. A request fails at its deadline, or earlier if its node has left or is
//! declared dead.

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use planck_common::{
    AgentId, NodeId,
    command::{AgentVerb, Empty, HostAgent, Hosted, NodeVerb, Relay, StopTeam, StoppedTeam, Wake},
    event::json,
    reply::{self, Code, Refusal, ReplyError},
    subject::Address,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{
    bus::{Bus, BusError},
    cluster::liveness::Liveness,
};

/// How long a node may take to answer a request to host an agent.
const HOST: Duration = Duration::from_secs(8);

/// How long a node may take to answer a wake-up.
const WAKE: Duration = Duration::from_secs(2);

/// How long to wait for an answer that may still arrive once the node is known to be gone.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A client for the commands of other nodes.
pub struct Peers {
    bus: Arc<dyn Bus>,
    liveness: Arc<Liveness>,
}

impl Peers {
    pub fn new(bus: Arc<dyn Bus>, liveness: Arc<Liveness>) -> Self {
        Self { bus, liveness }
    }

    /// Asks a node to host an agent, and returns where the agent runs.
    pub async fn host(&self, node: &NodeId, request: &HostAgent) -> Result<Hosted, Refusal> {
        self.ask(node, NodeVerb::Host, request, HOST).await
    }

    /// Notifies a node that rows of an agent that it hosts have changed in SQL.
    pub async fn wake(&self, node: &NodeId, wake: &Wake) -> Result<(), Refusal> {
        let Empty {} = self.ask(node, NodeVerb::Wake, wake, WAKE).await?;
        Ok(())
    }

    /// Asks a node to stop those members of a team that it hosts.
    pub async fn stop_team(
        &self,
        node: &NodeId,
        order: &StopTeam,
        patience: Duration,
    ) -> Result<StoppedTeam, Refusal> {
        self.ask(node, NodeVerb::StopTeam, order, patience).await
    }

    /// Sends a command for an agent to the node that hosts the agent.
    pub async fn command<T: DeserializeOwned>(
        &self,
        node: &NodeId,
        (agent, verb): (&AgentId, AgentVerb),
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, Refusal> {
        let address = Address::agent(agent, verb.name());
        self.relay(node, &address, json(body).as_bytes(), patience)
            .await
    }

    /// Passes a client's command on to the node that hosts its target. That node performs the
    /// command and does not pass it on again.
    pub async fn relay<T: DeserializeOwned>(
        &self,
        node: &NodeId,
        address: &Address,
        body: &[u8],
        patience: Duration,
    ) -> Result<T, Refusal> {
        let body: Box<RawValue> = match body {
            [] => RawValue::from_string("{}".into()),
            body => serde_json::from_slice(body),
        }
        .map_err(|error| Refusal::bad_request(format!("the body cannot be read: {error}")))?;
        let relay = Relay {
            subject: address.to_string(),
            body,
        };
        self.ask(node, NodeVerb::Relay, &relay, patience).await
    }

    /// Sends a request to a node, and returns the answer. If the request fails, the node may still
    /// have performed it, unless the node itself refused it.
    async fn ask<T: DeserializeOwned>(
        &self,
        node: &NodeId,
        verb: NodeVerb,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, Refusal> {
        let address = Address::node(node, verb.name());
        let answer = tokio::select! {
            answer = self.bus.request(&address, json(body).into(), patience) => answer,
            () = self.until_silent_for_good(node) => {
                return Err(Refusal::unavailable(format!(
                    "node {node} was gone before it answered; it may have done what it was asked"
                )));
            }
        };
        let answer = answer.map_err(|error| unanswered(node, &error))?;
        reply::decode(&answer).map_err(|error| match error {
            ReplyError::Refused(refusal) => refusal,
            ReplyError::Foreign | ReplyError::Malformed(_) => {
                Refusal::unavailable(format!("node {node}: {error}"))
            }
        })
    }

    async fn until_silent_for_good(&self, node: &NodeId) {
        self.liveness.until_gone(node).await;
        tokio::time::sleep(LAST_WORDS).await;
    }
}

fn unanswered(node: &NodeId, error: &BusError) -> Refusal {
    match error {
        BusError::TooLarge { .. } => Refusal::new(Code::TooLarge, error.to_string()),
        BusError::NoResponders(_)
        | BusError::TimedOut { .. }
        | BusError::Denied(_)
        | BusError::Away(_)
        | BusError::Unfit(_) => {
            Refusal::unavailable(format!("node {node} does not answer: {error}"))
        }
    }
}
