//! An open root of a workspace, below which the wall looks for protected files without following a
//! link. It remembers at which entries it looked, so that a later look can tell in a few system calls
//! that nothing has changed.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::{
        stat::{FileStat, Mode, fstat, fstatat},
        statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, XFS_SUPER_MAGIC, fstatfs},
    },
};
use planck_host::regular_file;

pub(super) const FOLDER: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_CLOEXEC);

/// The file systems of which the kernel keeps the time of an entry's latest change (ctime) in every
/// case, so that no tool can leave it as it was. tmpfs does not see a write through a mapping, what is
/// below an overlay can be tmpfs, and others take the time from a server or a program.
pub(super) const KNOWN: &[FsType] = &[BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC];

/// How old the latest change of an entry must be when it is looked at. Two changes in quicker
/// succession can leave the same times.
const SETTLED: Duration = Duration::from_secs(2);

/// The maximum number of entries that are remembered.
const MOST_SEEN: usize = 256;

/// An open root.
pub(super) struct Root {
    fd: OwnedFd,
    opened: SystemTime,
    /// The entries at which this root looked, with what they were just before.
    seen: RefCell<BTreeMap<PathBuf, nix::Result<Stamp>>>,
}

/// What the kernel tells about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    mode: u32,
    size: i64,
    modified: (i64, i64),
    /// A tool can set every time but this one.
    changed: (i64, i64),
}

impl From<&FileStat> for Stamp {
    fn from(found: &FileStat) -> Self {
        Self {
            device: found.st_dev,
            inode: found.st_ino,
            mode: found.st_mode,
            size: found.st_size,
            modified: (found.st_mtime, found.st_mtime_nsec),
            changed: (found.st_ctime, found.st_ctime_nsec),
        }
    }
}

/// The entries at which a root looked.
#[derive(Debug, Clone)]
pub(super) struct SeenEntries(BTreeMap<PathBuf, nix::Result<Stamp>>);

impl Root {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let opened = SystemTime::now();
        let fd = nix::fcntl::open(path, FOLDER, Mode::empty())?;
        let root = Self {
            seen: RefCell::default(),
            opened,
            fd,
        };
        root.saw(Path::new(""), &fstat(&root.fd));
        Ok(root)
    }

    /// Returns the inode of the root.
    pub(super) fn inode(&self) -> io::Result<u64> {
        Ok(fstat(&self.fd)?.st_ino)
    }

    /// Returns the entries at which this root looked, or `None` if they cannot tell later that
    /// nothing has changed.
    pub(super) fn into_seen(self) -> Option<SeenEntries> {
        let is_known = fstatfs(&self.fd).is_ok_and(|fs| KNOWN.contains(&fs.filesystem_type()));
        let seen = self.seen.into_inner();
        let device = seen.get(Path::new(""))?.ok()?.device;
        let settled = self.opened.checked_sub(SETTLED)?;
        let settled = settled.duration_since(UNIX_EPOCH).ok()?;
        let is_settled = |found: &nix::Result<Stamp>| match found {
            Ok(stamp) => {
                let (seconds, _) = stamp.changed;
                stamp.device == device
                    && u64::try_from(seconds).is_ok_and(|at| at < settled.as_secs())
            }
            Err(why) => matches!(why, Errno::ENOENT | Errno::ENOTDIR),
        };
        let may_tell = is_known && seen.len() <= MOST_SEEN && seen.values().all(is_settled);
        may_tell.then_some(SeenEntries(seen))
    }

    /// Returns what an entry of an open folder is. `path` is its path below the root.
    pub(super) fn look(
        &self,
        folder: &OwnedFd,
        name: &OsStr,
        path: &Path,
    ) -> nix::Result<FileStat> {
        let found = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        self.saw(path, &found);
        found
    }

    /// Opens a folder below the root, through no link.
    pub(super) fn folder_at(&self, path: &Path) -> nix::Result<OwnedFd> {
        let mut folder = None;
        let mut at = PathBuf::new();
        for part in path {
            at.push(part);
            let above = folder.as_ref().unwrap_or(&self.fd);
            self.look(above, part, &at)?;
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
        folder.map_or_else(|| openat(&self.fd, ".", FOLDER, Mode::empty()), Ok)
    }

    /// Opens the parent folder of a path, through no link.
    pub(super) fn parent_of(&self, path: &Path) -> nix::Result<(OwnedFd, OsString)> {
        let name = path.file_name().ok_or(Errno::EINVAL)?.to_owned();
        let folder = self.folder_at(path.parent().unwrap_or(Path::new("")))?;
        Ok((folder, name))
    }

    /// Reads a regular file, through no link. Fails if it has more than `most` bytes.
    pub(super) fn read_at(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let (folder, name) = self.parent_of(path)?;
        self.look(&folder, &name, path)?;
        read(&folder, &name, most)
    }

    /// Remembers an entry as it was when it was first looked at.
    fn saw(&self, path: &Path, found: &nix::Result<FileStat>) {
        let mut seen = self.seen.borrow_mut();
        if seen.len() <= MOST_SEEN && !seen.contains_key(path) {
            seen.insert(path.to_owned(), stamped(found));
        }
    }
}

fn stamped(found: &nix::Result<FileStat>) -> nix::Result<Stamp> {
    found.as_ref().map(Stamp::from).map_err(|why| *why)
}

impl SeenEntries {
    /// Returns whether each entry is still what it was.
    pub(super) fn is_unchanged(&self, root: &Path) -> bool {
        let Ok(root) = nix::fcntl::open(root, FOLDER, Mode::empty()) else {
            return false;
        };
        self.0.iter().all(|(path, before)| {
            let now = match path.as_os_str().is_empty() {
                true => fstat(&root),
                false => fstatat(&root, path, AtFlags::AT_SYMLINK_NOFOLLOW),
            };
            stamped(&now) == *before
        })
    }
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

/// Reads a regular file of an open folder. Fails if it has more than `most` bytes.
pub(super) fn read(folder: &OwnedFd, name: &OsStr, most: u64) -> io::Result<Vec<u8>> {
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
