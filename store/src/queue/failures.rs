//! Tracks which failures the writer of each agent's saves knows of. A save that was submitted
//! before its writer knew of a failure was built on the failed save.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use planck_common::AgentId;

use super::AppendError;

/// A failure and its number. Numbers rise with each failure, but the failure of an agent that is
/// not enrolled has the number 0.
#[derive(Debug, Clone)]
pub struct SaveFailure {
    pub number: u64,
    pub error: AppendError,
}

/// The number of the latest failure that each agent's writer knows of. Agents whose writer knows of
/// no failure have no entry.
#[derive(Debug, Default)]
pub struct Failures {
    known: Mutex<HashMap<AgentId, u64>>,
}

impl Failures {
    /// Returns the number of the latest failure that the agent's writer knows of, or 0 if there is
    /// none.
    pub fn known_of(&self, agent: &AgentId) -> u64 {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(agent)
            .copied()
            .unwrap_or(0)
    }

    pub fn is_known(&self, agent: &AgentId, number: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = known.entry(agent.clone()).or_default();
        *latest = number.max(*latest);
    }

    pub fn forget(&self, agent: &AgentId) {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(agent);
    }
}
