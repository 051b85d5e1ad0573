//! This node as a host: what it offers, how many agents it accepts, and whether it currently
//! accepts any.

use std::sync::Arc;

use planck_common::{
    AgentId, Timestamp,
    command::{NodeInfo, NodeState},
    reply::{Code, Refusal},
};
use serde_json::{Map, Value};

use super::admission::{Admission, AdmissionPermit};
use crate::base::Base;
use planck_cluster::heartbeat::NodeLoad;
use planck_providers::Llm;

/// This node as a host of agents.
pub struct LocalNode {
    base: Base,
    models: Arc<Llm>,
    name: String,
    labels: Map<String, Value>,
    /// The maximum number of agents that the node hosts.
    capacity: u32,
    admission: Admission,
    started_at: Timestamp,
}

impl LocalNode {
    pub fn new(
        base: Base,
        models: Arc<Llm>,
        name: String,
        labels: Map<String, Value>,
        capacity: u32,
    ) -> Self {
        Self {
            base,
            models,
            name,
            labels,
            capacity,
            admission: Admission::default(),
            started_at: Timestamp::now(),
        }
    }

    /// Returns the entry of this node in the list of nodes.
    pub fn info(&self) -> NodeInfo {
        let NodeLoad { agents, running } = self.load();
        NodeInfo {
            id: self.base.view.id().clone(),
            name: self.name.clone(),
            state: self.state(),
            version: env!("CARGO_PKG_VERSION").into(),
            labels: self.labels.clone(),
            capacity: self.capacity,
            agents,
            running,
            workspaces: self.base.lookup.workspaces().names(),
            providers: self.models.available(),
            started_at: self.started_at,
            silent_ms: 0,
        }
    }

    /// Returns the number of agents that are on this node or about to start, and how many of them
    /// have an open turn.
    pub fn load(&self) -> NodeLoad {
        let (agents, running) = self.base.host.load();
        let count = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        NodeLoad {
            agents: count(agents).saturating_add(self.admission.arriving()),
            running: count(running),
        }
    }

    /// Returns this node as a candidate for placement. It says that it accepts agents unless it
    /// leaves, because [`admit`](Self::admit) checks the rest.
    pub fn candidate(&self) -> NodeInfo {
        let state = match self.base.host.is_closed() {
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
        let why = if self.base.host.is_closed() {
            "leaving"
        } else if self.base.view.draining().is_cancelled() {
            "draining"
        } else if self.base.view.is_suspended() {
            "suspended: it does not reach its cluster"
        } else {
            return Ok(());
        };
        let id = self.base.view.id();
        Err(Refusal::unavailable(format!("node {id} is {why}")))
    }

    /// Reserves a place for an agent. Fails if this node accepts no new work or is full, which the
    /// node that chose this one may not have known yet.
    pub fn admit(&self, agent: &AgentId) -> Result<AdmissionPermit, Refusal> {
        self.check_accepts_work()?;
        let capacity = self.capacity;
        let permit = self
            .admission
            .enter(agent, capacity, || self.base.host.load().0);
        permit.ok_or_else(|| {
            let id = self.base.view.id();
            let what = format!("node {id} hosts {capacity} agents, its capacity");
            Refusal::new(Code::Limit, what)
        })
    }

    /// Returns the agents that are about to start.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    fn state(&self) -> NodeState {
        if self.base.view.is_suspended() {
            NodeState::Suspended
        } else if self.base.view.draining().is_cancelled() {
            NodeState::Draining
        } else {
            NodeState::Alive
        }
    }
}
