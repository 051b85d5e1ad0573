//! The names of the tools for team work and for skills, and of the default tools.

pub use planck_toolbox::catalogue::canonical;

/// The tools of an agent whose spec names none.
pub const DEFAULT: [&str; 4] = ["bash", "edit", "read", "write"];

/// The tools that every agent in a team has. An agent that can spawn others has these tools too.
pub const WORKER: [&str; 4] = ["ask_agent", "delegate_task", "list_team", "send_response"];

/// The tools that give an agent access to its skills.
pub const SKILL: [&str; 2] = ["list_skills", "load_skill"];

/// All tools for team work and for skills.
pub use planck_common::permission::SESSION_TOOLS as ALL;

/// The tool that makes an agent an orchestrator.
pub const SPAWN: &str = "spawn_agent";

/// The tools that the default grant of an agent leaves out.
pub const NOT_GRANTED: [&str; 2] = [SPAWN, "destroy_agent"];

/// Returns the canonical names, sorted and without duplicates. A fixed order keeps the provider's
/// prompt cache valid.
pub fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let names: std::collections::BTreeSet<&str> = names.into_iter().map(canonical).collect();
    names.into_iter().map(Into::into).collect()
}
