//! Finds the files of a root in which git looks for programs to run, besides those at fixed paths:
//! in repositories inside of `.git`, in repositories that the index links to, and in a bare
//! repository that is the root itself.

use std::{
    ffi::OsStr,
    io::ErrorKind,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use super::root::{Root, names_in};

/// The maximum number of bytes of a file of git that is read. The file of a larger index counts as
/// changed in each call.
const MOST_INDEX: u64 = 256 << 20;
const MOST_CONFIG: u64 = 1 << 20;
/// The maximum number of linked repositories that are looked at, and of folders inside of
/// `.git/modules`.
const MOST_REPOSITORIES: usize = 1_024;

/// The folders of a repository in which no other repository is.
const DATA: &[&str] = &[
    "branches",
    "hooks",
    "info",
    "lfs",
    "logs",
    "objects",
    "refs",
    "rr-cache",
    "worktrees",
];

/// The content of `commondir` with which git uses the repository that the worktree belongs to.
const OWN_REPOSITORY: &[u8] = b"../..\n";

/// The settings of a repository's configuration that name no program. A `*` stands for a name.
const HARMLESS: &[&str] = &[
    "branch.*.merge",
    "branch.*.rebase",
    "branch.*.remote",
    "core.autocrlf",
    "core.bare",
    "core.eol",
    "core.filemode",
    "core.ignorecase",
    "core.logallrefupdates",
    "core.longpaths",
    "core.precomposeunicode",
    "core.repositoryformatversion",
    "core.symlinks",
    "core.worktree",
    "extensions.objectformat",
    "remote.*.fetch",
    "remote.*.tagopt",
    "remote.*.url",
    "submodule.*.active",
    "submodule.*.url",
    "submodule.active",
    "user.email",
    "user.name",
];

/// The mode of an entry that links to a repository.
const GITLINK: u32 = 0o160_000;
/// The name of the extension of an index whose entries are in another file, too.
const MORE_ENTRIES: &[u8] = b"link";

/// The paths below a root at which git finds programs to run, besides the fixed ones.
#[derive(Debug, Default)]
pub(super) struct GitPlaces {
    pub places: Vec<PathBuf>,
    /// Files that can point to further programs, but that this module does not read to the end, such
    /// as an index that is split over two files.
    pub unclear: Vec<PathBuf>,
}

/// Looks for the paths below a root at which git finds programs to run now.
pub(super) fn places(root: &Root) -> GitPlaces {
    let mut found = GitPlaces::default();
    in_modules(root, &mut found);
    in_worktrees(root, &mut found);
    // git takes a folder with these entries for a repository.
    if root.read_at(Path::new("HEAD"), MOST_CONFIG).is_ok() {
        found
            .places
            .extend(["HEAD", "config", "hooks"].map(PathBuf::from));
    }
    let index = Path::new(".git/index");
    let links = match root.read_at(index, MOST_INDEX) {
        Ok(index) => links_of(&index),
        Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Some(Vec::new())
        }
        Err(_) => None,
    };
    let Some(links) = links.filter(|links| links.len() <= MOST_REPOSITORIES) else {
        found.unclear.push(index.into());
        return found;
    };
    for link in links {
        let git = link.join(".git");
        if root.folder_at(&git).is_ok() {
            found.places.extend(programs_of(root, &git));
        } else if points_out(root, &git) {
            found.places.push(git);
        }
    }
    found
}

/// Adds the files with programs in the repositories of submodules.
fn in_modules(root: &Root, found: &mut GitPlaces) {
    let mut modules = vec![PathBuf::from(".git/modules")];
    let mut seen = 0;
    while let Some(folder) = modules.pop() {
        let Ok(names) = root
            .folder_at(&folder)
            .and_then(|open| names_in(&open, MOST_REPOSITORIES))
        else {
            continue;
        };
        seen += 1;
        if seen > MOST_REPOSITORIES {
            return found.unclear.push(".git/modules".into());
        }
        if names.iter().any(|name| name == "HEAD") {
            found.places.extend(programs_of(root, &folder));
        }
        let inner = names
            .into_iter()
            .filter(|name| !DATA.iter().any(|data| name == data));
        modules.extend(inner.map(|name| folder.join(name)));
    }
}

/// Adds the files with programs in the folders of worktrees.
fn in_worktrees(root: &Root, found: &mut GitPlaces) {
    let worktrees = Path::new(".git/worktrees");
    let names = root
        .folder_at(worktrees)
        .and_then(|open| names_in(&open, MOST_REPOSITORIES));
    for name in names.unwrap_or_default() {
        let worktree = worktrees.join(name);
        found.places.push(worktree.join("config.worktree"));
        let commondir = worktree.join("commondir");
        if root
            .read_at(&commondir, MOST_CONFIG)
            .is_ok_and(|text| text != OWN_REPOSITORY)
        {
            found.places.push(commondir);
        }
    }
}

/// Returns the files of a repository that name or are programs.
fn programs_of(root: &Root, git: &Path) -> Vec<PathBuf> {
    let (config, hooks) = (git.join("config"), git.join("hooks"));
    let names_one = root
        .read_at(&config, MOST_CONFIG)
        .is_ok_and(|text| names_program(&text));
    let has_hook = root
        .folder_at(&hooks)
        .and_then(|open| names_in(&open, MOST_REPOSITORIES))
        .is_ok_and(|names| names.iter().any(|name| !is_sample(name)));
    let more = ["commondir", "config.worktree"].map(|name| git.join(name));
    names_one
        .then_some(config)
        .into_iter()
        .chain(has_hook.then_some(hooks))
        .chain(more)
        .collect()
}

/// Returns whether git never runs this hook.
pub(super) fn is_sample(hook: &OsStr) -> bool {
    hook.as_bytes().ends_with(b".sample")
}

/// Returns whether the file `.git` of a linked repository leads elsewhere than to `.git/modules`.
fn points_out(root: &Root, git: &Path) -> bool {
    let Ok(text) = root.read_at(git, MOST_CONFIG) else {
        return false;
    };
    let up = git.parent().map_or(0, |folder| folder.iter().count());
    let modules = format!("gitdir: {}.git/modules/", "../".repeat(up));
    let target = text.strip_prefix(modules.as_bytes());
    target.is_none_or(|rest| rest.windows(2).any(|two| two == b".."))
}

/// Returns whether a configuration has a setting that is not known to be harmless.
fn names_program(config: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(config) else {
        return true;
    };
    let mut section = String::new();
    text.lines().map(str::trim).any(|line| {
        if line.is_empty() || line.starts_with(['#', ';']) {
            return false;
        }
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            section = match name.split_once(char::is_whitespace) {
                Some((section, _)) => format!("{}.*", section.to_ascii_lowercase()),
                None => name.to_ascii_lowercase(),
            };
            return false;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let key = format!("{section}.{}", key.trim().to_ascii_lowercase());
        // A remote can be a program: `ext::`, or a helper's name before two colons.
        !HARMLESS.contains(&&*key) || value.contains("::") || line.ends_with('\\')
    })
}

/// Returns the paths of the linked repositories in an index, or `None` if it cannot be read or
/// refers to another file with entries.
fn links_of(index: &[u8]) -> Option<Vec<PathBuf>> {
    // The length of the ids of objects is not in the file.
    links_with(index, 20).or_else(|| links_with(index, 32))
}

fn links_with(index: &[u8], id: usize) -> Option<Vec<PathBuf>> {
    let number = |at: usize| {
        let bytes = index.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    let (version, count) = (number(4)?, number(8)?);
    if !index.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return None;
    }
    let (mut at, mut name, mut links) = (12, Vec::new(), Vec::new());
    for _ in 0..count {
        let begin = at;
        let mode = number(at + 24)?;
        let flags = at + 40 + id;
        let is_extended = index.get(flags)? & 0x40 != 0;
        at = flags + if is_extended { 4 } else { 2 };
        if version == 4 {
            let (drop, after) = varint(index, at)?;
            name.truncate(name.len().checked_sub(drop)?);
            at = after;
        } else {
            name.clear();
        }
        let length = index.get(at..)?.iter().position(|byte| *byte == 0)?;
        name.extend_from_slice(index.get(at..at + length)?);
        at += length + 1;
        if version < 4 {
            at = begin + (at - 1 - begin) / 8 * 8 + 8;
        }
        if mode == GITLINK {
            links.push(PathBuf::from(OsStr::from_bytes(&name)));
        }
    }
    // The extensions follow, and then a checksum.
    while at + 8 + id <= index.len() {
        if index.get(at..at + 4)? == MORE_ENTRIES {
            return None;
        }
        at = at + 8 + usize::try_from(number(at + 4)?).ok()?;
    }
    (at + id == index.len()).then_some(links)
}

/// Reads a number in the encoding of version 4, and returns where the next byte is.
fn varint(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut byte = *bytes.get(at)?;
    let mut value = usize::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        at += 1;
        byte = *bytes.get(at)?;
        value = value.checked_add(1)?.checked_mul(128)? | usize::from(byte & 0x7f);
    }
    Some((value, at + 1))
}
