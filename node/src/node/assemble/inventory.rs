//! What agents of this machine could be given, and what is wrong with the files that describe it.
//! No node is needed.

use std::collections::BTreeSet;

use crate::{
    config::Config,
    project::{Clash, Part},
    skill::{self, Skills},
    team::tool_names,
    tools::{built_in_names, external},
};

pub(crate) struct Inventory {
    /// Names of every tool, those with which agents reach their team among them.
    pub(crate) tools: BTreeSet<String>,
    pub(crate) skills: Skills,
    /// A line each: file, place, and the way out.
    pub(crate) problems: Vec<String>,
    pub(crate) clashes: Vec<Clash>,
}

impl Inventory {
    pub(crate) fn of(config: &Config) -> Self {
        let (skills, of_skills) = Skills::load(&config.sources(Part::Skills));
        let (found, of_tools) = external::names(&config.sources(Part::Tools));
        let mut problems: Vec<String> = of_tools.iter().map(ToString::to_string).collect();
        problems.extend(of_skills.iter().map(ToString::to_string));
        let clashes = external::clashes(&of_tools)
            .chain(skill::clashes(&of_skills))
            .cloned()
            .collect();
        let mut tools: BTreeSet<String> = built_in_names()
            .into_iter()
            .chain(tool_names::ALL)
            .map(Into::into)
            .collect();
        for (name, file) in found {
            if !tools.insert(name.clone()) {
                problems.push(format!(
                    "{}: there is a tool `{name}` already; rename this one",
                    file.display()
                ));
            }
        }
        Self {
            tools,
            skills,
            problems,
            clashes,
        }
    }
}
