//! The highest epoch with which each agent has called. A call with a lower epoch comes from a
//! fenced node.

use std::collections::{HashMap, VecDeque};

use planck_common::AgentId;

/// The maximum number of agents. The agent that was added first is removed first.
const AGENTS: usize = 10_000;

#[derive(Debug, Default)]
pub struct Epochs {
    highest: HashMap<AgentId, i64>,
    order: VecDeque<AgentId>,
}

impl Epochs {
    /// Records an agent's epoch. Returns the recorded epoch as an error if it is higher.
    pub fn see(&mut self, agent: &AgentId, epoch: i64) -> Result<(), i64> {
        if let Some(highest) = self.highest.get_mut(agent) {
            if epoch < *highest {
                return Err(*highest);
            }
            *highest = epoch;
            return Ok(());
        }
        if self.order.len() >= AGENTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.highest.remove(&oldest);
        }
        self.order.push_back(agent.clone());
        self.highest.insert(agent.clone(), epoch);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_epoch_is_refused_and_memory_is_bounded() {
        let mut epochs = Epochs::default();
        let agent = |number: usize| AgentId::parse(&format!("a{number}")).unwrap();
        assert_eq!(epochs.see(&agent(0), 3), Ok(()));
        assert_eq!(epochs.see(&agent(0), 2), Err(3));
        assert_eq!(epochs.see(&agent(0), 3), Ok(()));
        (1..=AGENTS).for_each(|number| epochs.see(&agent(number), 1).unwrap());
        assert_eq!(epochs.highest.len(), AGENTS);
        assert_eq!(epochs.see(&agent(0), 2), Ok(()), "it was forgotten");
        assert_eq!(epochs.see(&agent(AGENTS), 0), Err(1));
    }
}
