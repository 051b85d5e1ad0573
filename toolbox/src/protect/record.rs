//! Records the state of a root's protected files at one time.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsString,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::{
    libc,
    sys::stat::{FileStat, SFlag},
};

use super::{GIT, IN_GIT, NAMES, is_exempt, tree::Tree};

/// The number of entries below one protected name after which the contents of further folders are
/// not recorded. The entries are counted for each name, so many files in one folder hide nothing in
/// another. Folders are recorded from the top down, because settings are in the upper ones.
const MOST_FILES: usize = 4096;

/// The maximum number of bytes of contents that are recorded. Files that exceed it are recorded
/// without content, so a change of them is detected but cannot be undone.
const MOST_BYTES: u64 = 8 * 1024 * 1024;

/// The rights of a folder's owner that a record needs, and those that a restoration needs.
const TO_READ: u32 = 0o500;
pub(super) const TO_CHANGE: u32 = 0o700;

/// An upper bound for the resolution of file times. Two changes of a file within one tick may have
/// the same change time. If a file's change time was more than one tick old when the record was
/// taken, and is still the same, the file has not changed since.
const TICK: Duration = Duration::from_secs(1);

/// The state of the protected files. Paths are relative to the root. A path that is not in the
/// record counts as missing.
#[derive(Debug, Default)]
pub(super) struct ProtectionRecord {
    pub found: BTreeMap<PathBuf, FoundFile>,
    /// The folder `.git`, kept open so that it can be found after it was moved.
    pub git: Option<Repository>,
    /// The folders to which the walk gave its owner the missing rights, each with its mode before.
    pub unlocked: Vec<(PathBuf, u32)>,
    root_mode: Option<u32>,
    taken: Duration,
    bytes: u64,
}

#[derive(Debug)]
pub(super) struct Repository {
    pub folder: OwnedFd,
    pub identity: (u64, u64),
    mode: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FoundFile {
    Folder {
        mode: u32,
        /// A stamp of the folder if its contents are not recorded, because they are too many or
        /// cannot be read.
        unread: Option<Stamp>,
    },
    File(RecordedFile),
    Link {
        target: OsString,
    },
    /// A pipe, a socket or a device.
    Other,
    /// An entry that exists and whose metadata cannot be read.
    Unreadable,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedFile {
    pub mode: u32,
    /// The content, or `None` if it exceeded the limit of bytes or could not be read.
    pub content: Option<Vec<u8>>,
    stamp: Stamp,
}

/// Properties of a file of which at least one changes with nearly every change of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    size: i64,
    changed: Duration,
}

impl ProtectionRecord {
    /// Records the current state. Leaves the modes of folders as they are.
    pub fn take(tree: &Tree) -> Self {
        let mut record = Self::walk(tree, None);
        for (path, mode) in std::mem::take(&mut record.unlocked).into_iter().rev() {
            set_mode_again(tree, &path, mode);
        }
        record
    }

    /// Records the current state, to be compared with this record and restored. The folders that
    /// this record contains are read completely, whatever was added to them.
    pub fn again(&self, tree: &Tree) -> Self {
        Self::walk(tree, Some(self))
    }

    /// Returns the mode that a folder had. The empty path stands for the root.
    pub fn mode_of(&self, folder: &Path) -> Option<u32> {
        if folder.as_os_str().is_empty() {
            return self.root_mode;
        }
        match self.found.get(folder) {
            Some(FoundFile::Folder { mode, .. }) => Some(*mode),
            Some(_) => None,
            None => {
                let git = self.git.as_ref().filter(|_| folder == Path::new(GIT));
                git.map(|git| git.mode)
            }
        }
    }

    fn walk(tree: &Tree, before: Option<&Self>) -> Self {
        let taken = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut record = Self {
            taken,
            ..Self::default()
        };
        let (root, git) = (Path::new(""), Path::new(GIT));
        record.root_mode = tree.mode_of_folder(root).ok();
        record.unlock(tree, root, record.root_mode, before);
        for name in NAMES {
            record.add(tree, PathBuf::from(name), before);
        }
        match tree.stat(git) {
            Ok(Some(found)) if is(&found, SFlag::S_IFDIR) => {
                let mode = found.st_mode & 0o7777;
                record.unlock(tree, git, Some(mode), before);
                record.git = tree.hold(git).ok().map(|folder| Repository {
                    folder,
                    identity: (found.st_dev, found.st_ino),
                    mode,
                });
                for name in IN_GIT {
                    record.add(tree, git.join(name), before);
                }
            }
            Ok(Some(_)) | Err(_) => record.add(tree, git.to_owned(), before),
            Ok(None) => {}
        }
        record
    }

    /// Gives the folder's owner the rights that this walk needs. A tool may have removed them, to
    /// hide what it changed. If that fails, the folder's entries are recorded as unreadable. A
    /// folder whose known mode includes the rights is not opened, because a walk precedes and
    /// follows every tool call.
    fn unlock(&mut self, tree: &Tree, folder: &Path, mode: Option<u32>, before: Option<&Self>) {
        let needed = before.map_or(TO_READ, |_| TO_CHANGE);
        if mode.is_some_and(|mode| mode & needed == needed) {
            return;
        }
        if let Ok(Some(mode)) = tree.unlock(folder, needed) {
            self.unlocked.push((folder.to_owned(), mode));
        }
    }

    /// Adds a path and everything below it, except exempt paths. A file that is deleted in the
    /// meantime counts as absent.
    fn add(&mut self, tree: &Tree, top: PathBuf, before: Option<&Self>) {
        let mut left = MOST_FILES;
        let mut folders = VecDeque::new();
        let mut entries = vec![top];
        loop {
            left = left.saturating_sub(entries.len());
            for path in entries {
                let Some(found) = self.entry(tree, &path, before) else {
                    continue;
                };
                if let FoundFile::Folder { mode, .. } = found {
                    folders.push_back((path.clone(), mode));
                }
                self.found.insert(path, found);
            }
            let Some((folder, mode)) = folders.pop_front() else {
                return;
            };
            entries = Vec::new();
            // A folder that the first record lacks is removed as a whole, so its contents are only
            // read to keep them.
            let is_read = match before.and_then(|before| before.found.get(&folder)) {
                Some(FoundFile::Folder { unread, .. }) => unread.is_none(),
                Some(_) | None => left > 0,
            };
            if is_read {
                self.unlock(tree, &folder, Some(mode), before);
                if let Ok(names) = tree.list(&folder) {
                    let paths = names.into_iter().map(|name| folder.join(name));
                    entries = paths.filter(|path| !is_exempt(path)).collect();
                    continue;
                }
            }
            let stat = tree.stat(&folder).ok().flatten();
            if let Some(FoundFile::Folder { unread, .. }) = self.found.get_mut(&folder) {
                *unread = stat.as_ref().map(Stamp::of);
            }
        }
    }

    /// Returns the record of an entry, or `None` if nothing is there. The contents of a folder are
    /// not read yet.
    fn entry(&mut self, tree: &Tree, path: &Path, before: Option<&Self>) -> Option<FoundFile> {
        let stat = match tree.stat(path) {
            Ok(stat) => stat?,
            Err(_) => return Some(FoundFile::Unreadable),
        };
        Some(if is(&stat, SFlag::S_IFDIR) {
            FoundFile::Folder {
                mode: stat.st_mode & 0o7777,
                unread: None,
            }
        } else if is(&stat, SFlag::S_IFLNK) {
            FoundFile::Link {
                target: tree.link_target(path).unwrap_or_default(),
            }
        } else if is(&stat, SFlag::S_IFREG) {
            FoundFile::File(self.file(tree, path, &stat, before))
        } else {
            FoundFile::Other
        })
    }

    fn file(
        &mut self,
        tree: &Tree,
        path: &Path,
        stat: &FileStat,
        before: Option<&Self>,
    ) -> RecordedFile {
        let stamp = Stamp::of(stat);
        let mode = stat.st_mode & 0o7777;
        if let Some(before) = before
            && let Some(FoundFile::File(old)) = before.found.get(path)
            && old.stamp == stamp
            && old.mode == mode
            && stamp.changed + TICK < before.taken
        {
            return old.clone();
        }
        let room = MOST_BYTES.saturating_sub(self.bytes);
        let fits = u64::try_from(stat.st_size).is_ok_and(|size| size <= room);
        let content = fits.then(|| tree.read(path, room).ok()).flatten();
        self.bytes += content.as_ref().map_or(0, |content| content.len() as u64);
        RecordedFile {
            mode,
            content,
            stamp,
        }
    }
}

/// Sets the mode of a folder to a recorded one. An error is only logged, because the owner then has
/// more rights than before, and no other user has.
pub(super) fn set_mode_again(tree: &Tree, folder: &Path, mode: u32) {
    if let Err(why) = tree.set_folder_mode(folder, mode) {
        tracing::warn!(folder = %folder.display(), %why, "cannot set the mode of a protected folder again");
    }
}

impl Stamp {
    fn of(stat: &FileStat) -> Self {
        Self {
            inode: stat.st_ino,
            size: stat.st_size,
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

impl FoundFile {
    /// Returns whether two entries are equal. Modes of folders are ignored. If the content of one
    /// of the files or the contents of the folders were not recorded, the stamps are compared
    /// instead.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(two))
                if one.content.is_some() && two.content.is_some() =>
            {
                one.mode == two.mode && one.content == two.content
            }
            (Self::File(one), Self::File(two)) => one.mode == two.mode && one.stamp == two.stamp,
            (Self::Folder { unread: one, .. }, Self::Folder { unread: two, .. }) => one == two,
            (
                Self::Link { .. }
                | Self::Other
                | Self::Unreadable
                | Self::Folder { .. }
                | Self::File(_),
                _,
            ) => self == other,
        }
    }
}

fn is(stat: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == kind
}

fn time(seconds: libc::time_t, nanoseconds: i64) -> Duration {
    Duration::new(
        u64::try_from(seconds).unwrap_or_default(),
        u32::try_from(nanoseconds).unwrap_or_default(),
    )
}
