//! How actors leave their tasks, and who is told.

use std::sync::Arc;

use planck_common::command::AgentState;

use crate::{
    actor::{
        mail::{Answer, Mail},
        run::Actor,
    },
    agent::Unstorable,
    tools::Toolbox,
};

/// How an actor's life came to its end.
pub(in crate::actor) enum Ended {
    /// It is idle, and needs no task; what came while it was leaving.
    Resting {
        unread: Vec<Mail>,
        actor: Box<Actor>,
    },
    /// It was idle for long; what came while it was leaving, and the tools it had, if they may
    /// change meanwhile.
    Parked {
        unread: Vec<Mail>,
        had: Option<Arc<Toolbox>>,
    },
    /// The store refused its data: its turn is to be ended as failed, by the agent that is loaded
    /// again; what came while it was leaving.
    Refused {
        unread: Vec<Mail>,
        unstorable: Unstorable,
    },
    /// It was stopped, or another node holds the lease. Who waits for the end is told when the
    /// agent's place is free, so that what comes next finds it so.
    Gone(Farewell),
}

/// Who waits for an agent's end, and what it ends as.
pub(in crate::actor) struct Farewell {
    pub(in crate::actor) done: Vec<Answer<AgentState>>,
    pub(in crate::actor) state: AgentState,
}

impl Farewell {
    pub(in crate::actor) fn to_nobody() -> Self {
        Self {
            done: Vec::new(),
            state: AgentState::Stopped,
        }
    }

    pub(super) fn tell(self) {
        for done in self.done {
            let _ = done.send(self.state);
        }
    }
}
