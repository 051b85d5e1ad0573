//! `AGENTS.md`: what a project tells every agent that works in it.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// What of it agents are shown, in bytes.
const LIMIT: u64 = 256 * 1024;

/// The nearest one upward from a directory to the repository's root; outside a repository, in the directory alone.
pub fn find(dir: &Path) -> Option<PathBuf> {
    let root = dir.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(dir);
    let upward = dir.ancestors().take_while(|folder| folder.starts_with(root));
    upward.map(|folder| folder.join("AGENTS.md")).find(|path| path.is_file())
}

/// Its text, cut at the limit.
pub fn load(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// The text for agents that work in `dir`; `None` where there is none, or none that can be read.
pub fn of(dir: &Path) -> Option<String> {
    let path = find(dir)?;
    match load(&path) {
        Ok(text) => Some(text).filter(|text| !text.is_empty()),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read AGENTS.md");
            None
        }
    }
}
