//! Protects files of a workspace that make other programs run code later, outside of the sandbox.
//! File tools refuse to change them, and bubblewrap mounts those that exist read-only. A process
//! that can change them nevertheless stops its session: a person decides whether the change is kept.
//! Nothing is put back, so a tool cannot make the node change files.

mod baseline;
mod git;
mod root;
mod wall;

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use crate::workspace::ResolvedPath;

pub(super) use wall::WatchedCall;
pub use wall::{CallBaselines, Wall};

/// Returns the protected name that a path contains, which forbids file tools to change the file, or
/// `None` if they may change it.
pub fn refused(place: &ResolvedPath) -> Option<&'static str> {
    contained(&place.below)
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

// The names of files and folders that make other programs run code later, outside of the sandbox.

/// The protected names in the root of a workspace, each with the program that reads it. They are
/// settings that can name a program to run, and scripts that run when the program starts.
///
/// Files that every build runs, such as `Makefile` or `package.json`, are not among them, because
/// they are the work of agents, and neither are texts that only instruct other agents.
const NAMES: &[(&str, &str)] = &[
    (PLANCK, "Planck"),
    (".gitconfig", "git"),
    (".gitmodules", "git"),
    (".ssh", "ssh"),
    (".bash_aliases", "bash"),
    (".bash_login", "bash"),
    (".bash_logout", "bash"),
    (".bash_profile", "bash"),
    (".bashrc", "bash"),
    (".profile", "sh"),
    (".zlogin", "zsh"),
    (".zlogout", "zsh"),
    (".zprofile", "zsh"),
    (".zshenv", "zsh"),
    (".zshrc", "zsh"),
    (".cshrc", "csh"),
    (".tcshrc", "tcsh"),
    (".login", "csh"),
    (".kshrc", "ksh"),
    (".config/fish", "fish"),
    (".envrc", "direnv"),
    (".mise.toml", "mise"),
    ("mise.toml", "mise"),
    (".devcontainer", "VS Code"),
    (".vscode", "VS Code"),
    (".idea", "JetBrains IDEs"),
    (".zed", "Zed"),
    (".helix", "Helix"),
    (".exrc", "vi"),
    (".vimrc", "vim"),
    (".nvim.lua", "Neovim"),
    (".nvimrc", "Neovim"),
    (".dir-locals.el", "Emacs"),
    (".agents", "Codex"),
    (".claude", "Claude Code"),
    (".codex", "Codex"),
    (".cursor", "Cursor"),
    (".gemini", "Gemini CLI"),
    (".kiro", "Kiro"),
    (".mcp.json", "MCP clients"),
    (".opencode", "OpenCode"),
    ("opencode.json", "OpenCode"),
    (".windsurf", "Windsurf"),
    (".cargo/config", "cargo"),
    (".cargo/config.toml", "cargo"),
    (".npmrc", "npm"),
    (".yarnrc.yml", "yarn"),
    (".husky", "husky"),
    (".pre-commit-config.yaml", "pre-commit"),
];

/// The folder of Planck's settings, and what in it is compared. In a home it also holds the sessions
/// of the user, which change at any time.
const PLANCK: &str = ".planck";
const IN_PLANCK: &[&str] = &[
    "config.toml",
    "prompts",
    "skills",
    "teams",
    "tools",
    "trusted",
];

/// The ends of the names of protected files in the root of a workspace.
const ENDS: &[(&str, &str)] = &[(".code-workspace", "VS Code")];

/// The protected names in `.git`: the hooks, the files that name programs to run, and the file that
/// redirects git to another folder that contains such hooks and files.
const IN_GIT: &[&str] = &["commondir", "config", "config.worktree", "hooks"];

const GIT: &str = ".git";

/// Returns the paths below a root that are compared wherever they exist.
fn fixed() -> impl Iterator<Item = PathBuf> {
    let in_root = NAMES.iter().map(|(name, _)| *name);
    let in_git = IN_GIT.iter().map(|name| Path::new(GIT).join(name));
    let in_planck = IN_PLANCK.iter().map(|name| Path::new(PLANCK).join(name));
    in_root
        .filter(|name| *name != PLANCK)
        .map(PathBuf::from)
        .chain(in_git)
        .chain(in_planck)
}

/// Returns whether a name has a protected end.
fn has_end(name: &OsStr) -> bool {
    let name = name.as_bytes();
    ENDS.iter().any(|(end, _)| {
        let begin = name.len().saturating_sub(end.len());
        name.get(begin..)
            .is_some_and(|last| last.eq_ignore_ascii_case(end.as_bytes()))
    })
}

/// Returns the protected name that a path below a root contains, or `None` if it contains none.
/// Names count in nested folders too, and in any case of letters. File tools may change nothing in
/// `.git`.
fn contained(below: &Path) -> Option<&'static str> {
    let parts: Vec<&str> = below.iter().filter_map(|part| part.to_str()).collect();
    if parts.iter().any(|part| part.eq_ignore_ascii_case(GIT)) {
        return Some(GIT);
    }
    let name = NAMES.iter().map(|(name, _)| *name).find(|name| {
        let wanted: Vec<&str> = name.split('/').collect();
        parts.windows(wanted.len()).any(|some| {
            let mut pairs = some.iter().zip(&wanted);
            pairs.all(|(part, wanted)| part.eq_ignore_ascii_case(wanted))
        })
    });
    let has_end = |end: &str| {
        parts
            .iter()
            .any(|part| part.to_ascii_lowercase().ends_with(end))
    };
    name.or_else(|| ENDS.iter().map(|(end, _)| *end).find(|end| has_end(end)))
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
