//! Session stores that an attacker prepared, and commands that only read.

mod data;
mod locks;
mod looking;
mod place;
mod planted;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result};
use planck_scripted_model::{Reply, Script, ScriptedFault};
use planck_tests::{eventually::eventually, machine::PersonalMachine};

/// A file's type and permissions, its size, its modification time, and its content.
type Entry = (u32, u64, i64, i64, Vec<u8>);

/// Returns the entries of a folder and of all folders below it.
fn listing(folder: &Path) -> Result<BTreeMap<PathBuf, Entry>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))? {
        let path = entry?.path();
        let there = path.symlink_metadata()?;
        let content = if there.is_file() {
            fs::read(&path)?
        } else {
            Vec::new()
        };
        if there.is_dir() {
            found.extend(listing(&path)?);
        }
        found.insert(
            path,
            (
                there.mode(),
                there.size(),
                there.mtime(),
                there.mtime_nsec(),
                content,
            ),
        );
    }
    Ok(found)
}

/// Kills a `planck run` in the middle of its first turn, as a crash would.
async fn interrupted(machine: &PersonalMachine, arguments: &[&str]) -> Result<()> {
    machine.model.set_script(
        Script::new().always(Reply::text("a b c").with_fault(ScriptedFault::Hang { after: 1 })),
    );
    let before = machine.model.streams();
    let command = [&["run", "--model", "openai:gpt-5"][..], arguments].concat();
    let mut running = machine
        .planck(&command)?
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    eventually("the model is asked", async || {
        (machine.model.streams() > before).then_some(())
    })
    .await?;
    running.kill().await?;
    eventually("the model is left", async || {
        (machine.model.streams() == before).then_some(())
    })
    .await
}
