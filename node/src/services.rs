//! The services of a node, built in the order of their dependencies.

#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::{
    handles::ServiceHandles,
    placement::{LocalNode, Placement},
    sessions::{Sessions, SessionsLimits},
    sidecar::Sidecars,
    takeover::{Takeover, TakeoverSettings},
    team::TeamLibrary,
    team_registry::TeamRegistry,
};
use planck_cluster::registry::ClusterRegistry;
use planck_providers::Llm;

/// The services of a node and the resources that they share.
pub struct Services {
    pub handles: ServiceHandles,
    pub models: Arc<Llm>,
    pub sidecars: Sidecars,
    pub library: Arc<TeamLibrary>,
    pub teams: Arc<TeamRegistry>,
    pub placement: Arc<Placement>,
    pub takeover: Arc<Takeover>,
    pub sessions: Arc<Sessions>,
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
    /// Builds the services. `registry` is `None` without a cluster.
    pub fn new(
        handles: ServiceHandles,
        models: Arc<Llm>,
        sidecars: Sidecars,
        library: TeamLibrary,
        registry: Option<ClusterRegistry>,
        settings: ServicesSettings,
    ) -> Self {
        let library = Arc::new(library);
        let teams = Arc::new(TeamRegistry::new(handles.clone(), registry));
        let placement = Arc::new(Placement::new(
            handles.clone(),
            LocalNode::new(
                handles.clone(),
                Arc::clone(&models),
                settings.name,
                settings.labels,
                settings.capacity,
            ),
            Arc::clone(&teams),
        ));
        let takeover = Arc::new(Takeover::new(
            handles.clone(),
            Arc::clone(&teams),
            Arc::clone(&placement),
            settings.takeover,
        ));
        let sessions = Arc::new(Sessions::new(
            handles.clone(),
            Arc::clone(&teams),
            Arc::clone(&placement),
            Arc::clone(&takeover),
            Arc::clone(&library),
            settings.sessions,
        ));
        Self {
            handles,
            models,
            sidecars,
            library,
            teams,
            placement,
            takeover,
            sessions,
        }
    }
}
