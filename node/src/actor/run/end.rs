//! Ends the task of an agent and decides what happens to its lease.

use std::sync::Arc;

use planck_common::command::AgentState;
use tokio::sync::mpsc;

use super::{Actor, Leave};
use crate::actor::{
    context::ActorIdentity,
    host::{ActorMessage, StopAck, TaskEnd},
    saving::ActorLost,
};
use planck_toolbox::Toolbox;

impl Actor {
    /// Ends the actor's task once all of its work has ended, including the processes of tools. The
    /// agent's next task on this node must not begin beside them. Releases the agent's lease if the
    /// agent was stopped, or is given up because the store refused its data again.
    pub(in crate::actor) async fn end(
        mut self: Box<Self>,
        ended: Result<Leave, ActorLost>,
        was_refused: bool,
        mut mailbox: mpsc::Receiver<Box<ActorMessage>>,
    ) -> TaskEnd {
        self.work.wind_up().await;
        match ended {
            Ok(Leave::Resting) => {
                tracing::debug!(agent = %self.identity.agent, "resting");
                self.rest();
                TaskEnd::Resting {
                    unread: unread(&mut mailbox),
                    actor: self,
                }
            }
            Ok(Leave::Parked) => TaskEnd::Parked {
                unread: unread(&mut mailbox),
                had: self.had(),
            },
            Ok(Leave::Stopped) => TaskEnd::Gone(self.release().await),
            Err(ActorLost::Dropped) => TaskEnd::Gone(StopAck::to_nobody()),
            // A lost lease is normal: another node took the agent over, rewound or stopped it.
            Err(ActorLost::StaleEpoch) => {
                let ActorIdentity { agent, epoch, .. } = &self.identity;
                tracing::info!(%agent, epoch, "another node holds the agent's lease");
                TaskEnd::Gone(StopAck::to_nobody())
            }
            Err(ActorLost::Unstorable(unstorable)) => {
                // If the store refused data of this agent before, and this save consumed no input
                // that could be refused, loading the agent again could fail in the same way
                // forever.
                match was_refused && unstorable.inputs.is_empty() {
                    true => TaskEnd::Gone(self.give_up(&unstorable.why).await),
                    false => {
                        let why = &*unstorable.why;
                        tracing::warn!(agent = %self.identity.agent, why, "ended a turn: the store refuses its data");
                        TaskEnd::Refused {
                            unread: unread(&mut mailbox),
                            unstorable,
                        }
                    }
                }
            }
            Err(lost @ (ActorLost::Unsaved(_) | ActorLost::Unreadable(_))) => {
                let ActorIdentity { agent, epoch, .. } = &self.identity;
                tracing::warn!(%agent, epoch, %lost, "dropped the agent: it cannot continue on this node");
                TaskEnd::Gone(StopAck::to_nobody())
            }
        }
    }

    /// Returns the agent's tools if they may change before the agent is loaded again, otherwise
    /// `None`.
    pub(in crate::actor) fn had(&self) -> Option<Arc<Toolbox>> {
        self.context
            .tools
            .may_change(self.agent.spec())
            .then(|| Arc::clone(&self.toolbox))
    }

    /// Stops the agent permanently, because the store would refuse its data again. No row about the
    /// end is written to the agent's log. The agent's inputs get the outcome `stopped`, and the
    /// agents that wait for an answer are notified.
    async fn give_up(&mut self, why: &str) -> StopAck {
        let ActorIdentity { session, agent, .. } = &self.identity;
        tracing::error!(%agent, why, "stopped the agent: the store refused its data again after its turn was ended");
        let waiting_inputs = self
            .context
            .store
            .open_inputs(&session.id, agent)
            .await
            .unwrap_or_default();
        let ack = self.release().await;
        let waiting = waiting_inputs
            .into_iter()
            .map(|row| row.input)
            .map(|input| (input.id, input.sender.map(|sender| sender.id)));
        self.context
            .notifier
            .settled(&self.identity, waiting.collect());
        self.context.notifier.gave_up(&self.identity.session.id);
        ack
    }

    async fn release(&mut self) -> StopAck {
        let stopping = self.acks.stopping.take();
        let for_good = stopping.as_ref().is_none_or(|stopping| stopping.for_good);
        if let Err(error) = self.saves.release(for_good).await {
            let agent = &self.identity.agent;
            tracing::warn!(%agent, %error, "cannot release the lease; the next sweep releases it");
        }
        let state = if for_good {
            AgentState::Stopped
        } else {
            AgentState::Idle
        };
        StopAck {
            done: stopping.map(|stopping| stopping.done).unwrap_or_default(),
            state,
        }
    }
}

/// Closes the mailbox, and returns the messages that the actor did not read.
fn unread(mailbox: &mut mpsc::Receiver<Box<ActorMessage>>) -> Vec<ActorMessage> {
    mailbox.close();
    std::iter::from_fn(|| mailbox.try_recv().ok())
        .map(|message| *message)
        .collect()
}
