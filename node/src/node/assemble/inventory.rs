//! Lists the tools and skills that this machine could give to agents without sidecars, and the
//! problems of the files that describe them. Listing needs no running node.

use std::collections::BTreeSet;

use crate::{config::Config, team::tool_names};
use planck_toolbox::project::{NameClash, SourcePart};
use planck_toolbox::skill::{self, Skills};
use planck_toolbox::{built_in_names, external};

pub struct Inventory {
    /// The names of the built-in tools, the external tools, the tools between agents and the tools
    /// that read skills.
    pub tools: BTreeSet<String>,
    pub skills: Skills,
    /// The problems of the files, each with the file and what is wrong with it.
    pub problems: Vec<String>,
    pub clashes: Vec<NameClash>,
}

impl Inventory {
    pub fn of(config: &Config) -> Self {
        let (skills, of_skills) = Skills::load(&config.sources(SourcePart::Skills));
        let (found, of_tools) = external::names(&config.sources(SourcePart::Tools));
        let mut problems: Vec<String> = of_tools.iter().map(ToString::to_string).collect();
        problems.extend(of_skills.iter().map(ToString::to_string));
        let clashes = external::clashes(&of_tools)
            .chain(skill::clashes(&of_skills))
            .cloned()
            .collect();
        let mut tools: BTreeSet<String> = built_in_names()
            .into_iter()
            .chain(tool_names::ALL)
            .chain([planck_toolbox::outside::ASK_USER])
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
