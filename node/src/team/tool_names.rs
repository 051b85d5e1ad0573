//! Names of tools that teams are made of, and the later names that templates and grants may use for
//! them.

pub use crate::tools::catalogue::canonical;

/// What an agent gets that names no tools.
pub const DEFAULT: [&str; 4] = ["bash", "edit", "read", "write"];

/// What every member of a team of more than one has.
pub const WORKER: [&str; 4] = ["ask_agent", "delegate_task", "list_team", "send_response"];

/// What reads an agent's skills.
pub const SKILL: [&str; 2] = ["list_skills", "load_skill"];

/// Every tool with which agents reach their team and read their skills.
pub const ALL: [&str; 10] = [
    "ask_agent",
    "delegate_task",
    "list_team",
    "send_response",
    "spawn_agent",
    "destroy_agent",
    "interrupt_agent",
    "list_models",
    "list_skills",
    "load_skill",
];

/// Its holder is an orchestrator.
pub const SPAWN: &str = "spawn_agent";

/// What is not granted unless a grant names it.
pub const NOT_GRANTED: [&str; 2] = [SPAWN, "destroy_agent"];

/// Known names, sorted, each once: so prompt caches hold.
pub fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let names: std::collections::BTreeSet<&str> = names.into_iter().map(canonical).collect();
    names.into_iter().map(Into::into).collect()
}
