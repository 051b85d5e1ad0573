//! The ways in which an actor's task ends, and the callers that are notified.

use std::sync::Arc;

use planck_common::command::AgentState;

use crate::{
    actor::{
        mail::{AnswerSender, Mail},
        run::Actor,
    },
    agent::Unstorable,
};
use planck_toolbox::Toolbox;

/// How an actor's task ended. `unread` is the mail that the actor did not read.
pub(in crate::actor) enum TaskEnd {
    /// The agent is idle and needs no task.
    Resting {
        unread: Vec<Mail>,
        actor: Box<Actor>,
    },
    /// The agent was idle for a long time and is unloaded. `had` contains the agent's tools if they
    /// may change before the agent is loaded again.
    Parked {
        unread: Vec<Mail>,
        had: Option<Arc<Toolbox>>,
    },
    /// The store refused the agent's data. The agent is loaded again to end its turn as failed.
    Refused {
        unread: Vec<Mail>,
        unstorable: Unstorable,
    },
    /// The agent was stopped or dropped, another node holds its lease, or it cannot continue on
    /// this node. The callers are notified after the agent's slot is free, so that their next
    /// request finds it free.
    Gone(StopAck),
}

/// The callers that wait for the stop of an agent, and the state that they receive.
pub(in crate::actor) struct StopAck {
    pub(in crate::actor) done: Vec<AnswerSender<AgentState>>,
    pub(in crate::actor) state: AgentState,
}

impl StopAck {
    pub(in crate::actor) fn to_nobody() -> Self {
        Self {
            done: Vec::new(),
            state: AgentState::Stopped,
        }
    }

    pub(super) fn send(self) {
        for done in self.done {
            let _ = done.send(self.state);
        }
    }
}
