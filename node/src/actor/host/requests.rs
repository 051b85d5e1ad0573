//! Passes requests to an agent's mailbox, and waits for the actor's answers.

use std::sync::atomic::Ordering;

use planck_common::{
    AgentId, InputId,
    command::{AgentInfo, AgentState, Running},
    reply::Refusal,
    spec::AgentSpec,
};
use tokio::sync::{mpsc, oneshot};
use tracing::Span;

use super::{Host, NotHere, slot::HostSlot};
use crate::{
    actor::mail::{Changed, DeliveryOutcome, Mail, SpecChange},
    agent::{Command, NewInput},
};

impl Host {
    pub async fn deliver(
        &self,
        agent: &AgentId,
        input: NewInput,
    ) -> Result<DeliveryOutcome, NotHere> {
        self.ask(agent, |outcome| Mail::Deliver {
            input,
            outcome,
            cause: Span::current(),
        })
        .await
    }

    pub async fn withdrawn(&self, agent: &AgentId, input: InputId) -> Result<(), NotHere> {
        self.send(agent, Mail::Withdrawn(input)).await
    }

    /// Makes an agent read its inbox. Further calls have no effect until the agent handles this
    /// request.
    pub async fn look(&self, agent: &AgentId) -> Result<(), NotHere> {
        let is_due = self
            .wake(agent)
            .ok_or_else(|| NotHere(agent.clone()))?
            .look_is_due;
        if is_due.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.send(agent, Mail::Look(is_due)).await
    }

    pub async fn command(&self, agent: &AgentId, command: Command) -> Result<AgentState, NotHere> {
        self.ask(agent, |done| Mail::Command { command, done })
            .await
    }

    /// Sends a command without waiting for its result.
    pub async fn post(&self, agent: &AgentId, command: Command) -> Result<(), NotHere> {
        let (done, _) = oneshot::channel();
        self.send(agent, Mail::Command { command, done }).await
    }

    pub async fn change(
        &self,
        agent: &AgentId,
        change: SpecChange,
    ) -> Result<Result<Changed, Refusal>, NotHere> {
        self.ask(agent, |done| Mail::Change { change, done }).await
    }

    pub async fn info(&self, agent: &AgentId) -> Result<AgentInfo, NotHere> {
        self.ask(agent, Mail::Info).await
    }

    pub async fn spec(&self, agent: &AgentId) -> Result<AgentSpec, NotHere> {
        self.ask(agent, Mail::Spec).await
    }

    /// Notifies the agents in memory whose tools may have changed. A parked agent gets its current
    /// tools when it is loaded.
    pub async fn tools_changed(&self) {
        let concerned = |(agent, slot): (&AgentId, &HostSlot)| {
            slot.stage.may_have_other_tools().then(|| agent.clone())
        };
        let agents: Vec<AgentId> = self.slots().iter().filter_map(concerned).collect();
        for agent in agents {
            let _it_left = self.send(&agent, Mail::ToolsMayDiffer).await;
        }
    }

    pub async fn snapshot(&self, agent: &AgentId) -> Result<(AgentInfo, Option<Running>), NotHere> {
        self.ask(agent, Mail::Snapshot).await
    }

    pub(super) async fn ask<T>(
        &self,
        agent: &AgentId,
        mail: impl FnOnce(oneshot::Sender<T>) -> Mail,
    ) -> Result<T, NotHere> {
        let (answer, answered) = oneshot::channel();
        self.send(agent, mail(answer)).await?;
        answered.await.map_err(|_| NotHere(agent.clone()))
    }

    /// Puts a message into an agent's mailbox. If the agent has no task, or its task ends at the
    /// same time, a new task starts and gets the message.
    pub(super) async fn send(&self, agent: &AgentId, mail: Mail) -> Result<(), NotHere> {
        let mut mail = Box::new(mail);
        loop {
            let live = self.wake(agent).ok_or_else(|| NotHere(agent.clone()))?;
            match live.mail.send(mail).await {
                Ok(()) => return Ok(()),
                Err(mpsc::error::SendError(back)) => mail = back,
            }
        }
    }
}
