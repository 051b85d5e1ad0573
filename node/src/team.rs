//! Teams: the templates that users write, and the resolution of their members into specs that any
//! node can start. This file has the names of the tools for team work and for skills.

pub mod agents_file;
pub mod context;
pub mod resolve;
pub mod template;

pub use context::{KnownModels, TeamContext, TeamLibrary};
pub use planck_common::permission::SESSION_TOOLS;
pub use planck_toolbox::catalogue::canonical;
pub use resolve::{Spawned, resolve, spawn};
pub use template::{
    TeamTemplate, TemplateError, TemplateErrors, TemplateFile, find, inspect, list, load,
};

/// The tools of an agent whose spec names none.
const DEFAULT_TOOLS: [&str; 4] = ["bash", "edit", "read", "write"];

/// The tools that every agent in a team has. An agent that can spawn others has these tools too.
const WORKER_TOOLS: [&str; 4] = ["ask_agent", "delegate_task", "list_team", "send_response"];

/// The tools that give an agent access to its skills.
pub const SKILL_TOOLS: [&str; 2] = ["list_skills", "load_skill"];

/// The tool that makes an agent an orchestrator.
const SPAWN_TOOL: &str = "spawn_agent";

/// The tools that the default grant of an agent leaves out.
const NOT_GRANTED: [&str; 2] = [SPAWN_TOOL, "destroy_agent"];

/// Returns the canonical names, sorted and without duplicates. A fixed order keeps the provider's
/// prompt cache valid.
fn sorted_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let names: std::collections::BTreeSet<&str> = names.into_iter().map(canonical).collect();
    names.into_iter().map(Into::into).collect()
}

#[cfg(test)]
mod tests;
