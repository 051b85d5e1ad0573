//! Brings news of an input to whoever holds its agent. The row is in SQL already: a lost wake-up is healed by a sweep.

use std::time::Duration;

use planck_common::{
    AgentId, InputId, NodeId, SessionId,
    command::{NodeVerb, Wake},
    event::json,
    reply::{self, Code, Refusal},
    subject::Address,
};

use crate::{
    actor::Verdict,
    agent::Arrival,
    node::Node,
    store::{AgentRecord, NewInput},
};

/// How long another node has to say that it heard.
const WAKE: Duration = Duration::from_secs(2);

impl Node {
    /// Tells the agent's host of an input that was just put; takes the session up where nobody holds the agent.
    pub(crate) async fn deliver(&self, agent: &AgentRecord, node: Option<NodeId>, input: &NewInput) -> Result<Verdict, Refusal> {
        if let Ok(verdict) = self.host().arrive(&agent.id, Arrival::from(input.clone())).await {
            return Ok(verdict);
        }
        match node {
            Some(node) if node != *self.id() => self.wake_there(&node, &agent.session, &agent.id, &input.id).await,
            // Held here by the record, yet not in the host: it is being stopped or started; the sweep finds what waits.
            Some(_) | None => {
                let session = self.find_session(&agent.session).await?;
                self.take_up(&session, "prompted").await?;
                Ok(Verdict::Taken)
            }
        }
    }

    /// Wakes agents that got an input from one of this node's.
    pub(crate) async fn wake(&self, session: &SessionId, agent: &AgentId) {
        if self.host().look(agent).await.is_ok() {
            return;
        }
        let woken = async {
            let record = self.find_agent(agent).await?;
            match record.node {
                Some(node) if node != *self.id() => {
                    let body = wake(session, agent, None);
                    self.ask_node(&node, NodeVerb::Wake, body).await
                }
                Some(_) | None => {
                    let session = self.find_session(session).await?;
                    self.take_up(&session, "woken").await
                }
            }
        };
        let woken: Result<(), Refusal> = woken.await;
        if let Err(refusal) = woken {
            tracing::debug!(%agent, %refusal, "cannot wake the agent; the sweep will");
        }
    }

    async fn wake_there(&self, node: &NodeId, session: &SessionId, agent: &AgentId, input: &InputId) -> Result<Verdict, Refusal> {
        match self.ask_node(node, NodeVerb::Wake, wake(session, agent, Some(input))).await {
            Ok(()) => Ok(Verdict::Taken),
            Err(refusal) if refusal.code == Code::Busy => Ok(Verdict::Busy),
            Err(refusal) => {
                tracing::debug!(%agent, %node, %refusal, "the host did not hear the wake-up; the sweep heals it");
                Ok(Verdict::Taken)
            }
        }
    }

    async fn ask_node(&self, node: &NodeId, verb: NodeVerb, body: String) -> Result<(), Refusal> {
        let to = Address::node(node, verb.name());
        let answer = self.bus().request(&to, body.into(), WAKE).await.map_err(|error| Refusal::unavailable(error.to_string()))?;
        match reply::decode::<serde::de::IgnoredAny>(&answer) {
            Ok(_) => Ok(()),
            Err(reply::ReplyError::Refused(refusal)) => Err(refusal),
            Err(error) => Err(Refusal::unavailable(error.to_string())),
        }
    }
}

fn wake(session: &SessionId, agent: &AgentId, input: Option<&InputId>) -> String {
    json(&Wake { session_id: session.clone(), agent_id: agent.clone(), input_id: input.cloned(), answered: None })
}
