//! What a process remembers of the index, so that it need not read it for each prompt.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use planck_common::{AgentId, InputId, SessionId};

/// The most entries of each kind. When there are more, all are forgotten, which costs a lookup or a
/// sweep.
const MOST: usize = 65_536;

#[derive(Debug, Default)]
pub struct IndexCache {
    /// The session of an agent, which never changes.
    sessions: Mutex<HashMap<AgentId, SessionId>>,
    announced: Mutex<HashSet<InputId>>,
}

impl IndexCache {
    pub fn session_of(&self, agent: &AgentId) -> Option<SessionId> {
        lock(&self.sessions).get(agent).cloned()
    }

    pub fn belongs(&self, agent: &AgentId, session: &SessionId) {
        let mut sessions = lock(&self.sessions);
        if sessions.len() >= MOST {
            sessions.clear();
        }
        sessions.insert(agent.clone(), session.clone());
    }

    pub fn announced<'a>(&self, inputs: impl Iterator<Item = &'a InputId>) {
        let mut announced = lock(&self.announced);
        if announced.len() >= MOST {
            announced.clear();
        }
        announced.extend(inputs.cloned());
    }

    /// Returns those inputs that this process announced, and forgets them.
    pub fn take_announced<'a>(&self, inputs: &[&'a InputId]) -> Vec<&'a InputId> {
        let mut announced = lock(&self.announced);
        inputs
            .iter()
            .copied()
            .filter(|input| announced.remove(*input))
            .collect()
    }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
