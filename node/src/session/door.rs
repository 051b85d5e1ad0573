//! How many agents a node takes in: those that are here and those that are on their way in are
//! within its capacity.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use planck_common::AgentId;

/// A cheap handle.
#[derive(Debug, Clone, Default)]
pub struct Door(Arc<Mutex<Arriving>>);

#[derive(Debug, Default)]
struct Arriving {
    places: u32,
    /// Who is on the way in, each with how often, and whether somebody asked for it meanwhile.
    agents: HashMap<AgentId, (u32, bool)>,
}

impl Arriving {
    /// Gives a place back; whether somebody asked for the agent.
    fn leave(&mut self, agent: &AgentId) -> bool {
        self.places = self.places.saturating_sub(1);
        let Some((times, asked_for)) = self.agents.get_mut(agent) else {
            return false;
        };
        *times = times.saturating_sub(1);
        let (is_last, asked_for) = (*times == 0, *asked_for);
        if is_last {
            self.agents.remove(agent);
        }
        asked_for
    }
}

/// A place that is kept until the agent is in, or does not come.
#[derive(Debug)]
pub struct Guest {
    door: Door,
    agent: AgentId,
    is_in: bool,
}

impl Door {
    /// How many are on their way in.
    pub fn arriving(&self) -> u32 {
        self.lock().places
    }

    /// Keeps a place if there is one: `inside` tells how many are here.
    pub fn enter(
        &self,
        agent: &AgentId,
        capacity: u32,
        inside: impl FnOnce() -> usize,
    ) -> Option<Guest> {
        let mut arriving = self.lock();
        let taken = u32::try_from(inside())
            .unwrap_or(u32::MAX)
            .saturating_add(arriving.places);
        if taken >= capacity {
            return None;
        }
        arriving.places += 1;
        arriving.agents.entry(agent.clone()).or_default().0 += 1;
        Some(Guest {
            door: self.clone(),
            agent: agent.clone(),
            is_in: false,
        })
    }

    /// Asks for an agent that may be on its way in; whether it is. It hears of it once it is in.
    pub fn ask_for(&self, agent: &AgentId) -> bool {
        self.lock()
            .agents
            .get_mut(agent)
            .map(|(_, asked_for)| *asked_for = true)
            .is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Arriving> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest {
    /// The agent comes in; nobody sees it counted twice or not at all. Whether somebody asked for
    /// it meanwhile.
    pub fn comes_in(mut self, start: impl FnOnce()) -> bool {
        self.is_in = true;
        let mut arriving = self.door.lock();
        start();
        arriving.leave(&self.agent)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if !self.is_in {
            self.door.lock().leave(&self.agent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_kept_and_given_back() {
        let door = Door::default();
        let mut inside = 0;
        let one = door.enter(&AgentId::mint(), 2, || inside).unwrap();
        let other = door.enter(&AgentId::mint(), 2, || inside).unwrap();
        assert!(door.enter(&AgentId::mint(), 2, || inside).is_none());
        drop(other);
        assert_eq!(door.arriving(), 1);
        one.comes_in(|| inside += 1);
        assert_eq!((door.arriving(), inside), (0, 1));
        assert!(door.enter(&AgentId::mint(), 2, || inside).is_some());
        assert!(door.enter(&AgentId::mint(), 1, || inside).is_none());
    }

    #[test]
    fn who_is_asked_for_on_the_way_in_hears_of_it() {
        let (door, agent) = (Door::default(), AgentId::mint());
        let enter = || door.enter(&agent, 9, || 0).unwrap();
        assert!(!door.ask_for(&agent));
        let (one, again) = (enter(), enter());
        assert!(door.ask_for(&agent));
        drop(one);
        assert!(again.comes_in(|| {}));
        assert!(!door.ask_for(&agent), "it is in");
        assert!(!enter().comes_in(|| {}));
    }
}
