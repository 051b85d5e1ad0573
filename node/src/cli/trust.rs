//! `planck trust`

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use super::{exit::Exit, output::say, place::Place};
use crate::config::trust::Trusted;

#[derive(Debug, Args)]
pub struct Trust {
    /// The project's folder
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Trust it no longer
    #[arg(long)]
    remove: bool,
    /// List the trusted folders
    #[arg(long, conflicts_with = "remove")]
    list: bool,
}

impl Trust {
    pub fn perform(self, place: &Place) -> anyhow::Result<Exit> {
        let user_folder =
            place.sources(Vec::new())?.user_folder().context("HOME is not set, so there is no ~/.planck to record it in")?;
        let trusted = Trusted::at(&user_folder);
        let name = self.folder.display();
        if self.list {
            say(&trusted.list().iter().map(|folder| format!("{}\n", folder.display())).collect::<String>())?;
        } else if self.remove {
            let was = trusted.remove(&self.folder).with_context(|| format!("cannot take {name} out"))?;
            say(if was { "it is trusted no longer\n" } else { "it was not trusted\n" })?;
        } else {
            let folder = trusted.add(&self.folder).with_context(|| format!("cannot trust {name}"))?;
            say(&format!("{} is trusted: its .planck/config.toml may set everything\n", folder.display()))?;
        }
        Ok(Exit::Done)
    }
}
