//! The command `planck trust`.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Args;

use super::{
    args::GlobalArgs,
    exit::Exit,
    output::{say, table},
    project::{FoundProject, counted_files, describe, find, line, lines},
};
use planck_host::terminal::clean_line;
use planck_node::config::Sources;
use planck_toolbox::project::{Ledger, LedgerLine, Project, ProjectStanding, ProjectUse, Snapshot};

/// Nothing in a project's `.planck/` has an effect before its user trusts it. This command shows
/// what the project contains, or what changed since it was trusted, and asks; without a terminal
/// the answer is read from standard input. Configuration, tools and teams are trusted with their
/// current content, so a change asks again; prompts and skills are trusted by their folder. Skills
/// for other programs, in .agents/skills and .claude/skills, are trusted one by one, and the MCP
/// servers of .mcp.json with its current content. The exit code is 0 if the project is trusted, and
/// 1 if not.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  planck trust               # show this folder's .planck/, and ask\n  \
                        planck trust ~/src/tool --yes\n  planck trust --list"
)]
pub struct TrustArgs {
    /// The project's folder
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Trust it without asking
    #[arg(long)]
    yes: bool,
    /// Stop trusting it
    #[arg(long, alias = "remove", conflicts_with = "yes")]
    revoke: bool,
    /// List the trusted projects, and whether they are unchanged
    #[arg(long, conflicts_with_all = ["revoke", "yes"])]
    list: bool,
}

impl TrustArgs {
    pub fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let sources = global.sources(Vec::new())?;
        let user_folder = sources
            .user_folder()
            .context("HOME is not set, so there is no ~/.planck to record it in")?;
        let ledger = Ledger::at(&user_folder);
        if self.list {
            return list(&ledger);
        }
        if self.revoke {
            return revoke(&ledger, &self.folder);
        }
        let folder = self
            .folder
            .canonicalize()
            .with_context(|| format!("cannot trust {}", self.folder.display()))?;
        match find(
            &Sources {
                folder: folder.clone(),
                ..sources
            },
            ProjectUse::Everything,
        )? {
            Some(found) => self.trust(&found),
            None => {
                say(&format!(
                    "{} has no .planck/ of its own, no .mcp.json and no skills; there is nothing to trust\n",
                    clean_line(&folder.display().to_string())
                ))?;
                Ok(Exit::Failed)
            }
        }
    }

    fn trust(&self, found: &FoundProject) -> anyhow::Result<Exit> {
        say(&format!("{}\n{}", describe(found), lines(&found.standing)))?;
        let snapshot: &Snapshot = match &found.standing {
            ProjectStanding::Nothing | ProjectStanding::Untrustable(_) => return Ok(Exit::Failed),
            ProjectStanding::Trusted(_) => return Ok(Exit::Done),
            ProjectStanding::Offered(offered) => &offered.snapshot,
            ProjectStanding::Unknown(snapshot) => snapshot,
            ProjectStanding::Changed(both) => &both.0,
        };
        if !self.yes && !is_agreed()? {
            say("it is not trusted\n")?;
            return Ok(Exit::Failed);
        }
        // The contents that the user saw are recorded, even if the files have changed since.
        found.trust(snapshot.clone())?;
        say("it is trusted\n")?;
        Ok(Exit::Done)
    }
}

fn is_agreed() -> io::Result<bool> {
    say("Trust it? [y/N] ")?;
    let answer = line()?.unwrap_or_default();
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes" | "t" | "trust"
    ))
}

fn revoke(ledger: &Ledger, folder: &Path) -> anyhow::Result<Exit> {
    let known = folder
        .canonicalize()
        .or_else(|_| std::path::absolute(folder))
        .unwrap_or_else(|_| folder.into());
    let was = ledger
        .remove(&known)
        .with_context(|| format!("cannot take {} out", folder.display()))?;
    say(if was {
        "it is trusted no longer\n"
    } else {
        "it was not trusted\n"
    })?;
    Ok(Exit::Done)
}

fn list(ledger: &Ledger) -> anyhow::Result<Exit> {
    let rows = ledger.lines()?.into_iter().map(|line| match line {
        LedgerLine::Record(record) => {
            let project = Project {
                folder: record.folder.clone(),
            };
            let now = match project.standing(Some(ledger), ProjectUse::Everything)? {
                ProjectStanding::Trusted(_) => "as it was trusted".into(),
                ProjectStanding::Offered(offered) => {
                    let (files, have) = counted_files(&offered.files);
                    format!("as it was trusted, but for {files} that {have} no effect")
                }
                ProjectStanding::Nothing => "nothing is there any more".into(),
                ProjectStanding::Unknown(_) | ProjectStanding::Changed(_) => {
                    "changed; it has no effect until it is trusted again".into()
                }
                ProjectStanding::Untrustable(why) => format!("cannot be trusted: {why}"),
            };
            Ok(vec![
                record.folder.display().to_string(),
                record.at.to_string(),
                now,
            ])
        }
        LedgerLine::PathOnly(folder) => Ok(vec![
            folder.display().to_string(),
            "–".into(),
            "trusted whatever it held; trust it again".into(),
        ]),
        LedgerLine::Unknown(_) => Ok(vec![
            "–".into(),
            "–".into(),
            "a line of another version; it trusts nothing".into(),
        ]),
    });
    let rows = rows.collect::<io::Result<Vec<Vec<String>>>>()?;
    say(&table(&["folder", "trusted", "now"], &rows))?;
    Ok(Exit::Done)
}
