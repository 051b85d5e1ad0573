//! The state of the protected names of a root at one time. Two baselines show what a call changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{openat, readlinkat},
    sys::stat::{FileStat, Mode, SFlag},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use planck_common::wait::ChangeKind;

use super::{
    GIT, fixed, git, has_end,
    root::{FOLDER, Root, SeenEntries, names_in, read},
};

/// The maximum number of entries below one protected name that are compared. A name with more counts
/// as changed, so a flood of files hides nothing. Each name has its own count.
const MOST_ENTRIES: usize = 4_096;

/// The maximum number of bytes of content that are compared below one protected name. Of the rest,
/// sizes and times are compared.
const MOST_CONTENT: u64 = 1 << 20;

/// The maximum number of entries of a root that are searched for names by their end.
const MOST_NAMES: usize = 65_536;

/// The state of the protected names of a root: a digest of each name that exists. It is small and
/// holds no content, so it can be stored. It holds no device numbers, so the nodes that share a
/// folder find the same state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// The inode of the root.
    folder: u64,
    names: BTreeMap<String, NameState>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NameState {
    /// A digest of the metadata of the entry and of all entries below it, and of their content.
    Known(String),
    /// It cannot be read, or has too many entries. It counts as changed in each comparison.
    Unknown,
}

impl Baseline {
    /// Looks at the protected names of a root. This function reads files, so it may block. Also
    /// returns the entries at which it looked, if they can tell later that nothing has changed.
    pub fn take(root: &Path) -> io::Result<(Self, Option<SeenEntries>)> {
        let root = Root::open(root)?;
        let found = git::places(&root);
        let mut names = candidates(&root)?;
        names.extend(found.places);
        let states = names.into_iter().filter_map(|name| {
            let state = state_of(&root, &name)?;
            Some((name.to_string_lossy().into_owned(), state))
        });
        let mut states: BTreeMap<String, NameState> = states.collect();
        let is_clear =
            found.unclear.is_empty() && !states.values().any(|state| *state == NameState::Unknown);
        let is_unclear = |path: PathBuf| {
            let state = NameState::Known("unclear".into());
            (path.to_string_lossy().into_owned(), state)
        };
        states.extend(found.unclear.into_iter().map(is_unclear));
        states.extend(identity_of(&root, GIT).map(|state| (GIT.to_owned(), state)));
        let taken = Self {
            folder: root.inode()?,
            names: states,
        };
        Ok((taken, root.into_seen().filter(|_| is_clear)))
    }

    /// Returns whether two baselines are those of the same folder.
    pub fn is_of_folder(&self, other: &Self) -> bool {
        self.folder == other.folder
    }

    /// Returns the names that changed between an earlier baseline of the same root and this one.
    pub fn changes_since(&self, earlier: &Self) -> Vec<(PathBuf, ChangeKind)> {
        let names: BTreeSet<&String> = self.names.keys().chain(earlier.names.keys()).collect();
        let changes = names.into_iter().filter_map(|name| {
            let kind = match (earlier.names.get(name), self.names.get(name)) {
                (Some(NameState::Known(before)), Some(NameState::Known(now))) if before == now => {
                    return None;
                }
                (Some(_), Some(_)) => ChangeKind::Changed,
                (None, Some(_)) => ChangeKind::Added,
                (Some(_), None) => ChangeKind::Removed,
                (None, None) => return None,
            };
            Some((PathBuf::from(name), kind))
        });
        changes.collect()
    }
}

/// Reads the text of a file below a root, if it is one.
pub(super) fn text_at(root: &Path, name: &Path) -> Option<String> {
    let root = Root::open(root).ok()?;
    String::from_utf8(root.read_at(name, MOST_CONTENT).ok()?).ok()
}

/// Returns the paths of a root that can be protected files. Most protected names do not exist, and
/// one list of the root is cheaper than a look at each of them.
fn candidates(root: &Root) -> nix::Result<BTreeSet<PathBuf>> {
    let entries = match names_in(&root.folder_at(Path::new(""))?, MOST_NAMES) {
        Err(Errno::EFBIG) => return Ok(fixed().collect()),
        entries => entries?,
    };
    // A folder can ignore the case of letters.
    let is_entry = |first: &OsStr| entries.iter().any(|name| name.eq_ignore_ascii_case(first));
    let exists = |path: &PathBuf| path.iter().next().is_some_and(is_entry);
    let with_end = entries.iter().filter(|name| has_end(name));
    Ok(fixed()
        .filter(exists)
        .chain(with_end.map(PathBuf::from))
        .collect())
}

/// Returns the state of a name, or `None` if it does not exist.
fn state_of(root: &Root, name: &Path) -> Option<NameState> {
    let mut walk = BaselineScan {
        root,
        digest: Sha256::new(),
        entries: MOST_ENTRIES,
        content: MOST_CONTENT,
    };
    match root
        .parent_of(name)
        .and_then(|(folder, last)| walk.entry(&folder, &last, name))
    {
        Ok(()) => Some(NameState::Known(hex(&walk.digest.finalize()))),
        Err(Errno::ENOENT | Errno::ENOTDIR) => None,
        Err(_) => Some(NameState::Unknown),
    }
}

/// Returns which folder, file or link a name is, without what is below it.
fn identity_of(root: &Root, name: &str) -> Option<NameState> {
    let (folder, last) = root.parent_of(Path::new(name)).ok()?;
    let found = root.look(&folder, &last, Path::new(name)).ok()?;
    let kind = found.st_mode & SFlag::S_IFMT.bits();
    match kind == SFlag::S_IFDIR.bits() {
        true => Some(NameState::Known(format!("folder {}", found.st_ino))),
        false => state_of(root, Path::new(name)),
    }
}

/// A walk through an entry and everything below it.
struct BaselineScan<'a> {
    root: &'a Root,
    digest: Sha256,
    /// The numbers of entries and of bytes of content that may still follow.
    entries: usize,
    content: u64,
}

impl BaselineScan<'_> {
    /// Adds an entry and all entries below it to the digest, in the order of their names. `path` is
    /// the entry's path below the root.
    fn entry(&mut self, folder: &OwnedFd, name: &OsStr, path: &Path) -> nix::Result<()> {
        self.entries = self.entries.checked_sub(1).ok_or(Errno::EFBIG)?;
        let found = self.root.look(folder, name, path)?;
        self.add(name.as_bytes());
        match SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFDIR => {
                // Its times tell no more than its entries do.
                self.numbers([u64::from(found.st_mode), found.st_ino]);
                let inner = openat(folder, name, FOLDER, Mode::empty())?;
                let is_hooks = name == "hooks";
                for name in names_in(&inner, self.entries)? {
                    // git never runs a sample, and other programs keep theirs up to date.
                    if !(is_hooks && git::is_sample(&name)) {
                        self.entry(&inner, &name, &path.join(&name))?;
                    }
                }
                self.add(b"/");
            }
            SFlag::S_IFLNK => {
                self.numbers([u64::from(found.st_mode), found.st_ino]);
                self.add(readlinkat(folder, name)?.as_bytes());
            }
            SFlag::S_IFREG => {
                self.stamp(&found);
                self.file(folder, name, &found)?;
            }
            _ => self.stamp(&found),
        }
        Ok(())
    }

    /// Adds what the kernel tells about a file. A tool can set every time but that of the latest
    /// change of the entry (ctime).
    fn stamp(&mut self, found: &FileStat) {
        let number = |value: i64| u64::from_ne_bytes(value.to_ne_bytes());
        self.numbers([
            u64::from(found.st_mode),
            found.st_ino,
            number(found.st_size),
            number(found.st_mtime),
            number(found.st_mtime_nsec),
            number(found.st_ctime),
            number(found.st_ctime_nsec),
        ]);
    }

    /// Adds the content of a file, because two changes in quick succession can leave the same
    /// times.
    fn file(&mut self, folder: &OwnedFd, name: &OsStr, found: &FileStat) -> nix::Result<()> {
        let size = u64::try_from(found.st_size).unwrap_or(u64::MAX);
        let Some(left) = self.content.checked_sub(size) else {
            return Ok(());
        };
        self.content = left;
        let content = read(folder, name, size).map_err(|_| Errno::EIO)?;
        self.add(&content);
        Ok(())
    }

    fn numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.digest.update(number.to_le_bytes());
        }
    }

    /// Adds bytes with their length, so that no two lists of them look the same.
    fn add(&mut self, bytes: &[u8]) {
        self.digest.update((bytes.len() as u64).to_le_bytes());
        self.digest.update(bytes);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
