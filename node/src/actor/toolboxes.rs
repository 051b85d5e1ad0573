//! Builds the toolboxes of agents. The catalogue supplies the node's tools, the tools between
//! agents and those of sidecars. The tools that read skills and the client's tools are built for
//! each agent.

use std::sync::Arc;

use planck_common::spec::AgentSpec;

use crate::{sidecar::Sidecars, team::tool_names};
use planck_toolbox::skill::{self, Skills};
use planck_toolbox::{Tool, ToolCatalogue, Toolbox, outside::OutsideTool};

pub struct Toolboxes {
    pub catalogue: ToolCatalogue,
    pub skills: Skills,
    pub sidecars: Sidecars,
}

impl Toolboxes {
    /// Returns whether the agent's spec names tools that are not the node's own and can therefore
    /// appear or disappear.
    pub fn may_change(&self, spec: &AgentSpec) -> bool {
        let of_skills = |name: &String| tool_names::SKILL.contains(&name.as_str());
        spec.tools
            .iter()
            .any(|name| !of_skills(name) && !self.catalogue.is_own(name))
    }

    /// Waits until the first search for sidecars has ended if the agent's spec names a tool that is
    /// not the node's own. The wait has a time limit.
    pub async fn ready_for(&self, spec: &AgentSpec) {
        if self.may_change(spec) {
            self.sidecars.looked().await;
        }
    }

    /// Builds the toolbox of an agent. Also returns the names in the agent's spec that no tool on
    /// this node has.
    pub fn toolbox(&self, spec: &AgentSpec) -> (Toolbox, Vec<String>) {
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
