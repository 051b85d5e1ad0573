//! Protects files of a workspace that make other programs run code later, outside of the sandbox.
//! No tool may change these files.

mod guard;
mod record;
mod restore;
mod tree;
mod undone;

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

pub use guard::{Guard, Guards};
pub use restore::RestoreReport;
pub use undone::UndoneChanges;

use super::workspace::ResolvedPath;

/// The protected names in the root of a workspace: the settings of Planck, of editors and of other
/// agents, and the files that shells and git read when they start.
pub(super) const NAMES: &[&str] = &[
    ".bash_aliases",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".claude",
    ".codex",
    ".cursor",
    ".devcontainer",
    ".envrc",
    ".gitconfig",
    ".gitmodules",
    ".idea",
    ".mcp.json",
    ".planck",
    ".profile",
    ".ssh",
    ".vscode",
    ".zed",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshenv",
    ".zshrc",
];

/// The protected names in `.git`: the hooks, the files that name programs to run, and the file that
/// redirects git to another folder that contains such hooks and files.
pub(super) const IN_GIT: &[&str] = &["commondir", "config", "config.worktree", "hooks"];

/// Folders below a protected folder that are neither recorded nor restored. They hold sessions,
/// which earlier versions kept in the project.
const SESSIONS: &[&str] = &[".planck/sessions"];

pub(super) const GIT: &str = ".git";

/// Returns whether this path is neither recorded nor restored although it is below a protected
/// folder. Sample hooks are exempt, because git never runs them.
fn is_exempt(below: &Path) -> bool {
    let is_sample =
        below.starts_with(".git/hooks") && below.extension() == Some(OsStr::new("sample"));
    is_sample || SESSIONS.iter().any(|exempt| below.starts_with(exempt))
}

/// Returns the component of a path that forbids file tools to change the file, or `None` if they
/// may change it. Protected names count in nested folders too. File tools are stricter than the
/// sandbox: they write nothing in `.git`.
pub fn refused(place: &ResolvedPath) -> Option<&OsStr> {
    place.below.iter().find(|part| {
        let is = |name: &str| part.eq_ignore_ascii_case(name);
        is(GIT) || NAMES.iter().any(|name| is(name))
    })
}

/// Returns the bubblewrap mounts that protect the existing files below a root, in the order in
/// which they must be made. A mount needs an existing file and would follow a link, so missing
/// files and links are only compared after the call.
pub(super) fn mounts(root: &Path) -> Vec<(&'static str, PathBuf)> {
    let git = root.join(GIT);
    let read_only = |path: PathBuf| is_itself(&path).then_some(("--ro-bind", path));
    let mut mounts: Vec<_> = NAMES
        .iter()
        .filter_map(|name| read_only(root.join(name)))
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

    fn refused_part(below: &str) -> Option<String> {
        let place = ResolvedPath {
            root: "/ws".into(),
            below: below.into(),
        };
        refused(&place).map(|part| part.to_string_lossy().into_owned())
    }

    #[test]
    fn file_tools_may_not_touch_what_runs_later() {
        for (below, part) in [
            (".git/hooks/post-checkout", Some(".git")),
            ("deep/er/.GIT/config", Some(".GIT")),
            (".planck/config.toml", Some(".planck")),
            ("a/.vscode/tasks.json", Some(".vscode")),
            (".envrc", Some(".envrc")),
            (".gitignore", None),
            ("src/git/config", None),
            (".github/workflows/ci.yml", None),
            ("profile", None),
        ] {
            assert_eq!(refused_part(below).as_deref(), part, "{below}");
        }
    }
}
