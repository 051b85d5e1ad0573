//! `AGENTS.md` contains the instructions of a project for every agent that works in it, or those of a
//! user for every agent of theirs. In a project, `CLAUDE.md` has the same purpose.
//!
//! The author of a repository controls the file and its name, so it is not trusted. It must be a
//! regular file inside the repository, and no link is followed. A link to another file in the
//! folder is refused too, because the folder also contains files that are not part of the
//! repository's content, such as `.env` and `.git/config`.

use std::{ffi::OsStr, os::unix::fs::MetadataExt as _, path::Path};

use nix::unistd::Uid;

use planck_host::environment;
use planck_host::regular_file::{FileRefused, OpenFolder};

const FILE: &str = "AGENTS.md";

/// The names of the file in a project. The first one that a folder has is read.
const FILES: &[&str] = &[FILE, "CLAUDE.md"];

/// The maximum number of bytes of the file that agents receive.
const LIMIT: u64 = 64 * 1024;

/// The instructions for agents, and a warning about their file.
#[derive(Debug, Default)]
pub struct Instructions {
    pub text: Option<String>,
    /// The reason why the file, or the part of it beyond the limit, is not used.
    pub warning: Option<String>,
}

/// Loads the nearest AGENTS.md, or CLAUDE.md where a folder has no other, in a directory or the
/// directories above it, up to the root of the repository, and not above `within`. Outside a
/// repository, only the directory itself is searched.
pub fn load(dir: &Path, within: Option<&Path>) -> Instructions {
    load_as(&own_uids(), dir, within)
}

/// Like [`load`], for a process that takes these users for its own.
pub(super) fn load_as(own: &[Uid], dir: &Path, within: Option<&Path>) -> Instructions {
    let Ok(dir) = dir.canonicalize() else {
        return Instructions::default();
    };
    let within = within.map(Path::canonicalize).transpose();
    let Ok(within) = within else {
        return Instructions::default();
    };
    if within
        .as_ref()
        .is_some_and(|within| !dir.starts_with(within))
    {
        return Instructions {
            text: None,
            warning: Some(format!(
                "agents go without AGENTS.md: a link leads to {}, out of the workspace",
                dir.display()
            )),
        };
    }
    let folders = searched(own, &dir, within.as_deref());
    let Some(root) = folders.last() else {
        return Instructions::default();
    };
    let found = folders
        .iter()
        .find_map(|folder| of_folder(root, folder, FILES));
    found.unwrap_or_default()
}

/// Loads the first of these files that a folder has. A link from one name to the other is common. It is not followed, but
/// the other file is read.
fn of_folder(root: &Path, folder: &Path, names: &[&str]) -> Option<Instructions> {
    let mut refused = None;
    for name in names {
        let file = folder.join(name);
        match read(root, folder, name) {
            Ok(Some((text, is_whole))) => return Some(Instructions::of(&file, &text, is_whole)),
            Ok(None) => {}
            Err(why) => refused = refused.or_else(|| Some(left_out(&file, &why))),
        }
    }
    refused.map(|warning| Instructions {
        text: None,
        warning: Some(warning),
    })
}

/// Returns the user's own instructions for all agents, from their folder.
pub(super) fn of_user(folder: &Path) -> Option<String> {
    if !folder.is_dir() {
        return None;
    }
    of_folder(folder, folder, &[FILE])?.logged().text
}

/// Returns the directory and those above it in which to search. The search ends below a directory
/// of another user, because that user could put a repository around this one. Git refuses such
/// repositories for the same reason.
fn searched<'a>(own: &[Uid], dir: &'a Path, within: Option<&Path>) -> Vec<&'a Path> {
    let is_within = |folder: &&Path| within.is_none_or(|within| folder.starts_with(within));
    let above = dir
        .ancestors()
        .skip(1)
        .take_while(is_within)
        .take_while(|folder| is_own(own, folder));
    let folders: Vec<&Path> = std::iter::once(dir).chain(above).collect();
    let root = folders.iter().position(|folder| {
        let git = folder.join(".git");
        git.symlink_metadata().is_ok() && (*folder == dir || is_own(own, &git))
    });
    let count = root.map_or(1, |root| root + 1);
    folders.into_iter().take(count).collect()
}

fn is_own(own: &[Uid], path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|status| own.contains(&Uid::from_raw(status.uid())))
}

/// Returns the users whose directories this process takes for its own: its own user, and for root
/// the user who called `sudo`. These are the users that git accepts.
fn own_uids() -> Vec<Uid> {
    let effective = Uid::effective();
    let caller = environment::variable("SUDO_UID")
        .filter(|_| effective.is_root())
        .and_then(|uid| uid.to_str()?.parse().ok())
        .map(Uid::from_raw);
    std::iter::once(effective).chain(caller).collect()
}

/// Returns the instructions for agents that work in a directory. Logs a warning if AGENTS.md is not
/// used or is cut at the limit.
pub fn of(dir: &Path, within: Option<&Path>) -> Option<String> {
    load(dir, within).logged().text
}

/// Reads the file in a folder at or below `root`. No link below `root` is followed, so a folder that
/// is replaced meanwhile leads nowhere else.
fn read(root: &Path, folder: &Path, name: &str) -> Result<Option<(String, bool)>, FileRefused> {
    let below = folder
        .strip_prefix(root)
        .map_err(|_| FileRefused::Outside)?;
    let Some(folder) = OpenFolder::open(root)?.folder_below(below)? else {
        return Ok(None);
    };
    let content = folder.head(OsStr::new(name), LIMIT)?;
    Ok(content.map(|content| {
        (
            String::from_utf8_lossy(&content.bytes).trim().to_owned(),
            content.is_whole,
        )
    }))
}

fn left_out(path: &Path, why: &FileRefused) -> String {
    format!("agents go without {}: {why}", path.display())
}

impl Instructions {
    /// Logs the warning if there is one, and returns `self`.
    #[must_use]
    pub fn logged(self) -> Self {
        if let Some(warning) = &self.warning {
            tracing::warn!("{warning}");
        }
        self
    }

    fn of(path: &Path, text: &str, is_whole: bool) -> Self {
        let cut = || {
            format!(
                "agents are shown the first {} KiB of {}; make it shorter",
                LIMIT / 1024,
                path.display()
            )
        };
        Self {
            text: Some(text.to_owned()).filter(|text| !text.is_empty()),
            warning: (!is_whole).then(cut),
        }
    }
}
