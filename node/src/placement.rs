//! Placement: chooses the node that hosts an agent, and starts agents on this node. Every request
//! to start an agent on this node goes through [`Placement::host_agent`], whichever node sent it.
//! Admission keeps the number of agents within the node's capacity.

mod choice;
mod hosting;
mod spawn_batcher;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use planck_cluster::heartbeat::NodeLoad;
use planck_common::{
    AgentId, Timestamp,
    command::{NodeInfo, NodeState},
    reply::{Code, Refusal},
};
use planck_providers::Llm;
use serde_json::{Map, Value};
use spawn_batcher::SpawnBatcher;

use crate::{handles::ServiceHandles, team_registry::TeamRegistry};

pub use choice::wanted;

pub(crate) use choice::{AgentNodes, TRIES, is_of_that_node};
pub(crate) use hosting::claim_request;

/// The service that chooses nodes for agents, and starts the agents for which this node is chosen.
pub struct Placement {
    handles: ServiceHandles,
    local: LocalNode,
    teams: Arc<TeamRegistry>,
    batcher: SpawnBatcher,
}

impl Placement {
    pub fn new(handles: ServiceHandles, local: LocalNode, teams: Arc<TeamRegistry>) -> Self {
        Self {
            handles,
            local,
            teams,
            batcher: SpawnBatcher::default(),
        }
    }

    /// Returns this node as a host of agents.
    pub fn local(&self) -> &LocalNode {
        &self.local
    }
}

/// This node as a host of agents.
pub struct LocalNode {
    handles: ServiceHandles,
    models: Arc<Llm>,
    name: String,
    labels: Map<String, Value>,
    /// The maximum number of agents that the node hosts.
    capacity: u32,
    admission: StartingAgents,
    started_at: Timestamp,
}

impl LocalNode {
    pub fn new(
        handles: ServiceHandles,
        models: Arc<Llm>,
        name: String,
        labels: Map<String, Value>,
        capacity: u32,
    ) -> Self {
        Self {
            handles,
            models,
            name,
            labels,
            capacity,
            admission: StartingAgents::default(),
            started_at: Timestamp::now(),
        }
    }

    /// Returns the entry of this node in the list of nodes.
    pub fn info(&self) -> NodeInfo {
        let NodeLoad { agents, running } = self.load();
        NodeInfo {
            id: self.handles.view.id().clone(),
            name: self.name.clone(),
            state: self.state(),
            version: env!("CARGO_PKG_VERSION").into(),
            labels: self.labels.clone(),
            capacity: self.capacity,
            agents,
            running,
            workspaces: self.handles.lookup.workspaces().names(),
            providers: self.models.available(),
            started_at: self.started_at,
            silent_ms: 0,
        }
    }

    /// Returns the number of agents that are on this node or about to start, and how many of them
    /// have an open turn.
    pub fn load(&self) -> NodeLoad {
        let (agents, running) = self.handles.host.load();
        let count = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        NodeLoad {
            agents: count(agents).saturating_add(self.admission.arriving()),
            running: count(running),
        }
    }

    /// Returns this node as a candidate for placement. It says that it accepts agents unless it
    /// leaves, because [`admit`](Self::admit) checks the rest.
    pub fn candidate(&self) -> NodeInfo {
        let state = match self.handles.host.is_closed() {
            true => NodeState::Draining,
            false => NodeState::Alive,
        };
        NodeInfo {
            state,
            ..self.info()
        }
    }

    /// Fails if this node is leaving, draining or suspended, because such a node accepts no new
    /// work.
    pub fn check_accepts_work(&self) -> Result<(), Refusal> {
        let why = if self.handles.host.is_closed() {
            "leaving"
        } else if self.handles.view.draining().is_cancelled() {
            "draining"
        } else if self.handles.view.is_suspended() {
            "suspended: it does not reach its cluster"
        } else {
            return Ok(());
        };
        let id = self.handles.view.id();
        Err(Refusal::unavailable(format!("node {id} is {why}")))
    }

    /// Reserves a place for an agent. Fails if this node accepts no new work or is full, which the
    /// node that chose this one may not have known yet.
    pub fn admit(&self, agent: &AgentId) -> Result<AdmissionPermit, Refusal> {
        self.check_accepts_work()?;
        let capacity = self.capacity;
        let permit = self
            .admission
            .enter(agent, capacity, || self.handles.host.load().0);
        permit.ok_or_else(|| {
            let id = self.handles.view.id();
            let what = format!("node {id} hosts {capacity} agents, its capacity");
            Refusal::new(Code::Limit, what)
        })
    }

    /// Returns the agents that are about to start.
    pub fn admission(&self) -> &StartingAgents {
        &self.admission
    }

    fn state(&self) -> NodeState {
        if self.handles.view.is_suspended() {
            NodeState::Suspended
        } else if self.handles.view.draining().is_cancelled() {
            NodeState::Draining
        } else {
            NodeState::Alive
        }
    }
}

/// The agents that are about to start on this node. Clones share this state.
#[derive(Debug, Clone, Default)]
pub struct StartingAgents(Arc<Mutex<Arrivals>>);

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
    admission: StartingAgents,
    agent: AgentId,
    is_used: bool,
}

impl StartingAgents {
    /// Returns how many agents are about to start.
    fn arriving(&self) -> u32 {
        self.lock().places
    }

    /// Reserves a place, or returns `None` if the node is full. `inside` returns the number of
    /// agents on this node.
    fn enter(
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
mod tests;
