//! Drops agents with their work, drops agents that lose no work, pauses agents, and shuts the host
//! down.

use std::{convert::Infallible, sync::atomic::Ordering, time::Duration};

use futures_util::future;
use planck_common::AgentId;
use tokio::{sync::oneshot, time::timeout};

use super::{
    ActorMessage, ActorPause, Host, NotHere,
    slot::{HostSlot, LiveActor},
};

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
