//! Makes an agent's toolbox of all the tools there are: those of the node, those that read its
//! skills, and those with which it reaches its team.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use planck_common::spec::AgentSpec;

use super::Node;
use crate::{
    actor::Toolsmith,
    sidecar::Sidecars,
    skill::{self, Skills},
    team,
    tools::{Catalogue, Tool, Toolbox},
};

pub(super) struct NodeTools {
    catalogue: Catalogue,
    skills: Skills,
    sidecars: Sidecars,
}

impl NodeTools {
    /// The tools between agents come into the same catalogue.
    pub(super) fn new(
        node: &Weak<Node>,
        catalogue: Catalogue,
        skills: Skills,
        sidecars: Sidecars,
        offers_addresses: bool,
    ) -> Self {
        for tool in team::tools::all(node, offers_addresses) {
            if let Err(error) = catalogue.add(tool) {
                tracing::error!(%error, "a tool of the team is left out");
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
impl Toolsmith for NodeTools {
    fn sidecars(&self) -> &Sidecars {
        &self.sidecars
    }

    fn may_change(&self, spec: &AgentSpec) -> bool {
        let of_skills = |name: &String| team::tool_names::SKILL.contains(&name.as_str());
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
            .partition(|name| team::tool_names::SKILL.contains(name));
        let (toolbox, unknown) = self.catalogue.toolbox(others);
        let unknown = unknown.into_iter().map(|unknown| unknown.name).collect();
        if readers.is_empty() {
            return (toolbox, unknown);
        }
        let (skills, _) = self.skills.only(spec.skills.iter().map(String::as_str));
        let wanted = |tool: &Arc<dyn Tool>| readers.contains(&tool.spec().name.as_str());
        match toolbox.with(skill::tools(&skills).into_iter().filter(wanted)) {
            Ok(toolbox) => (toolbox, unknown),
            Err(error) => {
                tracing::error!(%error, "a tool that reads skills has a bad schema");
                (toolbox, unknown)
            }
        }
    }
}
