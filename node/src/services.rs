//! The services of a node, built in the order of their dependencies.

#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::task::TaskTracker;

use crate::{
    actor::Host,
    base::Base,
    bus::Bus,
    lookup::Lookup,
    peers::Peers,
    placement::{LocalNode, Placement, PlacementParts},
    sessions::{Sessions, SessionsLimits, SessionsParts},
    sidecar::Sidecars,
    takeover::{Takeover, TakeoverParts, TakeoverSettings},
    team::TeamLibrary,
    team_registry::TeamRegistry,
    workspace::Workspaces,
};
use planck_cluster::{decisions::Decisions, registry::ClusterRegistry, view::ClusterView};
use planck_providers::Llm;
use planck_store::SessionStore;

/// The services of a node and the resources that they share.
pub struct Services {
    pub view: Arc<ClusterView>,
    pub bus: Arc<dyn Bus>,
    pub store: Arc<dyn SessionStore>,
    pub lookup: Lookup,
    pub host: Host,
    pub models: Arc<Llm>,
    pub sidecars: Sidecars,
    pub library: Arc<TeamLibrary>,
    pub teams: Arc<TeamRegistry>,
    pub placement: Arc<Placement>,
    pub takeover: Arc<Takeover>,
    pub sessions: Arc<Sessions>,
}

/// The parts from which the services are built.
pub struct ServicesParts {
    pub view: Arc<ClusterView>,
    pub bus: Arc<dyn Bus>,
    pub store: Arc<dyn SessionStore>,
    pub host: Host,
    pub models: Arc<Llm>,
    pub sidecars: Sidecars,
    pub library: TeamLibrary,
    pub workspaces: Workspaces,
    /// The registry, or `None` without a cluster.
    pub registry: Option<ClusterRegistry>,
    pub settings: ServicesSettings,
    /// Tracks the tasks that the services spawn, so that the node can wait for their end.
    pub tasks: TaskTracker,
}

/// The settings of the services.
#[derive(Debug, Clone)]
pub struct ServicesSettings {
    /// The name of the node for people.
    pub name: String,
    pub labels: Map<String, Value>,
    /// The maximum number of agents that the node hosts.
    pub capacity: u32,
    pub takeover: TakeoverSettings,
    pub sessions: SessionsLimits,
}

impl Services {
    pub fn new(parts: ServicesParts) -> Self {
        let ServicesParts { view, bus, .. } = parts;
        let library = Arc::new(parts.library);
        let decisions = Decisions::new(Arc::clone(&bus), view.id().clone());
        let base = Base {
            peers: Arc::new(Peers::new(Arc::clone(&bus), Arc::clone(view.liveness()))),
            lookup: Lookup::new(Arc::clone(&parts.store), parts.workspaces),
            view,
            store: parts.store,
            host: parts.host,
        };
        let teams = Arc::new(TeamRegistry::new(
            &base,
            parts.registry,
            decisions.clone(),
            parts.tasks.clone(),
        ));
        let placement = Arc::new(Placement::new(PlacementParts {
            local: LocalNode::new(
                &base,
                Arc::clone(&parts.models),
                parts.settings.name,
                parts.settings.labels,
                parts.settings.capacity,
            ),
            base: base.clone(),
            teams: Arc::clone(&teams),
            tasks: parts.tasks,
        }));
        let takeover = Arc::new(Takeover::new(TakeoverParts {
            base: base.clone(),
            teams: Arc::clone(&teams),
            placement: Arc::clone(&placement),
            decisions,
            settings: parts.settings.takeover,
        }));
        let sessions = Arc::new(Sessions::new(SessionsParts {
            base: base.clone(),
            bus: Arc::clone(&bus),
            teams: Arc::clone(&teams),
            placement: Arc::clone(&placement),
            takeover: Arc::clone(&takeover),
            library: Arc::clone(&library),
            limits: parts.settings.sessions,
        }));
        Self {
            view: base.view,
            bus,
            store: base.store,
            lookup: base.lookup,
            host: base.host,
            models: parts.models,
            sidecars: parts.sidecars,
            library,
            teams,
            placement,
            takeover,
            sessions,
        }
    }
}
