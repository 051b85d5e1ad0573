//! `planck team new`: writes a starter template for a team.

use std::path::{Path, PathBuf};

use clap::Args;
use planck_common::id::is_id;

use crate::{
    exit::{Exit, UsageError},
    output::say,
    scaffold::{Scaffold, ScaffoldFile},
};

/// Writes a TEAM.json with an orchestrator and a worker, and a file with the prompt of each.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  planck team new reviewers\n  \
                        planck team new reviewers --dir ~/.planck/teams/reviewers   # to start it by its name")]
pub struct NewTeam {
    /// The team's name
    name: String,
    /// The folder to write, which must be empty or missing; by default ./teams/NAME
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

const FILES: &[ScaffoldFile] = &[
    ("TEAM.json", include_str!("../scaffold/team/TEAM.json")),
    ("lead.md", include_str!("../scaffold/team/lead.md")),
    ("worker.md", include_str!("../scaffold/team/worker.md")),
];

impl NewTeam {
    pub fn perform(self) -> anyhow::Result<Exit> {
        let Self { name, dir } = self;
        if !is_id(&name) {
            return Err(UsageError(format!(
                "malformed team name `{name}`: expected 1 to 64 of A-Z a-z 0-9 _ -"
            ))
            .into());
        }
        let folder = dir.unwrap_or_else(|| Path::new("teams").join(&name));
        let shown = shlex::try_quote(&folder.to_string_lossy())
            .map_or_else(|_| name.clone(), |quoted| quoted.into_owned());
        Scaffold {
            folder,
            files: FILES,
            replacements: vec![("TEAM_NAME", name)],
            copied: Vec::new(),
        }
        .write()?;
        say(&format!(
            "planck team validate {shown}\nplanck run --team {shown} \"What is in this folder?\"\n"
        ))?;
        Ok(Exit::Done)
    }
}
