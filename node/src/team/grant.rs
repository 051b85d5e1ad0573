//! The tools and skills that an agent may pass on to the agents it spawns.

use planck_common::spec::Grant;

use super::tool_names::{NOT_GRANTED, canonical, sorted};

/// Returns the grant of an agent, with canonical names. If `named` is `None`, the agent may grant
/// all its own tools and skills, except the tools to spawn and destroy agents.
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

/// Makes names canonical, and splits them into those that are granted and those that are not.
pub fn divide<'a>(
    wanted: impl IntoIterator<Item = &'a str>,
    granted: &[String],
) -> (Vec<&'a str>, Vec<&'a str>) {
    wanted
        .into_iter()
        .map(canonical)
        .partition(|name| granted.iter().any(|known| known == name))
}
