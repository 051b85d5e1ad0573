//! Notifies the host of an agent about a new input. The input is already committed in SQL, so a
//! lost notification only delays the input until a sweep finds it.

use std::time::Duration;

use planck_common::{
    AgentId, InputId, NodeId, SessionId,
    command::{Because, SessionState, SessionVerb, Wake},
    event::json,
    reply::{Code, Refusal},
    subject::Address,
};
use serde::de::IgnoredAny;

use super::Sessions;
use crate::{
    actor::{ArrivalOutcome, Hosting, Opening, host::NotHere},
    agent::OpenTurn,
    store::{AgentRecord, NewInput, StoredInput},
    takeover::IfClosed,
};

/// How long the session's host may take to take up the agents that have no host.
const RESUME: Duration = Duration::from_secs(5);

impl Sessions {
    /// Notifies the host of an agent about an input that was just committed. `node` is the host
    /// according to the agent's record. If the agent has no host, this node takes the agent up or
    /// asks the session's host to do so, but only a prompt reopens a closed session. Returns
    /// `Taken` also if the agent was not reached, because a sweep then finds the input.
    pub async fn deliver(
        &self,
        session: &SessionId,
        node: Option<NodeId>,
        input: &NewInput,
    ) -> Result<ArrivalOutcome, Refusal> {
        if let Ok(verdict) = self.reach(&input.agent, Some(input.clone())).await {
            return Ok(verdict);
        }
        match node {
            Some(node) if node != *self.view.id() => {
                self.wake_there(&node, session, &input.agent, &input.id)
                    .await
            }
            // If `node` is this node but the agent is not loaded, the agent is just being started
            // or stopped. If the agent cannot be taken up now because this node is leaving or the
            // store is unreachable, a later sweep finds the input.
            Some(_) | None => {
                let is_prompt = input.sender.is_none();
                match self
                    .take_up_agent(session, &input.agent, is_prompt, "prompted")
                    .await
                {
                    Err(refusal) if refusal.retryable => {
                        tracing::debug!(agent = %input.agent, %refusal, "cannot take up the agent now; the next sweep does");
                        Ok(ArrivalOutcome::Taken)
                    }
                    taken_up => taken_up.map(|()| ArrivalOutcome::Taken),
                }
            }
        }
    }

    /// Makes an agent read its inbox, whichever node hosts it. An agent without a host is taken up,
    /// unless its session is closed.
    pub async fn wake(&self, session: &SessionId, agent: &AgentId) {
        if self.reach(agent, None).await.is_ok() {
            return;
        }
        let woken = async {
            let record = self.lookup.agent(agent).await?;
            match self.placement.other_host(&record) {
                Some(node) => self.peers.wake(node, &Wake::look(session, agent)).await,
                None => self.take_up_agent(session, agent, false, "woken").await,
            }
        };
        let woken: Result<(), Refusal> = woken.await;
        if let Err(refusal) = woken {
            tracing::debug!(%agent, %refusal, "cannot wake the agent; the next sweep does");
        }
    }

    /// Notifies an asker that its question has an outcome, if another node hosts the asker. If the
    /// message is lost, the asker finds the outcome the next time it reads the question's row.
    pub async fn tell_answered(&self, session: &SessionId, asker: &AgentId, question: InputId) {
        let sent = async {
            let record = self.lookup.agent(asker).await?;
            let Some(node) = self.placement.other_host(&record) else {
                return Ok(());
            };
            let wake = Wake {
                answered: Some(question),
                ..Wake::look(session, asker)
            };
            self.peers.wake(node, &wake).await
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
                self.peers.wake(node, &wake).await.is_ok()
            }
            None => {
                let sent = self.host.withdrawn(&target.id, question.clone()).await;
                sent.is_ok()
            }
        };
        if !sent {
            tracing::debug!(agent = %target.id, %question, "cannot inform the agent of the withdrawn question; it finds out when it reads the question");
        }
    }

    /// Handles a notification from another node that rows of an agent on this node have changed in
    /// SQL.
    pub async fn woken(&self, wake: Wake) -> Result<(), Refusal> {
        let Wake {
            session_id,
            agent_id,
            input_id,
            answered,
            exits,
        } = wake;
        if let Some(answered) = &answered {
            self.waiters.settle(answered);
            return Ok(());
        }
        if exits {
            return self.takeover.record_exits(&session_id).await;
        }
        let input = match &input_id {
            Some(input) => self.store.input(&session_id, input).await?,
            None => None,
        };
        match self.arrive(&agent_id, input).await {
            Ok(ArrivalOutcome::Taken) => Ok(()),
            Ok(ArrivalOutcome::Busy) => Err(Refusal::new(Code::Busy, "the agent is busy")),
            Err(gone) => Err(Refusal::not_found(gone.to_string())),
        }
    }

    async fn arrive(
        &self,
        agent: &AgentId,
        input: Option<StoredInput>,
    ) -> Result<ArrivalOutcome, NotHere> {
        match input {
            Some(StoredInput {
                input,
                outcome: Some(_),
                ..
            }) => {
                self.host.withdrawn(agent, input.id).await?;
                Ok(ArrivalOutcome::Taken)
            }
            Some(row) => self.reach(agent, Some(row.input)).await,
            None => {
                self.reload_if_superseded(agent).await;
                self.reach(agent, None).await
            }
        }
    }

    /// Passes an input to an agent on this node. Without an input, makes the agent read its inbox.
    /// An agent that is about to start here reads its inbox once it has started.
    async fn reach(
        &self,
        agent: &AgentId,
        input: Option<NewInput>,
    ) -> Result<ArrivalOutcome, NotHere> {
        match self.tell_here(agent, input.clone()).await {
            Err(_) if self.placement.local().admission().leave_news(agent) => {
                Ok(ArrivalOutcome::Taken)
            }
            // The agent may have started between the two checks.
            Err(_) => self.tell_here(agent, input).await,
            sent => sent,
        }
    }

    async fn tell_here(
        &self,
        agent: &AgentId,
        input: Option<NewInput>,
    ) -> Result<ArrivalOutcome, NotHere> {
        match input {
            Some(input) => self.host.arrive(agent, input).await,
            None => self.host.look(agent).await.map(|()| ArrivalOutcome::Taken),
        }
    }

    /// Compares the epoch of an agent on this node with the epoch in SQL. A later epoch means that
    /// another node rewound the session or took the lease. This function then loads the agent
    /// again, or drops it if it was stopped or this node no longer holds its lease.
    async fn reload_if_superseded(&self, agent: &AgentId) {
        let Some(hosting) = self.host.hosting(agent) else {
            return;
        };
        let Ok(Some(record)) = self.store.find_agent(agent).await else {
            return;
        };
        if record.epoch <= hosting.epoch {
            return;
        }
        if record.is_there() && record.node.as_ref() == Some(self.view.id()) {
            let opening = Opening {
                open_turn: OpenTurn::Close,
                ..Opening::default()
            };
            self.host.start(Hosting {
                epoch: record.epoch,
                opening,
                ..hosting
            });
        } else {
            self.host.drop_agent(agent);
        }
    }

    /// Takes up the agents of a session that have no host, on this node or by asking the session's
    /// host. Does nothing if the session is closed, unless `may_open`. If the session's host fails
    /// to take the agents up, leaves that to its next sweep.
    async fn take_up_agent(
        &self,
        session: &SessionId,
        agent: &AgentId,
        may_open: bool,
        reason: &str,
    ) -> Result<(), Refusal> {
        let record = self.lookup.session(session).await?;
        if record.state == SessionState::Closed && !may_open {
            return Ok(());
        }
        let Some(host) = self.placement.session_host(&record).await? else {
            let if_closed = if may_open {
                IfClosed::Open
            } else {
                IfClosed::Leave
            };
            return self.takeover.take_up(&record.id, reason, if_closed).await;
        };
        let address = Address::session(session, SessionVerb::Resume.name());
        let because = Because {
            reason: Some(reason.to_owned()),
        };
        let resumed: Result<IgnoredAny, Refusal> = self
            .peers
            .relay(&host, &address, json(&because).as_bytes(), RESUME)
            .await;
        if let Err(refusal) = resumed {
            tracing::debug!(%agent, %host, %refusal, "the session's host did not take the agent up; its next sweep does");
        }
        Ok(())
    }

    async fn wake_there(
        &self,
        node: &NodeId,
        session: &SessionId,
        agent: &AgentId,
        input: &InputId,
    ) -> Result<ArrivalOutcome, Refusal> {
        let wake = Wake {
            input_id: Some(input.clone()),
            ..Wake::look(session, agent)
        };
        match self.peers.wake(node, &wake).await {
            Ok(()) => Ok(ArrivalOutcome::Taken),
            Err(refusal) if refusal.code == Code::Busy => Ok(ArrivalOutcome::Busy),
            Err(refusal) => {
                tracing::debug!(%agent, %node, %refusal, "cannot inform the host of the input; its next sweep finds it");
                Ok(ArrivalOutcome::Taken)
            }
        }
    }
}
