//! A cache of the index, so that a process need not read the index for each prompt.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use planck_common::{AgentId, InputId, SessionId};

/// The maximum number of entries of each kind. A full cache is cleared, which only costs a lookup
/// or leaves work to a sweep.
const MOST: usize = 65_536;

#[derive(Debug, Default)]
pub struct IndexCache {
    /// The session of each agent, which never changes.
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

    /// Returns those of the inputs that this process added to the index, and removes them from the
    /// cache.
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
