//! A folder that is kept open. Files are opened from it component by component, and no step follows
//! a link, so a process that replaces a folder with a link cannot make a tool leave the workspace.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, Permissions},
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Component, Path},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat},
    sys::stat::{Mode, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};

use super::ResolvedPath;
use planck_host::regular_file;

const FOLDER: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// The parent folder of a file, kept open.
#[derive(Debug)]
pub struct ParentFolder {
    fd: OwnedFd,
    /// The name of the file in the folder.
    name: OsString,
}

impl ParentFolder {
    /// Opens the parent folder of a path. The folder must exist.
    pub fn open(place: &ResolvedPath) -> io::Result<Self> {
        Self::walk(place, |_, _| Err(Errno::ENOENT))
    }

    /// Opens a regular file below the working directory `dir`, provided that neither `dir` nor
    /// `path` contains a link or `..`. The file is then in the workspace, because `dir` is, and no
    /// path has to be resolved. Returns `None` in all other cases, including errors.
    pub fn read_without_links(dir: &Path, path: &str) -> Option<File> {
        let whole = dir.join(path);
        let below = whole.strip_prefix(dir).ok()?;
        let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if !dir.is_absolute() || !below.components().all(is_plain) {
            return None;
        }
        let links = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(FOLDER).resolve(links);
        let name = below.file_name()?.to_owned();
        let fd = openat2(AT_FDCWD, whole.parent()?, how).ok()?;
        Self { fd, name }.read().ok()
    }

    /// Opens the parent folder of a path, and creates missing folders.
    pub fn create(place: &ResolvedPath) -> io::Result<Self> {
        Self::walk(place, |folder, name| {
            match mkdirat(folder, name, Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EEXIST) => Ok(()),
                Err(why) => Err(why),
            }
        })
    }

    fn walk(
        place: &ResolvedPath,
        missing: impl Fn(&OwnedFd, &OsStr) -> nix::Result<()>,
    ) -> io::Result<Self> {
        let mut steps: Vec<&OsStr> = place.below.iter().collect();
        let name = steps.pop().ok_or(Errno::EISDIR)?.to_owned();
        let mut fd = open_root(&place.root)?;
        for step in steps {
            fd = match openat(&fd, step, FOLDER, Mode::empty()) {
                Err(Errno::ENOENT) => {
                    missing(&fd, step)?;
                    openat(&fd, step, FOLDER, Mode::empty())?
                }
                other => other?,
            };
        }
        Ok(Self { fd, name })
    }

    /// Opens a regular file. Any other kind of file, such as a pipe or a device, is refused before
    /// it can block.
    pub fn read(&self) -> io::Result<File> {
        Ok(regular_file::open(&self.fd, &self.name, OFlag::O_RDONLY, Mode::empty())?.0)
    }

    /// Creates the file or replaces it atomically. The new file has the mode of a readable old one,
    /// without the setuid and setgid bits, which were meant for the old content.
    pub fn write(&self, content: &[u8]) -> io::Result<()> {
        let mode = match self.read() {
            Ok(old) => Some(old.metadata()?.permissions().mode() & 0o777),
            Err(why) if why.kind() == io::ErrorKind::NotFound => None,
            // A user who may write to the folder may replace a file that is not readable.
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => None,
            Err(why) => return Err(why),
        };
        let draft = OsString::from(format!(".planck-{:016x}.tmp", fastrand::u64(..)));
        let written = self.write_draft(&draft, content, mode).and_then(|()| {
            renameat(&self.fd, draft.as_os_str(), &self.fd, self.name.as_os_str())
                .map_err(io::Error::from)
        });
        if written.is_err() {
            let _ = unlinkat(&self.fd, draft.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
        written
    }

    fn write_draft(&self, draft: &OsStr, content: &[u8], mode: Option<u32>) -> io::Result<()> {
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(
            &self.fd,
            draft,
            flags,
            Mode::from_bits_truncate(0o666),
        )?);
        file.write_all(content)?;
        if let Some(mode) = mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(())
    }
}

fn open_root(root: &Path) -> nix::Result<OwnedFd> {
    nix::fcntl::open(root, FOLDER, Mode::empty())
}
