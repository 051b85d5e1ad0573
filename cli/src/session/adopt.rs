//! The command `planck session adopt`.

use std::{
    io::{BufRead as _, IsTerminal as _, stdin},
    path::{Path, PathBuf},
};

use clap::Args;
use planck_common::NodeId;

use crate::{
    exit::{Exit, NotFound, UsageError},
    output::{say, table, warn},
};
use planck_node::config::{Config, StoreKind};
use planck_node::node;
use planck_store::sqlite::{SqliteStore, StraySession, stray_sessions};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  planck session adopt ~/backup/sessions")]
pub struct Adopt {
    /// The folder of session files
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Do it without asking
    #[arg(long)]
    yes: bool,
}

impl Adopt {
    pub async fn perform(self, config: &Config) -> anyhow::Result<Exit> {
        if config.store.kind() != Some(StoreKind::Sqlite) {
            return Err(
                UsageError("only a folder of session files takes others over; name one with `--store sqlite:DIR`".into()).into()
            );
        }
        let options = node::sqlite_options(config)?;
        let folder = self.folder.display();
        if !self.folder.exists() {
            return Err(NotFound(format!("there is no folder {folder}")).into());
        }
        if is_same(&self.folder, &options.folder) {
            return Err(UsageError(format!("{folder} is the store itself")).into());
        }
        let strays = stray_sessions(&self.folder)?;
        if strays.is_empty() {
            say(&format!("{folder} holds no session files\n"))?;
            return Ok(Exit::Done);
        }
        say(&shown(&strays))?;
        say(&format!(
            "They move to {}, closed: nothing of them runs until you resume one. Resume only what you started yourself.\n",
            options.folder.display()
        ))?;
        if !self.yes && !confirmed()? {
            say("nothing was moved\n")?;
            return Ok(Exit::Failed);
        }
        let store = SqliteStore::open(options, &NodeId::mint()).await?;
        adopt_all(&store, &self.folder, &strays).await
    }
}

async fn adopt_all(
    store: &SqliteStore,
    folder: &Path,
    strays: &[StraySession],
) -> anyhow::Result<Exit> {
    let mut exit = Exit::Done;
    for stray in strays {
        match store.adopt(folder, stray).await {
            Ok(()) => say(&format!(
                "{} is here, closed; `planck session resume {}` takes it up\n",
                stray.name, stray.name
            ))?,
            Err(error) => {
                exit = Exit::Failed;
                warn(&format!(
                    "planck: {} stays where it is: {error}",
                    stray.name
                ));
            }
        }
    }
    Ok(exit)
}

fn shown(strays: &[StraySession]) -> String {
    let row = |stray: &StraySession| {
        vec![
            stray.name.to_string(),
            format!("{} KiB", stray.bytes.div_ceil(1024)),
            stray.problem.clone().unwrap_or_default(),
        ]
    };
    table(
        &["session", "size", "trouble"],
        &strays.iter().map(row).collect::<Vec<_>>(),
    )
}

/// Asks the user at the terminal for confirmation. Fails without a terminal.
fn confirmed() -> anyhow::Result<bool> {
    if !stdin().is_terminal() {
        return Err(UsageError(
            "cannot ask without a terminal; look at the list above, and pass --yes".into(),
        )
        .into());
    }
    say("Move them? [y/N] ")?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer)?;
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}

fn is_same(one: &Path, other: &Path) -> bool {
    one.canonicalize()
        .ok()
        .zip(other.canonicalize().ok())
        .is_some_and(|(one, other)| one == other)
}
