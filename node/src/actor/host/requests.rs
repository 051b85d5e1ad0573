//! The messages to an actor, and the host's functions that put them into an agent's mailbox and
//! wait for the answers, or that pause and drop agents.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future;
use planck_common::{
    AgentId, InputId,
    command::{AgentInfo, AgentState, Running},
    reply::Refusal,
    spec::{AgentSpec, ModelRef},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tracing::Span;

use super::{Host, HostSlot, LiveActor, NotHere};
use crate::agent::{Command, NewInput};

/// The channel for an answer.
pub type AnswerSender<T> = oneshot::Sender<T>;

pub enum ActorMessage {
    /// Delivers an input that was added to the inbox.
    Deliver {
        input: NewInput,
        outcome: AnswerSender<DeliveryOutcome>,
        /// The span that caused the input. The span of a turn that the input opens is a child of
        /// this span.
        cause: Span,
    },
    /// This unread input was withdrawn from the inbox.
    Withdrawn(InputId),
    /// Asks the agent to read its inbox. The flag is set while such a message is in the mailbox, so
    /// that no second one is sent.
    Look(Arc<AtomicBool>),
    Command {
        command: Command,
        done: AnswerSender<AgentState>,
    },
    Change {
        change: SpecChange,
        done: AnswerSender<Result<Changed, Refusal>>,
    },
    /// The available tools may have changed.
    ToolsMayDiffer,
    /// Asks the agent to leave the node unless leaving would lose or repeat work. If the answer is
    /// `true`, the agent does nothing more and waits to be dropped.
    Leave(AnswerSender<bool>),
    /// Asks the agent to pause once all its decisions are committed and published, because its
    /// history is about to change.
    Pause(ActorPause),
    Info(AnswerSender<AgentInfo>),
    /// Asks for the current spec.
    Spec(AnswerSender<AgentSpec>),
    Snapshot(AnswerSender<(AgentInfo, Option<Running>)>),
}

/// A request to pause an actor.
pub struct ActorPause {
    /// Signals the caller that the pause has begun.
    pub paused: AnswerSender<()>,
    /// Ends the pause when the caller drops its sender.
    pub released: oneshot::Receiver<Infallible>,
}

/// The immediate result of delivering an input to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The input opened a turn, joined the open one, or was queued, or it stays in the inbox
    /// because the node has no permit.
    Taken,
    /// The agent is busy, and the input was not allowed to wait.
    Busy,
}

/// A change of an agent that is recorded in its spec.
#[derive(Debug, Clone)]
pub enum SpecChange {
    AddTool(String),
    RemoveTool(String),
    Model(ModelRef),
}

/// The agent's tools and model after a change.
#[derive(Debug, Clone)]
pub struct Changed {
    pub tools: Vec<String>,
    pub model: ModelRef,
}

impl Host {
    pub async fn deliver(
        &self,
        agent: &AgentId,
        input: NewInput,
    ) -> Result<DeliveryOutcome, NotHere> {
        self.ask(agent, |outcome| ActorMessage::Deliver {
            input,
            outcome,
            cause: Span::current(),
        })
        .await
    }

    pub async fn withdrawn(&self, agent: &AgentId, input: InputId) -> Result<(), NotHere> {
        self.send(agent, ActorMessage::Withdrawn(input)).await
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
        self.send(agent, ActorMessage::Look(is_due)).await
    }

    pub async fn command(&self, agent: &AgentId, command: Command) -> Result<AgentState, NotHere> {
        self.ask(agent, |done| ActorMessage::Command { command, done })
            .await
    }

    /// Sends a command without waiting for its result.
    pub async fn post(&self, agent: &AgentId, command: Command) -> Result<(), NotHere> {
        let (done, _) = oneshot::channel();
        self.send(agent, ActorMessage::Command { command, done })
            .await
    }

    pub async fn change(
        &self,
        agent: &AgentId,
        change: SpecChange,
    ) -> Result<Result<Changed, Refusal>, NotHere> {
        self.ask(agent, |done| ActorMessage::Change { change, done })
            .await
    }

    pub async fn info(&self, agent: &AgentId) -> Result<AgentInfo, NotHere> {
        self.ask(agent, ActorMessage::Info).await
    }

    pub async fn spec(&self, agent: &AgentId) -> Result<AgentSpec, NotHere> {
        self.ask(agent, ActorMessage::Spec).await
    }

    /// Notifies the agents in memory whose tools may have changed. A parked agent gets its current
    /// tools when it is loaded.
    pub async fn tools_changed(&self) {
        let agents: Vec<AgentId> = (self.slots().iter())
            .filter(|(_, slot)| slot.state.live().is_some())
            .map(|(agent, _)| agent.clone())
            .collect();
        for agent in agents {
            let _it_left = self.send(&agent, ActorMessage::ToolsMayDiffer).await;
        }
    }

    pub async fn snapshot(&self, agent: &AgentId) -> Result<(AgentInfo, Option<Running>), NotHere> {
        self.ask(agent, ActorMessage::Snapshot).await
    }

    pub(super) async fn ask<T>(
        &self,
        agent: &AgentId,
        message: impl FnOnce(oneshot::Sender<T>) -> ActorMessage,
    ) -> Result<T, NotHere> {
        let (answer, answered) = oneshot::channel();
        self.send(agent, message(answer)).await?;
        answered.await.map_err(|_| NotHere(agent.clone()))
    }

    /// Puts a message into an agent's mailbox. If the agent has no task, or its task ends at the
    /// same time, a new task starts and gets the message.
    pub(super) async fn send(&self, agent: &AgentId, message: ActorMessage) -> Result<(), NotHere> {
        let mut message = Box::new(message);
        loop {
            let live = self.wake(agent).ok_or_else(|| NotHere(agent.clone()))?;
            match live.mailbox.send(message).await {
                Ok(()) => return Ok(()),
                Err(mpsc::error::SendError(back)) => message = back,
            }
        }
    }
}

/// How long an agent may take to pause.
const PAUSE: Duration = Duration::from_secs(2);

/// Keeps an agent paused. The pause ends when this value is dropped.
pub type PauseGuard = oneshot::Sender<Infallible>;

async fn pause(live: LiveActor) -> Option<PauseGuard> {
    let ((paused, is_paused), (release, released)) = (oneshot::channel(), oneshot::channel());
    live.mailbox
        .send(Box::new(ActorMessage::Pause(ActorPause {
            paused,
            released,
        })))
        .await
        .ok()?;
    is_paused.await.ok().map(|()| release)
}

impl Host {
    /// Drops an agent with its work. Nothing is written, because another node holds the lease or
    /// will take it.
    pub fn drop_agent(&self, agent: &AgentId) {
        self.end(agent);
    }

    /// Drops several agents as [`Self::drop_agent`] does. Returns when all of their work has ended.
    pub async fn drop_agents(&self, agents: &[AgentId]) {
        let ending: Vec<LiveActor> = agents.iter().filter_map(|agent| self.end(agent)).collect();
        for live in ending {
            live.gone.cancelled().await;
        }
    }

    /// Drops an agent that is to move to another node, unless work would be lost or repeated.
    /// Returns whether it was dropped.
    pub async fn leave(&self, agent: &AgentId) -> Result<bool, NotHere> {
        if self
            .take(agent, |slot| slot.state.live().is_none())
            .is_some()
        {
            return Ok(true);
        }
        let may_leave = self.ask(agent, ActorMessage::Leave).await?;
        if may_leave {
            self.drop_agents(std::slice::from_ref(agent)).await;
        }
        Ok(may_leave)
    }

    /// Pauses those agents that have a task, and returns a guard for each paused agent. An agent
    /// pauses once its decisions are committed and published, and stays paused until its guard is
    /// dropped. An agent that does not pause within [`PAUSE`] continues. Its writes are refused once
    /// its lease is taken.
    pub async fn hold(&self, agents: &[AgentId]) -> Vec<PauseGuard> {
        let running: Vec<LiveActor> = {
            let slots = self.slots();
            agents
                .iter()
                .filter_map(|agent| slots.get(agent)?.state.live().cloned())
                .collect()
        };
        let paused =
            future::join_all(running.into_iter().map(|live| timeout(PAUSE, pause(live)))).await;
        paused
            .into_iter()
            .filter_map(|guard| guard.ok().flatten())
            .collect()
    }

    /// Makes the host start no more tasks, because nothing would wait for their end.
    pub fn close(&self) {
        let _settled = self.slots();
        self.0.closed.store(true, Ordering::Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Relaxed)
    }

    /// Drops all agents and waits until their tasks have ended.
    pub async fn shut_down(&self) {
        self.close();
        for agent in self.agents(None) {
            self.drop_agent(&agent);
        }
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    fn end(&self, agent: &AgentId) -> Option<LiveActor> {
        let slot = self.take(agent, |_| true)?;
        slot.state
            .live()
            .cloned()
            .inspect(|live| live.dropped.cancel())
    }

    fn take(&self, agent: &AgentId, if_it: impl FnOnce(&HostSlot) -> bool) -> Option<HostSlot> {
        let mut slots = self.slots();
        slots.get(agent).filter(|slot| if_it(slot))?;
        let slot = slots.remove(agent)?;
        drop(slots);
        self.0.context.notifier.gone(&slot.hosting);
        Some(slot)
    }
}
