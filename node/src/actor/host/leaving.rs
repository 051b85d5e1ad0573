//! Drops agents with their work, drops agents that lose no work, pauses agents, and shuts the host
//! down.

use std::{convert::Infallible, sync::atomic::Ordering, time::Duration};

use futures_util::future;
use planck_common::AgentId;
use tokio::{sync::oneshot, time::timeout};

use super::{
    Host, NotHere,
    slot::{HostSlot, LiveActor},
};
use crate::actor::mail::{ActorPause, Mail};

/// How long an agent may take to pause.
const HOLD: Duration = Duration::from_secs(2);

/// Keeps an agent paused. The pause ends when this value is dropped.
pub type PauseGuard = oneshot::Sender<Infallible>;

async fn hold(live: LiveActor) -> Option<PauseGuard> {
    let ((held, is_held), (release, released)) = (oneshot::channel(), oneshot::channel());
    live.mail
        .send(Box::new(Mail::Hold(ActorPause { held, released })))
        .await
        .ok()?;
    is_held.await.ok().map(|()| release)
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
            .take(agent, |slot| slot.stage.live().is_none())
            .is_some()
        {
            return Ok(true);
        }
        let may_leave = self.ask(agent, Mail::Leave).await?;
        if may_leave {
            self.drop_agents(std::slice::from_ref(agent)).await;
        }
        Ok(may_leave)
    }

    /// Pauses those agents that have a task, and returns a guard for each paused agent. An agent
    /// pauses once its decisions are committed and published, and stays paused until its guard is
    /// dropped. An agent that does not pause within [`HOLD`] continues. Its writes are refused once
    /// its lease is taken.
    pub async fn hold(&self, agents: &[AgentId]) -> Vec<PauseGuard> {
        let running: Vec<LiveActor> = {
            let slots = self.slots();
            agents
                .iter()
                .filter_map(|agent| slots.get(agent)?.stage.live().cloned())
                .collect()
        };
        let held =
            future::join_all(running.into_iter().map(|live| timeout(HOLD, hold(live)))).await;
        held.into_iter()
            .filter_map(|held| held.ok().flatten())
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
        slot.stage
            .live()
            .cloned()
            .inspect(|live| live.dropped.cancel())
    }

    fn take(&self, agent: &AgentId, if_it: impl FnOnce(&HostSlot) -> bool) -> Option<HostSlot> {
        let mut slots = self.slots();
        slots.get(agent).filter(|slot| if_it(slot))?;
        let slot = slots.remove(agent)?;
        drop(slots);
        self.0.parts.notifier.gone(&slot.hosting);
        Some(slot)
    }
}
