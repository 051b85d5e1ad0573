//! The highest epoch with which each agent has called. A call with a lower epoch comes from a
//! fenced node.

use std::collections::{BTreeMap, HashMap};

use planck_common::AgentId;

/// The maximum number of agents. The agent whose last call is the longest ago is removed first.
const AGENTS: usize = 10_000;

#[derive(Debug, Default)]
pub struct Epochs {
    seen: HashMap<AgentId, Seen>,
    /// The agents by the number of their last call.
    by_call: BTreeMap<u64, AgentId>,
    calls: u64,
}

#[derive(Debug)]
struct Seen {
    highest: i64,
    /// The number of the agent's last call.
    call: u64,
}

impl Epochs {
    /// Records an agent's epoch. Returns the recorded epoch as an error if it is higher.
    pub fn see(&mut self, agent: &AgentId, epoch: i64) -> Result<(), i64> {
        self.calls += 1;
        let call = self.calls;
        match self.seen.get_mut(agent) {
            Some(seen) if epoch < seen.highest => return Err(seen.highest),
            Some(seen) => {
                self.by_call.remove(&seen.call);
                seen.highest = epoch;
                seen.call = call;
            }
            None => {
                let seen = Seen {
                    highest: epoch,
                    call,
                };
                self.seen.insert(agent.clone(), seen);
            }
        }
        self.by_call.insert(call, agent.clone());
        if self.by_call.len() > AGENTS
            && let Some((_, agent)) = self.by_call.pop_first()
        {
            self.seen.remove(&agent);
        }
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
        assert_eq!((epochs.seen.len(), epochs.by_call.len()), (AGENTS, AGENTS));
        assert_eq!(epochs.see(&agent(0), 2), Ok(()), "it was forgotten");
        assert_eq!(epochs.see(&agent(AGENTS), 0), Err(1));
    }

    #[test]
    fn agent_that_calls_is_not_forgotten() {
        let mut epochs = Epochs::default();
        let agent = |number: usize| AgentId::parse(&format!("a{number}")).unwrap();
        epochs.see(&agent(0), 3).unwrap();
        for number in 1..AGENTS {
            epochs.see(&agent(number), 1).unwrap();
        }
        epochs.see(&agent(0), 3).unwrap();
        epochs.see(&agent(AGENTS), 1).unwrap();
        assert_eq!(epochs.see(&agent(0), 2), Err(3));
        assert_eq!(epochs.see(&agent(1), 0), Ok(()), "its call is the oldest");
    }
}
