//! What an agent may hand on to agents it spawns.

use planck_common::spec::Grant;

use super::tool_names::{NOT_GRANTED, canonical, sorted};

/// The named grant in known names; else all that the agent has itself, but for spawning and
/// destroying.
pub fn settle(named: Option<&Grant>, tools: &[String], skills: &[String]) -> Grant {
    match named {
        Some(grant) => Grant {
            tools: sorted(grant.tools.iter().map(String::as_str)),
            skills: sorted(grant.skills.iter().map(String::as_str)),
        },
        None => {
            let tools = tools
                .iter()
                .filter(|name| !NOT_GRANTED.contains(&name.as_str()));
            Grant {
                tools: tools.cloned().collect(),
                skills: skills.to_vec(),
            }
        }
    }
}

/// Splits names into what is granted and what is not.
pub fn divide<'a>(
    wanted: impl IntoIterator<Item = &'a str>,
    granted: &[String],
) -> (Vec<&'a str>, Vec<&'a str>) {
    wanted
        .into_iter()
        .map(canonical)
        .partition(|name| granted.iter().any(|known| known == name))
}
