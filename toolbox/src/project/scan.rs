//! Reads the files in a project's `.planck/` that are trusted by their content, and lists prompts
//! and skills, within limits. The scan fails if a limit is exceeded, or if the configuration or
//! anything in `tools/` or `teams/` cannot be trusted by its content, such as a link.

use std::{collections::BTreeMap, ffi::OsStr};

use super::{
    CONFIG,
    snapshot::{Print, Snapshot},
};
use planck_host::regular_file::{EntryKind, FileRefused, OpenFolder};

/// The maximum size of the configuration in bytes.
const MOST_CONFIG: u64 = 256 * 1024;
/// The maximum size of any other file in bytes.
const MOST_FILE: u64 = 8 * 1024 * 1024;
/// The maximum size in bytes of all files together, without the configuration.
const MOST_BYTES: u64 = 32 * 1024 * 1024;
/// The maximum number of entries that are trusted by their content, of prompts, and of entries in
/// one folder.
const MOST_ENTRIES: usize = 4096;
/// The maximum depth of nested folders.
const MOST_DEPTH: usize = 16;

/// An entry of `.planck/` that cannot be trusted by its content.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {why}")]
pub struct Untrustable {
    /// The name of the entry. It is relative to the project's folder if
    /// [`Project::read`](super::Project::read) returned it, and otherwise to `.planck/`.
    pub name: String,
    pub why: FileRefused,
}

impl Untrustable {
    pub(super) fn new(name: impl Into<String>, why: FileRefused) -> Self {
        Self {
            name: name.into(),
            why,
        }
    }
}

/// Reads the configuration, the tools and the teams, and lists the skills and prompts.
pub(super) fn scan(planck: &OpenFolder) -> Result<Snapshot, Untrustable> {
    let mut walk = Walk::default();
    walk.config(planck)?;
    for name in ["tools", "teams"] {
        if let Some(folder) = walk.folder(planck, name, name)? {
            walk.all(&folder, name, 1)?;
        }
    }
    let Walk { mut snapshot, .. } = walk;
    if let Some(skills) = open(planck, "skills", "skills")? {
        let entries = skills
            .entries(MOST_ENTRIES)
            .map_err(|why| Untrustable::new("skills", why))?;
        snapshot.skills = entries
            .into_iter()
            .filter(|(_, kind)| *kind != EntryKind::File)
            .map(|(name, _)| name)
            .collect();
    }
    Ok(snapshot)
}

/// Reads one tool's folder below `tools/`. `name` is relative to `.planck/`. The result is empty if
/// the folder does not exist.
pub(super) fn scan_tool(
    planck: &OpenFolder,
    name: &str,
) -> Result<BTreeMap<String, Print>, Untrustable> {
    let mut walk = Walk::default();
    let opened = planck
        .folder_below(name.as_ref())
        .map_err(|why| Untrustable::new(name, why))?;
    if let Some(folder) = opened {
        walk.put_folder(name)?;
        walk.all(&folder, name, 2)?;
    }
    Ok(walk.snapshot.prints)
}

fn open(above: &OpenFolder, name: &str, at: &str) -> Result<Option<OpenFolder>, Untrustable> {
    above
        .folder(OsStr::new(name))
        .map_err(|why| Untrustable::new(at, why))
}

#[derive(Default)]
struct Walk {
    snapshot: Snapshot,
    bytes: u64,
}

impl Walk {
    fn config(&mut self, planck: &OpenFolder) -> Result<(), Untrustable> {
        let refused = |why| Untrustable::new(CONFIG, why);
        if let Some(content) = planck
            .file(OsStr::new(CONFIG), MOST_CONFIG)
            .map_err(refused)?
        {
            self.put(CONFIG.into(), Print::of(&content))?;
            self.snapshot.config = Some(content.text().map_err(refused)?);
        }
        Ok(())
    }

    fn folder(
        &mut self,
        above: &OpenFolder,
        name: &str,
        at: &str,
    ) -> Result<Option<OpenFolder>, Untrustable> {
        let folder = open(above, name, at)?;
        if folder.is_some() {
            self.put_folder(at)?;
        }
        Ok(folder)
    }

    fn put_folder(&mut self, at: &str) -> Result<(), Untrustable> {
        self.put(format!("{at}/"), Print::of_folder())
    }

    fn put(&mut self, name: String, print: Print) -> Result<(), Untrustable> {
        if self.snapshot.prints.len() >= MOST_ENTRIES {
            return Err(Untrustable::new(name, FileRefused::TooMany(MOST_ENTRIES)));
        }
        self.snapshot.prints.insert(name, print);
        Ok(())
    }

    /// Reads a folder with everything in it: all files below `tools/`, and every `TEAM.json` below
    /// `teams/`. Of the other files below `teams/`, those with the ending `.md` or `.txt` are
    /// listed as prompts.
    fn all(&mut self, folder: &OpenFolder, at: &str, depth: usize) -> Result<(), Untrustable> {
        if depth > MOST_DEPTH {
            return Err(Untrustable::new(at, FileRefused::TooMany(MOST_DEPTH)));
        }
        let entries = folder
            .entries(MOST_ENTRIES)
            .map_err(|why| Untrustable::new(at, why))?;
        for (name, kind) in entries {
            let below = format!("{at}/{name}");
            match kind {
                EntryKind::Folder => {
                    if let Some(folder) = self.folder(folder, &name, &below)? {
                        self.all(&folder, &below, depth + 1)?;
                    }
                }
                EntryKind::File if at.starts_with("tools") || name == "TEAM.json" => {
                    self.file(folder, &name, below)?
                }
                EntryKind::File => self.prompt(&name, below)?,
                EntryKind::Link | EntryKind::Other(_) => {
                    return Err(Untrustable::new(below, kind.refused()));
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, folder: &OpenFolder, name: &str, below: String) -> Result<(), Untrustable> {
        let most = MOST_FILE.min(MOST_BYTES - self.bytes);
        let content = folder
            .file(OsStr::new(name), most)
            .map_err(|why| Untrustable::new(below.clone(), why))?;
        let Some(content) = content else {
            return Ok(());
        };
        self.bytes += content.bytes.len() as u64;
        self.put(below.clone(), Print::of(&content))?;
        if matches!(name, "TOOL.json" | "TEAM.json") {
            let text = content
                .text()
                .map_err(|why| Untrustable::new(below.clone(), why))?;
            self.snapshot.texts.insert(below, text);
        }
        Ok(())
    }

    fn prompt(&mut self, name: &str, below: String) -> Result<(), Untrustable> {
        if self.snapshot.prompts.len() >= MOST_ENTRIES {
            return Err(Untrustable::new(below, FileRefused::TooMany(MOST_ENTRIES)));
        }
        if [".md", ".txt"].iter().any(|end| name.ends_with(end)) {
            self.snapshot.prompts.push(below);
        }
        Ok(())
    }
}
