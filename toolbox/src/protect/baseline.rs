//! The state of the protected names of a root at one time. Two baselines show what a call changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, readlinkat},
    sys::stat::{FileStat, Mode, SFlag, fstat, fstatat},
};
use planck_common::wait::ChangeKind;
use planck_host::regular_file;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    git,
    names::{self, GIT},
};

/// The maximum number of entries below one protected name that are compared. A name with more counts
/// as changed, so a flood of files hides nothing. Each name has its own count.
const MOST_ENTRIES: usize = 4_096;

/// The maximum number of bytes of content that are compared below one protected name. Of the rest,
/// sizes and times are compared.
const MOST_CONTENT: u64 = 1 << 20;

/// The maximum number of entries of a root that are searched for names by their end.
const MOST_NAMES: usize = 65_536;

const FOLDER: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_CLOEXEC);

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
    /// Looks at the protected names of a root. This function reads files, so it may block.
    pub fn take(root: &Path) -> io::Result<Self> {
        let root: OwnedFd = nix::fcntl::open(root, FOLDER, Mode::empty())?;
        let found = git::places(&root);
        let mut names = candidates(&root)?;
        names.extend(found.places);
        let states = names.into_iter().filter_map(|name| {
            let state = state_of(&root, &name)?;
            Some((name.to_string_lossy().into_owned(), state))
        });
        let mut states: BTreeMap<String, NameState> = states.collect();
        let is_unclear = |path: PathBuf| {
            let state = NameState::Known("unclear".into());
            (path.to_string_lossy().into_owned(), state)
        };
        states.extend(found.unclear.into_iter().map(is_unclear));
        states.extend(identity_of(&root, GIT).map(|state| (GIT.to_owned(), state)));
        Ok(Self {
            folder: fstat(&root)?.st_ino,
            names: states,
        })
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
    let root: OwnedFd = nix::fcntl::open(root, FOLDER, Mode::empty()).ok()?;
    String::from_utf8(read_at(&root, name, MOST_CONTENT).ok()?).ok()
}

/// Reads a regular file below an open folder, through no link. Fails if it has more than `most`
/// bytes.
pub(super) fn read_at(root: &OwnedFd, path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (folder, name) = parent_of(root, path)?;
    read(&folder, &name, most)
}

/// Opens a folder below an open folder, through no link.
pub(super) fn folder_at(root: &OwnedFd, path: &Path) -> nix::Result<OwnedFd> {
    let mut folder = None;
    for part in path {
        let above = folder.as_ref().unwrap_or(root);
        let below = openat(above, part, FOLDER, Mode::empty()).map_err(|why| {
            // A link in place of the folder has no such name below it.
            if why == Errno::ELOOP {
                Errno::ENOTDIR
            } else {
                why
            }
        })?;
        folder = Some(below);
    }
    folder.map_or_else(|| openat(root, ".", FOLDER, Mode::empty()), Ok)
}

/// Returns the sorted names of the entries of a folder. Fails if there are more than `most`.
pub(super) fn names_in(folder: &OwnedFd, most: usize) -> nix::Result<Vec<OsString>> {
    let mut dir = Dir::openat(folder, ".", FOLDER, Mode::empty())?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
        if names.len() > most {
            return Err(Errno::EFBIG);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns the paths of a root that can be protected files. Most protected names do not exist, and
/// one list of the root is cheaper than a look at each of them.
fn candidates(root: &OwnedFd) -> nix::Result<BTreeSet<PathBuf>> {
    let entries = match names_in(root, MOST_NAMES) {
        Err(Errno::EFBIG) => return Ok(names::fixed().collect()),
        entries => entries?,
    };
    // A folder can ignore the case of letters.
    let is_entry = |first: &OsStr| entries.iter().any(|name| name.eq_ignore_ascii_case(first));
    let exists = |path: &PathBuf| path.iter().next().is_some_and(is_entry);
    let with_end = entries.iter().filter(|name| names::has_end(name));
    Ok(names::fixed()
        .filter(exists)
        .chain(with_end.map(PathBuf::from))
        .collect())
}

/// Returns the state of a name, or `None` if it does not exist.
fn state_of(root: &OwnedFd, name: &Path) -> Option<NameState> {
    let mut walk = Walk {
        digest: Sha256::new(),
        entries: MOST_ENTRIES,
        content: MOST_CONTENT,
    };
    match parent_of(root, name).and_then(|(folder, last)| walk.entry(&folder, &last)) {
        Ok(()) => Some(NameState::Known(hex(&walk.digest.finalize()))),
        Err(Errno::ENOENT | Errno::ENOTDIR) => None,
        Err(_) => Some(NameState::Unknown),
    }
}

/// Returns which folder, file or link a name is, without what is below it.
fn identity_of(root: &OwnedFd, name: &str) -> Option<NameState> {
    let found = fstatat(root, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    let kind = found.st_mode & SFlag::S_IFMT.bits();
    match kind == SFlag::S_IFDIR.bits() {
        true => Some(NameState::Known(format!("folder {}", found.st_ino))),
        false => state_of(root, Path::new(name)),
    }
}

/// Opens the parent folder of a path, through no link.
fn parent_of(root: &OwnedFd, path: &Path) -> nix::Result<(OwnedFd, OsString)> {
    let name = path.file_name().ok_or(Errno::EINVAL)?.to_owned();
    let folder = folder_at(root, path.parent().unwrap_or(Path::new("")))?;
    Ok((folder, name))
}

/// A walk through an entry and everything below it.
struct Walk {
    digest: Sha256,
    /// The numbers of entries and of bytes of content that may still follow.
    entries: usize,
    content: u64,
}

impl Walk {
    /// Adds an entry and all entries below it to the digest, in the order of their names.
    fn entry(&mut self, folder: &OwnedFd, name: &OsStr) -> nix::Result<()> {
        self.entries = self.entries.checked_sub(1).ok_or(Errno::EFBIG)?;
        let found = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
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
                        self.entry(&inner, &name)?;
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

fn read(folder: &OwnedFd, name: &OsStr, most: u64) -> io::Result<Vec<u8>> {
    let (file, status): (File, _) =
        regular_file::open(folder.as_fd(), name, OFlag::O_RDONLY, Mode::empty())
            .map_err(io::Error::from)?;
    let size = u64::try_from(status.st_size).unwrap_or(0).min(most);
    // The last byte lets the end be read without a larger buffer.
    let mut content = Vec::with_capacity(usize::try_from(size + 1).unwrap_or(0));
    file.take(most.saturating_add(1))
        .read_to_end(&mut content)?;
    match content.len() as u64 > most {
        true => Err(io::Error::other("too large")),
        false => Ok(content),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
