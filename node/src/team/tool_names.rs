//! The names of tools with a role in teams, and the current names for older ones that templates and
//! grants may use.

pub use crate::tools::catalogue::canonical;

/// The tools of an agent that names none.
pub const DEFAULT: [&str; 4] = ["bash", "edit", "read", "write"];

/// The tools that every member of a team of more than one has.
pub const WORKER: [&str; 4] = ["ask_agent", "delegate_task", "list_team", "send_response"];

/// The tools that read an agent's skills.
pub const SKILL: [&str; 2] = ["list_skills", "load_skill"];

/// All tools with which agents reach their team and read their skills.
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

/// The tool that makes its holder an orchestrator.
pub const SPAWN: &str = "spawn_agent";

/// The tools that are granted only if a grant names them.
pub const NOT_GRANTED: [&str; 2] = [SPAWN, "destroy_agent"];

/// Returns canonical names, sorted and without duplicates, so that prompt caches stay valid.
pub fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let names: std::collections::BTreeSet<&str> = names.into_iter().map(canonical).collect();
    names.into_iter().map(Into::into).collect()
}
