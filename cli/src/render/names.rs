//! The names of agents on the screen.

use std::collections::HashMap;

use planck_common::AgentId;

use planck_host::terminal::clean_line;

/// How many characters of an agent's id are shown if its name is unknown. They are its last ones,
/// because an id begins with the time, and agents that begin together would look the same.
const OF_AN_ID: usize = 8;

#[derive(Debug, Default)]
pub struct AgentNames(HashMap<AgentId, String>);

impl AgentNames {
    pub fn learn(&mut self, agent: &AgentId, name: &str) {
        self.0.insert(agent.clone(), clean_line(name).into_owned());
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn of(&self, agent: &AgentId) -> String {
        self.0.get(agent).cloned().unwrap_or_else(|| {
            let id: &str = agent;
            let from = id.len().saturating_sub(OF_AN_ID);
            clean_line(id.get(from..).unwrap_or(id)).into_owned()
        })
    }

    /// Returns the name of the agent to which the argument of a tool call refers by id or name.
    pub fn of_target(&self, target: &str) -> String {
        let known = AgentId::parse(target)
            .ok()
            .and_then(|id| self.0.get(&id).cloned());
        known.unwrap_or_else(|| clean_line(target).into_owned())
    }
}
