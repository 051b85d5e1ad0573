//! Admission, which keeps the number of agents that run on this node or are about to start within
//! the node's capacity.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use planck_common::AgentId;

/// The agents that are about to start on this node. Clones share this state.
#[derive(Debug, Clone, Default)]
pub struct Admission(Arc<Mutex<Arrivals>>);

#[derive(Debug, Default)]
struct Arrivals {
    places: u32,
    agents: HashMap<AgentId, Arriving>,
}

#[derive(Debug, Default)]
struct Arriving {
    /// The number of places that concurrent requests hold for this agent.
    requests: u32,
    /// Whether the agent must read its inbox once it has started.
    has_news: bool,
}

impl Arrivals {
    /// Releases a place. Returns whether the agent must read its inbox.
    fn leave(&mut self, agent: &AgentId) -> bool {
        self.places = self.places.saturating_sub(1);
        let Some(arriving) = self.agents.get_mut(agent) else {
            return false;
        };
        arriving.requests = arriving.requests.saturating_sub(1);
        let (is_last, has_news) = (arriving.requests == 0, arriving.has_news);
        if is_last {
            self.agents.remove(agent);
        }
        has_news
    }
}

/// A place that is reserved until the agent has started. Dropping the permit releases the place.
#[derive(Debug)]
pub struct AdmissionPermit {
    admission: Admission,
    agent: AgentId,
    is_used: bool,
}

impl Admission {
    /// Returns how many agents are about to start.
    pub fn arriving(&self) -> u32 {
        self.lock().places
    }

    /// Reserves a place, or returns `None` if the node is full. `inside` returns the number of
    /// agents on this node.
    pub fn enter(
        &self,
        agent: &AgentId,
        capacity: u32,
        inside: impl FnOnce() -> usize,
    ) -> Option<AdmissionPermit> {
        let mut arrivals = self.lock();
        let taken = u32::try_from(inside())
            .unwrap_or(u32::MAX)
            .saturating_add(arrivals.places);
        if taken >= capacity {
            return None;
        }
        Some(self.reserve(&mut arrivals, agent))
    }

    /// Reserves a place for an agent of a new session, also if the node is full.
    pub fn enter_with_session(&self, agent: &AgentId) -> AdmissionPermit {
        self.reserve(&mut self.lock(), agent)
    }

    fn reserve(&self, arrivals: &mut Arrivals, agent: &AgentId) -> AdmissionPermit {
        arrivals.places += 1;
        arrivals.agents.entry(agent.clone()).or_default().requests += 1;
        AdmissionPermit {
            admission: self.clone(),
            agent: agent.clone(),
            is_used: false,
        }
    }

    /// Marks an agent that is about to start, so that it reads its inbox once it has started.
    /// Returns `false` if the agent is not about to start.
    pub fn leave_news(&self, agent: &AgentId) -> bool {
        let mut arrivals = self.lock();
        let arriving = arrivals.agents.get_mut(agent);
        arriving.map(|agent| agent.has_news = true).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Arrivals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmissionPermit {
    /// Starts the agent while the admission is locked, so that the agent is never counted twice or
    /// not at all. Returns whether the agent must read its inbox.
    pub fn use_to_start(mut self, start: impl FnOnce()) -> bool {
        self.is_used = true;
        let mut arrivals = self.admission.lock();
        start();
        arrivals.leave(&self.agent)
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        if !self.is_used {
            self.admission.lock().leave(&self.agent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_reserved_and_released() {
        let admission = Admission::default();
        let mut inside = 0;
        let one = admission.enter(&AgentId::mint(), 2, || inside).unwrap();
        let other = admission.enter(&AgentId::mint(), 2, || inside).unwrap();
        assert!(admission.enter(&AgentId::mint(), 2, || inside).is_none());
        drop(other);
        assert_eq!(admission.arriving(), 1);
        one.use_to_start(|| inside += 1);
        assert_eq!((admission.arriving(), inside), (0, 1));
        assert!(admission.enter(&AgentId::mint(), 2, || inside).is_some());
        assert!(admission.enter(&AgentId::mint(), 1, || inside).is_none());
    }

    #[test]
    fn agent_that_is_about_to_start_is_told_to_check_its_inbox() {
        let (admission, agent) = (Admission::default(), AgentId::mint());
        let enter = || admission.enter(&agent, 9, || 0).unwrap();
        assert!(!admission.leave_news(&agent));
        let (one, again) = (enter(), enter());
        assert!(admission.leave_news(&agent));
        drop(one);
        assert!(again.use_to_start(|| {}));
        assert!(!admission.leave_news(&agent), "it is in");
        assert!(!enter().use_to_start(|| {}));
    }
}
