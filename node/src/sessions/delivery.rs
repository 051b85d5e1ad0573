//! Delivers inputs to agents. An input is already committed in SQL, so a delivery that is lost only
//! delays the input until a sweep finds it.

use planck_common::{
    AgentId, InputId, NodeId, SessionId,
    command::Wake,
    reply::{Code, Refusal},
};

use super::Sessions;
use crate::{
    actor::{DeliveryOutcome, Hosting, Opening, host::NotHere},
    agent::OpenTurn,
};
use planck_store::{AgentRecord, NewInput};

impl Sessions {
    /// Delivers an input that was just committed to its agent. `node` is the agent's host according
    /// to its record. If no living node hosts the agent, this node takes the session over or asks the
    /// session's host to do so, but only a prompt reopens a closed session. Returns `Taken` also if
    /// the agent did not get the input, because a sweep then finds it.
    pub async fn deliver(
        &self,
        session: &SessionId,
        node: Option<NodeId>,
        input: &NewInput,
    ) -> Result<DeliveryOutcome, Refusal> {
        if let Some(outcome) = self.deliver_to_host(session, node, input).await {
            return Ok(outcome);
        }
        // If the record names this node, the agent is just being started or stopped. If the session
        // cannot be taken over now because no node fits, this node is leaving or the store is
        // unreachable, a later sweep finds the input.
        let is_prompt = input.sender.is_none();
        let taken_over = self.take_over_agent(session, &input.agent, is_prompt, "prompted");
        match taken_over.await {
            Err(refusal) if refusal.retryable || self.has_no_place(session).await => {
                tracing::debug!(agent = %input.agent, %refusal, "cannot take over the agent now; the next sweep does");
                Ok(DeliveryOutcome::Taken)
            }
            taken_over => taken_over.map(|()| DeliveryOutcome::Taken),
        }
    }

    /// Returns whether no node can host a session now.
    async fn has_no_place(&self, session: &SessionId) -> bool {
        match self.base.lookup.session(session).await {
            Ok(record) => self.placement.session_host(&record).await.is_err(),
            Err(_) => false,
        }
    }

    /// Delivers an input through the agent's host, which is this node or `node`. Returns `None` if
    /// neither hosts the agent or `node` is gone. Returns `Taken` if a living node does not answer,
    /// because its next sweep finds the input.
    async fn deliver_to_host(
        &self,
        session: &SessionId,
        node: Option<NodeId>,
        input: &NewInput,
    ) -> Option<DeliveryOutcome> {
        let agent = &input.agent;
        if let Ok(outcome) = self.deliver_here(agent, Some(input.clone())).await {
            return Some(outcome);
        }
        let node = node.filter(|node| node != self.base.view.id())?;
        let wake = Wake {
            input_id: Some(input.id.clone()),
            ..Wake::look(session, agent)
        };
        match self.base.peers.wake(&node, &wake).await {
            Ok(()) => Some(DeliveryOutcome::Taken),
            Err(refusal) if refusal.code == Code::Busy => Some(DeliveryOutcome::Busy),
            Err(refusal) => {
                tracing::debug!(%agent, %node, %refusal, "cannot inform the host of the input; its next sweep finds it");
                let is_alive = self.base.view.is_alive(&node).await;
                is_alive.then_some(DeliveryOutcome::Taken)
            }
        }
    }

    /// Makes an agent read its inbox, whichever node hosts it. An agent without a living host is
    /// taken over, unless its session is closed.
    pub async fn wake(&self, session: &SessionId, agent: &AgentId) {
        if self.deliver_here(agent, None).await.is_ok() {
            return;
        }
        if let Err(refusal) = self.wake_elsewhere(session, agent).await {
            tracing::debug!(%agent, %refusal, "cannot wake the agent; the next sweep does");
        }
    }

    async fn wake_elsewhere(&self, session: &SessionId, agent: &AgentId) -> Result<(), Refusal> {
        let record = self.base.lookup.agent(agent).await?;
        if let Some(node) = self.placement.other_host(&record) {
            let woken = self
                .base
                .peers
                .wake(node, &Wake::look(session, agent))
                .await;
            if woken.is_ok() || self.base.view.is_alive(node).await {
                return woken;
            }
        }
        self.take_over_agent(session, agent, false, "woken").await
    }

    /// Notifies an asker that its question has an outcome, if another node hosts the asker. If the
    /// message is lost, the asker finds the outcome the next time it reads the question's row.
    pub async fn tell_answered(&self, session: &SessionId, asker: &AgentId, question: InputId) {
        let sent = async {
            let record = self.base.lookup.agent(asker).await?;
            let Some(node) = self.placement.other_host(&record) else {
                return Ok(());
            };
            let wake = Wake {
                answered: Some(question),
                ..Wake::look(session, asker)
            };
            self.base.peers.wake(node, &wake).await
        };
        let sent: Result<(), Refusal> = sent.await;
        if let Err(refusal) = sent {
            tracing::debug!(%asker, %refusal, "cannot inform the asker of its answer; the asker finds it at its next check");
        }
    }

    /// Notifies an agent that a question to it was withdrawn, so that the agent removes it from its
    /// queue.
    pub async fn tell_withdrawn(&self, target: &AgentRecord, question: &InputId) {
        let sent = match self.placement.other_host(target) {
            Some(node) => {
                let wake = Wake {
                    input_id: Some(question.clone()),
                    ..Wake::look(&target.session, &target.id)
                };
                self.base.peers.wake(node, &wake).await.is_ok()
            }
            None => {
                let sent = self.base.host.withdrawn(&target.id, question.clone()).await;
                sent.is_ok()
            }
        };
        if !sent {
            tracing::debug!(agent = %target.id, %question, "cannot inform the agent of the withdrawn question; it finds out when it reads the question");
        }
    }

    /// Handles the request of another node to wake an agent on this node, whose rows in SQL have
    /// changed.
    pub async fn wake_here(&self, wake: Wake) -> Result<(), Refusal> {
        let Wake {
            session_id,
            agent_id,
            input_id,
            answered,
            exits,
        } = wake;
        if let Some(answered) = &answered {
            self.waiters().settle(answered);
            return Ok(());
        }
        if exits {
            return self.takeover.record_exits(&session_id).await;
        }
        let input = match &input_id {
            Some(input) => self.base.store.input(&session_id, input).await?,
            None => None,
        };
        let agent = &agent_id;
        let delivered = match input {
            Some(row) if row.outcome.is_some() => {
                let withdrawn = self.base.host.withdrawn(agent, row.input.id).await;
                withdrawn.map(|()| DeliveryOutcome::Taken)
            }
            Some(row) => self.deliver_here(agent, Some(row.input)).await,
            None => {
                self.reload_if_superseded(agent).await;
                self.deliver_here(agent, None).await
            }
        };
        match delivered {
            Ok(DeliveryOutcome::Taken) => Ok(()),
            Ok(DeliveryOutcome::Busy) => Err(Refusal::new(Code::Busy, "the agent is busy")),
            Err(gone) => Err(Refusal::not_found(gone.to_string())),
        }
    }

    /// Delivers an input to an agent on this node. Without an input, makes the agent read its inbox.
    /// An agent that is about to start here reads its inbox once it has started.
    async fn deliver_here(
        &self,
        agent: &AgentId,
        input: Option<NewInput>,
    ) -> Result<DeliveryOutcome, NotHere> {
        let host = &self.base.host;
        let deliver = async |input| match input {
            Some(input) => host.deliver(agent, input).await,
            None => host.look(agent).await.map(|()| DeliveryOutcome::Taken),
        };
        match deliver(input.clone()).await {
            Err(_) if self.placement.local().admission().leave_news(agent) => {
                Ok(DeliveryOutcome::Taken)
            }
            // The agent may have started between the two checks.
            Err(_) => deliver(input).await,
            delivered => delivered,
        }
    }

    /// Compares the epoch of an agent on this node with the epoch in SQL. A later epoch means that
    /// another node rewound the session or took the lease. This function then loads the agent
    /// again, or drops it if it was stopped or this node no longer holds its lease.
    async fn reload_if_superseded(&self, agent: &AgentId) {
        let Some(hosting) = self.base.host.hosting(agent) else {
            return;
        };
        let Ok(Some(record)) = self.base.store.find_agent(agent).await else {
            return;
        };
        if record.epoch <= hosting.epoch {
            return;
        }
        if record.is_there() && record.node.as_ref() == Some(self.base.view.id()) {
            self.reload(hosting, record.epoch);
        } else {
            self.base.host.drop_agent(agent);
        }
    }

    /// Loads an agent on this node again under a later epoch.
    pub(super) fn reload(&self, hosting: Hosting, epoch: i64) {
        let opening = Opening {
            open_turn: OpenTurn::Close,
            ..Opening::default()
        };
        self.base.host.start(Hosting {
            epoch,
            opening,
            ..hosting
        });
    }
}
