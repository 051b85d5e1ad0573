//! Records the state of a root's protected files at one time.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::{
    libc,
    sys::stat::{FileStat, SFlag},
};

use super::{GIT, IN_GIT, NAMES, is_exempt, tree::Tree};

/// The maximum number of protected files and folders that are recorded, and of bytes of their
/// contents. Files beyond the number are not recorded. Files that exceed the limit of bytes are
/// recorded without content, so a change of them is detected but cannot be undone.
const MOST_FILES: usize = 4096;
const MOST_BYTES: u64 = 8 * 1024 * 1024;

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
    taken: Duration,
    bytes: u64,
}

#[derive(Debug)]
pub(super) struct Repository {
    pub folder: OwnedFd,
    pub identity: (u64, u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FoundFile {
    Folder {
        mode: u32,
    },
    File(RecordedFile),
    Link {
        target: OsString,
    },
    /// A pipe, a socket or a device.
    Other,
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
struct Stamp {
    inode: u64,
    size: i64,
    changed: Duration,
}

/// The files whose content is read.
#[derive(Debug, Clone, Copy)]
enum ContentsToRead<'a> {
    All,
    /// Only files that may differ from this record.
    DifferentFrom(&'a ProtectionRecord),
}

impl ProtectionRecord {
    pub fn take(tree: &Tree) -> io::Result<Self> {
        Self::walk(tree, ContentsToRead::All)
    }

    /// Records the current state, to be compared with this record.
    pub fn again(&self, tree: &Tree) -> io::Result<Self> {
        Self::walk(tree, ContentsToRead::DifferentFrom(self))
    }

    fn walk(tree: &Tree, contents: ContentsToRead) -> io::Result<Self> {
        let taken = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut record = Self {
            taken,
            ..Self::default()
        };
        for name in NAMES {
            record.add(tree, PathBuf::from(name), contents)?;
        }
        let git = Path::new(GIT);
        match tree.stat(git)? {
            Some(found) if is(&found, SFlag::S_IFDIR) => {
                record.git = Some(Repository {
                    folder: tree.hold(git)?,
                    identity: (found.st_dev, found.st_ino),
                });
                for name in IN_GIT {
                    record.add(tree, git.join(name), contents)?;
                }
            }
            Some(_) => record.add(tree, git.to_owned(), contents)?,
            None => {}
        }
        Ok(record)
    }

    /// Adds a path and everything below it, except exempt paths. A file that is deleted in the
    /// meantime counts as absent.
    fn add(&mut self, tree: &Tree, top: PathBuf, contents: ContentsToRead) -> io::Result<()> {
        let mut next = vec![top];
        while let Some(path) = next.pop() {
            if is_exempt(&path) || self.found.len() >= MOST_FILES {
                continue;
            }
            let Some(stat) = tree.stat(&path)? else {
                continue;
            };
            let found = if is(&stat, SFlag::S_IFDIR) {
                next.extend(
                    tree.list(&path)
                        .unwrap_or_default()
                        .into_iter()
                        .map(|name| path.join(name)),
                );
                FoundFile::Folder {
                    mode: stat.st_mode & 0o777,
                }
            } else if is(&stat, SFlag::S_IFLNK) {
                FoundFile::Link {
                    target: tree.link_target(&path).unwrap_or_default(),
                }
            } else if is(&stat, SFlag::S_IFREG) {
                FoundFile::File(self.file(tree, &path, &stat, contents))
            } else {
                FoundFile::Other
            };
            self.found.insert(path, found);
        }
        Ok(())
    }

    fn file(
        &mut self,
        tree: &Tree,
        path: &Path,
        stat: &FileStat,
        contents: ContentsToRead,
    ) -> RecordedFile {
        let stamp = Stamp {
            inode: stat.st_ino,
            size: stat.st_size,
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
        };
        let mode = stat.st_mode & 0o7777;
        if let ContentsToRead::DifferentFrom(before) = contents
            && let Some(FoundFile::File(old)) = before.found.get(path)
            && old.stamp == stamp
            && old.mode == mode
            && stamp.changed + TICK < before.taken
        {
            return old.clone();
        }
        let content = tree.read(path, MOST_BYTES.saturating_sub(self.bytes)).ok();
        self.bytes += content.as_ref().map_or(0, |content| content.len() as u64);
        RecordedFile {
            mode,
            content,
            stamp,
        }
    }
}

impl FoundFile {
    /// Returns whether two entries are equal. Modes of folders are ignored. If the content of one
    /// of the files was not recorded, their stamps are compared instead.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(two))
                if one.content.is_some() && two.content.is_some() =>
            {
                one.mode == two.mode && one.content == two.content
            }
            (Self::File(one), Self::File(two)) => one.mode == two.mode && one.stamp == two.stamp,
            (Self::Folder { .. }, Self::Folder { .. }) => true,
            (Self::Link { .. } | Self::Other | Self::Folder { .. } | Self::File(_), _) => {
                self == other
            }
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
