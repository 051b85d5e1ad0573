//! Requests to other nodes. A request fails at its deadline, or earlier if its node has left or is
//! declared dead.

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use planck_common::{
    AgentId, NodeId,
    command::{
        AgentVerb, Empty, HostAgent, Hosted, NodeInfo, NodeVerb, Relay, SessionVerb, StopTeam,
        StoppedTeam, Wake,
    },
    event::json,
    reply::{self, Code, Refusal, ReplyError},
    subject::{Address, Target},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::bus::{Bus, BusError};
use planck_cluster::liveness::Liveness;

/// How long a node may take to answer a request to host an agent.
const HOST: Duration = Duration::from_secs(8);

/// How long a node may take to answer a wake-up.
const WAKE: Duration = Duration::from_secs(2);

/// How long a node may take to tell its load.
const INFO: Duration = Duration::from_millis(500);

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

    /// Asks a node for its entry in the list of nodes, with its load.
    pub async fn info(&self, node: &NodeId) -> Result<NodeInfo, Refusal> {
        self.ask(node, NodeVerb::Info, &Empty {}, INFO, Code::Unavailable)
            .await
    }

    /// Asks a node to host an agent, and returns where the agent runs.
    pub async fn host(&self, node: &NodeId, request: &HostAgent) -> Result<Hosted, Refusal> {
        self.ask(node, NodeVerb::Host, request, HOST, Code::Unavailable)
            .await
    }

    /// Notifies a node that rows of an agent that it hosts have changed in SQL.
    pub async fn wake(&self, node: &NodeId, wake: &Wake) -> Result<(), Refusal> {
        let Empty {} = self
            .ask(node, NodeVerb::Wake, wake, WAKE, Code::Unavailable)
            .await?;
        Ok(())
    }

    /// Asks a node to stop those members of a team that it hosts.
    pub async fn stop_team(
        &self,
        node: &NodeId,
        order: &StopTeam,
        patience: Duration,
    ) -> Result<StoppedTeam, Refusal> {
        let verb = NodeVerb::StopTeam;
        self.ask(node, verb, order, patience, Code::Unavailable)
            .await
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
    /// command and does not pass it on again. If it is unknown whether that node performed a
    /// command that is not idempotent, the refusal is `outcome_unknown`, so that the client does
    /// not send the command again.
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
        let if_unclear = match is_idempotent(address) {
            true => Code::Unavailable,
            false => Code::OutcomeUnknown,
        };
        self.ask(node, NodeVerb::Relay, &relay, patience, if_unclear)
            .await
    }

    /// Sends a request to a node, and returns the answer. `if_unclear` is the code of the refusal
    /// if the node may have performed the request, although it did not answer.
    async fn ask<T: DeserializeOwned>(
        &self,
        node: &NodeId,
        verb: NodeVerb,
        body: &impl Serialize,
        patience: Duration,
        if_unclear: Code,
    ) -> Result<T, Refusal> {
        let address = Address::node(node, verb.name());
        let answer = tokio::select! {
            biased;
            answer = self.bus.request(&address, json(body).into(), patience) => answer,
            () = self.until_silent_for_good(node) => {
                let why = format!(
                    "node {node} was gone before it answered; it may have done what it was asked"
                );
                return Err(Refusal::new(if_unclear, why));
            }
        };
        let answer = answer.map_err(|error| unanswered(node, &error, if_unclear))?;
        reply::decode(&answer).map_err(|error| match error {
            ReplyError::Refused(refusal) => refusal,
            ReplyError::Foreign | ReplyError::Malformed(_) => {
                Refusal::new(if_unclear, format!("node {node}: {error}"))
            }
        })
    }

    async fn until_silent_for_good(&self, node: &NodeId) {
        self.liveness.until_gone(node).await;
        tokio::time::sleep(LAST_WORDS).await;
    }
}

fn unanswered(node: &NodeId, error: &BusError, if_unclear: Code) -> Refusal {
    let why = format!("node {node} does not answer: {error}");
    match error {
        BusError::TooLarge { .. } => Refusal::new(Code::TooLarge, error.to_string()),
        BusError::TimedOut { .. } | BusError::Away(_) | BusError::Ended => Refusal::new(
            if_unclear,
            format!("{why}; it may have done what it was asked"),
        ),
        BusError::NoResponders(_) | BusError::Denied(_) | BusError::Unfit(_) => {
            Refusal::unavailable(why)
        }
    }
}

/// Returns whether a client may send a command again although the first try may have been
/// performed.
fn is_idempotent(address: &Address) -> bool {
    match &address.target {
        Target::Agent(_) => AgentVerb::find(&address.verb).is_none_or(AgentVerb::is_idempotent),
        Target::Session(_) => {
            SessionVerb::find(&address.verb).is_none_or(SessionVerb::is_idempotent)
        }
        Target::Node(_)
        | Target::Sessions
        | Target::Nodes
        | Target::Teams
        | Target::Models
        | Target::Sidecars => true,
    }
}
