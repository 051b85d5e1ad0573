//! Builds the toolboxes of agents. The catalogue supplies the node's tools, the tools between
//! agents and those of sidecars. The tools that read skills and the client's tools are built for
//! each agent.

use std::sync::Arc;

use async_trait::async_trait;
use planck_common::spec::AgentSpec;

use crate::{
    actor::ToolboxFactory, late::Late, services::Services, sidecar::Sidecars, team::tool_names,
    team_tools,
};
use planck_toolbox::skill::{self, Skills};
use planck_toolbox::{Tool, ToolCatalogue, Toolbox, outside::OutsideTool};

pub(super) struct NodeToolboxes {
    catalogue: ToolCatalogue,
    skills: Skills,
    sidecars: Sidecars,
}

impl NodeToolboxes {
    /// Creates the factory, and adds the tools between agents to the catalogue.
    pub(super) fn new(
        services: &Late<Services>,
        catalogue: ToolCatalogue,
        skills: Skills,
        sidecars: Sidecars,
        offers_addresses: bool,
    ) -> Self {
        for tool in team_tools::all(services, offers_addresses) {
            if let Err(error) = catalogue.add(tool) {
                tracing::error!(%error, "left out a tool between agents");
            }
        }
        Self {
            catalogue,
            skills,
            sidecars,
        }
    }
}

#[async_trait]
impl ToolboxFactory for NodeToolboxes {
    fn sidecars(&self) -> &Sidecars {
        &self.sidecars
    }

    fn may_change(&self, spec: &AgentSpec) -> bool {
        let of_skills = |name: &String| tool_names::SKILL.contains(&name.as_str());
        spec.tools
            .iter()
            .any(|name| !of_skills(name) && !self.catalogue.is_own(name))
    }

    async fn ready_for(&self, spec: &AgentSpec) {
        if self.may_change(spec) {
            self.sidecars.looked().await;
        }
    }

    fn toolbox(&self, spec: &AgentSpec) -> (Toolbox, Vec<String>) {
        let (readers, others): (Vec<&str>, Vec<&str>) = spec
            .tools
            .iter()
            .map(String::as_str)
            .partition(|name| tool_names::SKILL.contains(name));
        let (toolbox, unknown) = self.catalogue.toolbox(others);
        let unknown = unknown.into_iter().map(|unknown| unknown.name).collect();
        if readers.is_empty() && spec.client_tools.is_empty() {
            return (toolbox, unknown);
        }
        let of_client = spec
            .client_tools
            .iter()
            .map(|tool| Arc::new(OutsideTool::of_client(tool)) as Arc<dyn Tool>);
        let (skills, _) = self.skills.only(spec.skills.iter().map(String::as_str));
        let wanted = |tool: &Arc<dyn Tool>| readers.contains(&tool.spec().name.as_str());
        let own = skill::tools(&skills).into_iter().filter(wanted);
        match toolbox.with(own.chain(of_client)) {
            Ok(toolbox) => (toolbox, unknown),
            Err(error) => {
                tracing::error!(%error, "a tool of the agent has a bad schema");
                (toolbox, unknown)
            }
        }
    }
}
