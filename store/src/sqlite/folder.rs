//! An open directory of the store, and the checks of files before they are opened. The store must
//! not follow a symbolic link, block on a FIFO, or write to a file that has another hard link. It
//! opens files relative to the directory's descriptor, except databases, which SQLite opens by
//! their paths.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _},
        },
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, openat},
    sys::stat::{Mode, SFlag, fstat, fstatat, mkdirat},
    unistd::{UnlinkatFlags, linkat, unlinkat},
};

use planck_host::regular_file::{self, NotOpened};

use super::{fault, read_only};
use crate::StoreError;

/// The mode of new folders. Other users must not read what agents did.
const PRIVATE_FOLDER: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;

const FOREIGN: &str = "it belongs to another user";

const PUT_RIGHT: &str = "remove it, or name another folder with `--store sqlite:DIR`";
const WRITABLE: &str =
    "give this user write permission to the folder, or name another one with `--store sqlite:DIR`";

/// An open directory.
#[derive(Debug)]
pub struct StoreFolder {
    fd: OwnedFd,
    path: PathBuf,
}

impl StoreFolder {
    /// Opens a directory, and creates it and its parents if they do not exist. Refuses a symbolic
    /// link in its place.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let path: PathBuf = path.components().collect();
        let created = fs::DirBuilder::new()
            .recursive(true)
            .mode(PRIVATE_FOLDER)
            .create(&path);
        match created {
            Ok(()) => Self::enter(AT_FDCWD, &path, &path),
            Err(error) => Err(Self::refusal(AT_FDCWD, &path, &path)
                .unwrap_or_else(|| fault::refused(&path, &error, WRITABLE))),
        }
    }

    /// Opens an existing directory.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let path: PathBuf = path.components().collect();
        Self::enter(AT_FDCWD, &path, &path)
    }

    /// Opens a subdirectory, and creates it if it does not exist.
    pub fn create_folder(&self, name: &str) -> Result<Self, StoreError> {
        let path = self.path.join(name);
        match mkdirat(
            self.fd.as_fd(),
            name,
            Mode::from_bits_truncate(mode(PRIVATE_FOLDER)),
        ) {
            Ok(()) | Err(Errno::EEXIST) => Self::enter(self.fd.as_fd(), Path::new(name), &path),
            Err(errno) => Err(fault::refused(&path, &errno.into(), WRITABLE)),
        }
    }

    /// Opens a subdirectory. Returns `None` if it does not exist.
    pub fn find_folder(&self, name: &str) -> Result<Option<Self>, StoreError> {
        match fstatat(self.fd.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => Ok(None),
            Ok(_) | Err(_) => {
                Self::enter(self.fd.as_fd(), Path::new(name), &self.path.join(name)).map(Some)
            }
        }
    }

    fn enter(
        at: impl std::os::fd::AsFd + Copy,
        name: &Path,
        path: &Path,
    ) -> Result<Self, StoreError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(at, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Self {
                fd,
                path: path.to_owned(),
            }),
            Err(errno) => Err(Self::refusal(at, name, path)
                .unwrap_or_else(|| fault::refused(path, &errno.into(), WRITABLE))),
        }
    }

    /// Returns the error for an entry that is not a directory, or `None` for a directory or a
    /// missing entry.
    fn refusal(at: impl std::os::fd::AsFd, name: &Path, path: &Path) -> Option<StoreError> {
        let stat = fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        let what = if kind == SFlag::S_IFLNK {
            "it is a link"
        } else {
            "it is no folder"
        };
        (kind != SFlag::S_IFDIR).then(|| fault::broken(path, what, PUT_RIGHT))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns why other users can change the directory, or `None` if only this user can.
    pub fn exposure(&self) -> Result<Option<&'static str>, StoreError> {
        let there = fstat(self.fd.as_fd())
            .map_err(|errno| fault::refused(&self.path, &errno.into(), WRITABLE))?;
        let others = Mode::S_IWGRP | Mode::S_IWOTH;
        Ok(if there.st_uid != nix::unistd::geteuid().as_raw() {
            Some(FOREIGN)
        } else if Mode::from_bits_truncate(there.st_mode).intersects(others) {
            Some("other users can write to it")
        } else {
            None
        })
    }

    /// Returns the folder unchanged, or an error if it belongs to another user, who could exchange
    /// its files. A folder that a user names may admit more users than the default one.
    pub fn owned(self) -> Result<Self, StoreError> {
        match self.exposure()? {
            Some(FOREIGN) => Err(fault::broken(
                &self.path,
                FOREIGN,
                "run as that user, or name another store with `--store sqlite:DIR`",
            )),
            Some(_) | None => Ok(self),
        }
    }

    /// Opens a file of any owner for reading. Returns `None` if it does not exist.
    pub fn read_file(&self, name: &str) -> Result<Option<File>, StoreError> {
        match self.open_file(name, OFlag::O_RDONLY) {
            Err(FileRefusal::Missing) => Ok(None),
            Err(FileRefusal::Store(error)) => Err(error),
            Ok(file) => Ok(Some(file)),
        }
    }

    /// Opens a file for reading and writing. Returns `None` if it does not exist.
    pub fn find_file(&self, name: &str) -> Result<Option<File>, StoreError> {
        match self.open_file(name, OFlag::O_RDWR) {
            Err(FileRefusal::Missing) => Ok(None),
            Err(FileRefusal::Store(error)) => Err(error),
            Ok(file) => Ok(Some(file)),
        }
    }

    /// Opens a file for reading and writing, and creates it if it does not exist.
    pub fn create_file(&self, name: &str) -> Result<File, StoreError> {
        match self.open_file(name, OFlag::O_RDWR | OFlag::O_CREAT) {
            Ok(file) => Ok(file),
            Err(FileRefusal::Missing) => {
                Err(fault::broken(&self.path, "it was removed", "start again"))
            }
            Err(FileRefusal::Store(error)) => Err(error),
        }
    }

    fn open_file(&self, name: &str, flags: OFlag) -> Result<File, FileRefusal> {
        let path = self.path.join(name);
        let private = Mode::from_bits_truncate(mode(PRIVATE_FILE));
        let file = match regular_file::open(&self.fd, name.as_ref(), flags, private) {
            Ok((file, _)) => file,
            Err(NotOpened::Missing) => return Err(FileRefusal::Missing),
            Err(NotOpened::Kind(_)) => return Err(FileRefusal::Store(refuse(&path))),
            Err(NotOpened::Io(error)) => {
                return Err(FileRefusal::Store(fault::refused(&path, &error, WRITABLE)));
            }
        };
        let there = file
            .metadata()
            .map_err(|error| FileRefusal::Store(fault::refused(&path, &error, WRITABLE)))?;
        let wrong = if flags.contains(OFlag::O_RDWR) {
            complaint(&there)
        } else {
            kind_complaint(&there)
        };
        match wrong {
            Some(what) => Err(FileRefusal::Store(fault::broken(&path, what, PUT_RIGHT))),
            None => Ok(file),
        }
    }

    /// Returns the names of all entries that are valid UTF-8.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let failed = |errno: Errno| {
            fault::refused(
                &self.path,
                &errno.into(),
                "give this user read permission to the folder",
            )
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = Dir::openat(self.fd.as_fd(), ".", flags, Mode::empty()).map_err(failed)?;
        let names = dir
            .iter()
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        Ok(names.filter(|name| name != "." && name != "..").collect())
    }

    /// Returns whether this name in the directory leads to the open `file`.
    pub fn holds(&self, name: &str, file: &File) -> bool {
        let there = fstatat(self.fd.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW);
        there.is_ok_and(|there| {
            file.metadata()
                .is_ok_and(|open| open.ino() == there.st_ino && same_device(&open, &there))
        })
    }

    /// Removes an entry. If it is a symbolic link, the link itself is removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(self.fd.as_fd(), name, UnlinkatFlags::NoRemoveDir)?)
    }
}

enum FileRefusal {
    Missing,
    Store(StoreError),
}

/// Checks the file at `path` and its journals before SQLite opens them. Each that exists must be a
/// regular file with one hard link. With `create`, creates a missing file that only this user can
/// read and write. SQLite gives the journals the same permissions.
pub fn admit(path: &Path, create: bool) -> Result<(), StoreError> {
    for end in ["", "-wal", "-shm", "-journal"] {
        let beside = read_only::beside(path, end);
        if fs::symlink_metadata(&beside).is_ok_and(|there| kind_complaint(&there).is_some()) {
            return Err(refuse(&beside));
        }
    }
    if create
        && let (Some(folder), Some(name)) = (
            path.parent(),
            path.file_name().and_then(|name| name.to_str()),
        )
        && fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    {
        StoreFolder::open(folder)?.create_file(name)?;
    }
    Ok(())
}

/// Creates a file with this content in one step. Other processes see the file complete or not at
/// all, and a process that dies meanwhile leaves nothing behind. Returns `false` if the file or one
/// of its journals already exists, if the file system has no unnamed files, or if writing fails.
pub fn create_with(path: &Path, content: &[u8], full_sync: bool) -> bool {
    let is_there = |end| fs::symlink_metadata(read_only::beside(path, end)).is_ok();
    if ["-wal", "-shm", "-journal"].into_iter().any(is_there) {
        return false;
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return false;
    };
    let create = || -> io::Result<()> {
        let folder = File::open(folder)?;
        let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let private = Mode::from_bits_truncate(mode(PRIVATE_FILE));
        let mut unnamed = File::from(openat(&folder, ".", flags, private)?);
        unnamed.write_all(content)?;
        if full_sync {
            unnamed.sync_all()?;
        }
        let unnamed = format!("/proc/self/fd/{}", unnamed.as_raw_fd());
        let follow = AtFlags::AT_SYMLINK_FOLLOW;
        linkat(AT_FDCWD, unnamed.as_str(), &folder, name, follow)?;
        if full_sync && let Err(error) = folder.sync_all() {
            // The caller creates the file in another way, and must not find this one.
            unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir)?;
            return Err(error);
        }
        Ok(())
    };
    create().is_ok()
}

fn refuse(path: &Path) -> StoreError {
    let there = fs::symlink_metadata(path);
    let what = there
        .ok()
        .and_then(|there| complaint(&there))
        .unwrap_or("it is no regular file");
    fault::broken(path, what, PUT_RIGHT)
}

/// Returns why the store refuses to write to a file, or `None` if it accepts the file.
fn complaint(there: &fs::Metadata) -> Option<&'static str> {
    let foreign = there.uid() != nix::unistd::geteuid().as_raw();
    kind_complaint(there).or(foreign.then_some(FOREIGN))
}

fn kind_complaint(there: &fs::Metadata) -> Option<&'static str> {
    let kind = there.file_type();
    match () {
        () if kind.is_symlink() => Some("it is a link"),
        () if kind.is_fifo() => Some("it is a FIFO"),
        () if kind.is_dir() => Some("it is a folder"),
        () if kind.is_socket() => Some("it is a socket"),
        () if !kind.is_file() => Some("it is a device"),
        () if there.nlink() > 1 => Some("it is a hard link: the same file has another name"),
        () => None,
    }
}

/// Converts permission bits to the system's type for them, which is narrower on some systems.
#[allow(
    clippy::useless_conversion,
    clippy::unnecessary_fallible_conversions,
    reason = "the type differs between systems"
)]
fn mode(bits: u32) -> nix::libc::mode_t {
    bits.try_into().unwrap_or(0)
}

#[allow(
    clippy::unnecessary_cast,
    clippy::cast_sign_loss,
    reason = "the type differs between systems"
)]
fn same_device(open: &fs::Metadata, there: &nix::sys::stat::FileStat) -> bool {
    open.dev() == there.st_dev as u64
}

// The default folder of a project's sessions, in the user's data directory. Planck creates the
// folder, and uses it only if it and all its parents below the data directory belong to this user,
// cannot be written by other users, and are no symbolic links. A marker file names the project.

/// The file beside the sessions folder that contains the path of its project.
const MARKER: &str = "project";

/// The maximum size of a marker in bytes.
const LONGEST_MARKER: u64 = 16 * 1024;

/// A project and the data directory that contains its sessions.
#[derive(Debug, Clone)]
pub struct OwnPlace {
    /// The user's data directory. It may be a symbolic link, but there must be none below it.
    pub data: PathBuf,
    /// The root folder of the project.
    pub project: PathBuf,
}

impl OwnPlace {
    /// Creates the missing folders and the marker, and returns the folder of sessions.
    pub fn make(&self, sessions: &Path) -> Result<StoreFolder, StoreError> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.data);
        made.map_err(|error| {
            fault::refused(
                &self.data,
                &error,
                "set HOME or XDG_DATA_HOME to a folder this user can write",
            )
        })?;
        let mut folder = self.base()?;
        for name in self.names(sessions)? {
            let is_last = sessions.ends_with(&name);
            if is_last {
                self.mark(&folder)?;
            }
            folder = private(folder.create_folder(&name)?)?;
        }
        Ok(folder)
    }

    /// Returns the folder of sessions without changing anything, or `None` if it does not exist
    /// yet.
    pub fn find(&self, sessions: &Path) -> Result<Option<StoreFolder>, StoreError> {
        if !self.data.exists() {
            return Ok(None);
        }
        let mut folder = self.base()?;
        for name in self.names(sessions)? {
            if sessions.ends_with(&name) {
                self.check_mark(&folder)?;
            }
            let Some(next) = folder.find_folder(&name)? else {
                return Ok(None);
            };
            folder = private(next)?;
        }
        Ok(Some(folder))
    }

    fn base(&self) -> Result<StoreFolder, StoreError> {
        let data = fs::canonicalize(&self.data);
        let data = data.map_err(|error| {
            fault::refused(&self.data, &error, "set HOME or XDG_DATA_HOME to a folder")
        })?;
        StoreFolder::open(&data)
    }

    /// Returns the names of the folders from the data directory down to the sessions.
    fn names(&self, sessions: &Path) -> Result<Vec<String>, StoreError> {
        let below = sessions.strip_prefix(&self.data).unwrap_or(sessions);
        let name = |part: Component<'_>| match part {
            Component::Normal(name) => name.to_str().map(str::to_owned),
            Component::Prefix(_)
            | Component::RootDir
            | Component::CurDir
            | Component::ParentDir => None,
        };
        let names: Option<Vec<String>> = below.components().map(name).collect();
        names.ok_or_else(|| {
            fault::broken(
                sessions,
                "it is not below the data directory",
                "name a store with `--store sqlite:DIR`",
            )
        })
    }

    /// Writes the marker into an empty folder. Fails if a folder with content has no marker or that
    /// of another project.
    fn mark(&self, place: &StoreFolder) -> Result<(), StoreError> {
        if place.names()?.is_empty() {
            let mut file = place.create_file(MARKER)?;
            let path = place.path().join(MARKER);
            let failed = |error: std::io::Error| {
                fault::refused(
                    &path,
                    &error,
                    "free some space, or name a store with `--store`",
                )
            };
            file.write_all(self.project.as_os_str().as_bytes())
                .and_then(|()| file.sync_all())
                .map_err(failed)?;
        }
        self.check_mark(place)
    }

    fn check_mark(&self, place: &StoreFolder) -> Result<(), StoreError> {
        let way_out =
            "name it with `--store sqlite:DIR` if you trust what it holds, or move it away";
        let mut project = Vec::new();
        if let Some(file) = place.find_file(MARKER)? {
            let read = file.take(LONGEST_MARKER).read_to_end(&mut project);
            read.map_err(|error| fault::refused(place.path(), &error, way_out))?;
        } else if place.names()?.is_empty() {
            return Ok(());
        }
        if project == self.project.as_os_str().as_bytes() {
            return Ok(());
        }
        let what = match project.is_empty() {
            true => "planck did not make it".to_owned(),
            false => format!(
                "it belongs to {}",
                String::from_utf8_lossy(&project).escape_debug()
            ),
        };
        Err(fault::broken(place.path(), what, way_out))
    }
}

/// Returns the folder unchanged, or an error if it belongs to another user or other users can write
/// to it.
fn private(folder: StoreFolder) -> Result<StoreFolder, StoreError> {
    match folder.exposure()? {
        None => Ok(folder),
        Some(what) => {
            let way_out = "correct it with `chown` and `chmod 700`, or name another store with `--store sqlite:DIR`";
            Err(fault::broken(folder.path(), what, way_out))
        }
    }
}
