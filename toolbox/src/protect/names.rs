//! The names of files and folders that make other programs run code later, outside of the sandbox.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// The protected names in the root of a workspace, each with the program that reads it. They are
/// settings that can name a program to run, and scripts that run when the program starts.
///
/// Files that every build runs, such as `Makefile` or `package.json`, are not among them, because
/// they are the work of agents, and neither are texts that only instruct other agents.
pub(super) const NAMES: &[(&str, &str)] = &[
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
pub(super) const IN_GIT: &[&str] = &["commondir", "config", "config.worktree", "hooks"];

pub(super) const GIT: &str = ".git";

/// Returns the paths below a root that are compared wherever they exist.
pub(super) fn fixed() -> impl Iterator<Item = PathBuf> {
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
pub(super) fn has_end(name: &OsStr) -> bool {
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
pub(super) fn contained(below: &Path) -> Option<&'static str> {
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
