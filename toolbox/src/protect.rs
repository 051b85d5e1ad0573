//! Protects files of a workspace that make other programs run code later, outside of the sandbox.
//! File tools refuse to change them, and bubblewrap mounts those that exist read-only. A process
//! that can change them nevertheless stops its session: a person decides whether the change is kept.
//! Nothing is put back, so a tool cannot make the node change files.

mod baseline;
mod git;
mod names;
mod root;
mod wall;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub(super) use wall::WatchedCall;
pub use wall::{CallBaselines, Wall};

use super::workspace::ResolvedPath;
use names::{GIT, IN_GIT, NAMES};

/// Returns the protected name that a path contains, which forbids file tools to change the file, or
/// `None` if they may change it.
pub fn refused(place: &ResolvedPath) -> Option<&'static str> {
    names::contained(&place.below)
}

/// Returns the bubblewrap mounts that protect the existing files below a root, in the order in
/// which they must be made. A mount needs an existing file and would follow a link, so missing
/// files and links are only compared after the call.
pub(super) fn mounts(root: &Path) -> Vec<(&'static str, PathBuf)> {
    let git = root.join(GIT);
    let read_only = |path: PathBuf| is_itself(&path).then_some(("--ro-bind", path));
    let mut mounts: Vec<_> = NAMES
        .iter()
        .filter_map(|(name, _)| read_only(root.join(name)))
        .collect();
    match fs::symlink_metadata(&git).map(|found| found.file_type()) {
        // Mounting `.git` on itself keeps it in place, because a mount point cannot be renamed.
        Ok(kind) if kind.is_dir() => {
            mounts.push(("--bind", git.clone()));
            mounts.extend(IN_GIT.iter().filter_map(|name| read_only(git.join(name))));
        }
        Ok(kind) if kind.is_file() => mounts.push(("--ro-bind", git)),
        Ok(_) | Err(_) => {}
    }
    mounts
}

fn is_itself(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() || found.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_part(below: &str) -> Option<&'static str> {
        let place = ResolvedPath {
            root: "/ws".into(),
            below: below.into(),
        };
        refused(&place)
    }

    #[test]
    fn file_tools_may_not_touch_what_runs_later() {
        for (below, part) in [
            (".git/hooks/post-checkout", Some(".git")),
            ("deep/er/.GIT/config", Some(".git")),
            (".planck/config.toml", Some(".planck")),
            ("a/.vscode/tasks.json", Some(".vscode")),
            (".envrc", Some(".envrc")),
            ("a/.Cargo/config.toml", Some(".cargo/config.toml")),
            ("My.code-workspace", Some(".code-workspace")),
            (".cargo/registry", None),
            (".config/git", None),
            (".gitignore", None),
            ("src/git/config", None),
            (".github/workflows/ci.yml", None),
            ("profile", None),
        ] {
            assert_eq!(refused_part(below), part, "{below}");
        }
    }
}
