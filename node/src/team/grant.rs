//! The tools and skills that an agent may pass on to the agents it spawns.

use planck_common::spec::Grant;

use super::tool_names::{NOT_GRANTED, canonical, sorted};

/// Returns the named grant with canonical names. Without one, the agent may grant everything that
/// it has itself, except spawning and destroying.
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

/// Splits names into those that are granted and those that are not.
pub fn divide<'a>(
    wanted: impl IntoIterator<Item = &'a str>,
    granted: &[String],
) -> (Vec<&'a str>, Vec<&'a str>) {
    wanted
        .into_iter()
        .map(canonical)
        .partition(|name| granted.iter().any(|known| known == name))
}
