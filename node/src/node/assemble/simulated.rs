//! Builds the parts of a node of the simulation, which has neither processes nor connections.

use std::sync::Arc;

use planck_common::NodeId;

use super::{AssemblyError, NodeParts, build, library, models, tools, workspaces};
use crate::{
    actor::{Toolboxes, runtimes::Runtimes},
    bus::Bus,
    config::Config,
    node::{Joining, Node, Reapers},
    sidecar::Sidecars,
    team::TeamLibrary,
};
use planck_cluster::{registry::ClusterRegistry, thread::MemberLink};
use planck_providers::{Clients, Llm, LlmOptions, ModelTable, Provider};
use planck_store::SessionStore;
use planck_toolbox::skill::Skills;
use planck_toolbox::{Tool, ToolCatalogue};

/// What a simulation puts in the place of the outside.
pub(crate) struct SimulatedParts {
    pub id: NodeId,
    pub store: Arc<dyn SessionStore>,
    pub bus: Arc<dyn Bus>,
    pub registry: ClusterRegistry,
    pub provider: Arc<dyn Provider>,
    pub tool: Arc<dyn Tool>,
    pub reapers: Arc<dyn Reapers>,
    /// The table of models, which is parsed once for all nodes.
    pub table: ModelTable,
    pub clients: Clients,
}

/// Returns clients that the models of a simulation do not use.
pub(crate) fn unused_clients(config: &Config) -> Clients {
    Clients::new(&models::client(config)).unwrap()
}

pub(crate) fn simulated(config: &Config, own: SimulatedParts) -> Result<Arc<Node>, AssemblyError> {
    let catalogue = ToolCatalogue::default();
    catalogue.add(own.tool)?;
    let sidecars = Sidecars::new(
        Arc::clone(&own.bus),
        catalogue.clone(),
        tools::sidecars(config)?,
    );
    let models = Llm::new(LlmOptions {
        table: Some(own.table),
        ..models::options(config)
    })
    .with_in_process(Some(own.provider));
    let skills = Skills::default();
    let joining = Joining {
        link: MemberLink::Shared {
            bus: Arc::clone(&own.bus),
            registry: own.registry.clone(),
        },
        cluster: config.cluster.clone(),
        registry: own.registry,
        store_address: "simulated".into(),
        reapers: own.reapers,
    };
    let parts = NodeParts {
        workspaces: workspaces(config),
        library: TeamLibrary {
            sources: Vec::new(),
            ..library(config, &skills, &models, Vec::new())
        },
        runtimes: Runtimes::on_this_thread(own.clients),
        toolboxes: Toolboxes {
            catalogue,
            skills,
            sidecars,
            listed: config.tools.listed,
        },
        mcp: crate::node::mcp::McpServers::default(),
        tools_have_network: false,
        joining: Some(joining),
        id: own.id,
        store: own.store,
        bus: own.bus,
        models: Arc::new(models),
    };
    Ok(build(config, parts))
}
