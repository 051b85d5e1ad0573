//! Decides which files an agent may access: those that are inside the roots of its workspace after
//! links are resolved.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, Permissions},
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat},
    sys::stat::{Mode, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};

use planck_host::regular_file;

use crate::protect;

/// The folders that the agents of a node may access.
#[derive(Debug, Clone)]
pub struct Roots {
    /// The named workspaces. An agent may access its working directory, which is in one of them or
    /// elsewhere, and not the rest of the workspace.
    workspaces: Arc<[PathBuf]>,
    /// Folders that every agent may read and change.
    shared: Arc<[PathBuf]>,
    /// Folders that every agent may read but not change.
    readable: Arc<[PathBuf]>,
    confined: bool,
}

impl Roots {
    pub fn confined(workspaces: Vec<PathBuf>, shared: Vec<PathBuf>) -> Self {
        Self {
            workspaces: workspaces.into(),
            shared: shared.into(),
            readable: Arc::default(),
            confined: true,
        }
    }

    /// Sets the folders that every agent may read but not change.
    pub fn with_readable(self, readable: Vec<PathBuf>) -> Self {
        Self {
            readable: readable.into(),
            ..self
        }
    }

    /// Returns roots that contain every file of the machine.
    pub fn unconfined() -> Self {
        Self {
            workspaces: Arc::default(),
            shared: Arc::default(),
            readable: Arc::default(),
            confined: false,
        }
    }

    /// Returns the workspace of an agent with the working directory `dir`. Fails if `dir` cannot be
    /// resolved, or if a link stands in place of one of its folders: an agent with access to the
    /// parent folder may have put it there. The path of a named workspace itself may have links.
    pub fn of(&self, dir: &Path) -> io::Result<Workspace> {
        let real = dir.canonicalize()?;
        if !self.confined {
            return Ok(Workspace {
                dir: real,
                roots: vec![PathBuf::from("/")],
                readable: Vec::new(),
            });
        }
        if self.without_links(dir) != real {
            return Err(io::Error::other(format!(
                "{} leads to {} through a link; a session works in the folder in which it began",
                dir.display(),
                real.display()
            )));
        }
        let readable = self.readable.iter().filter_map(known).collect();
        Ok(Workspace {
            roots: self.roots_of(&real),
            dir: real,
            readable,
        })
    }

    /// Returns the path of `dir` after the links in the path of its named workspace are resolved.
    fn without_links(&self, dir: &Path) -> PathBuf {
        let roots = self.workspaces.iter().chain(self.shared.iter());
        let holding = roots.filter_map(|root| Some((known(root)?, dir.strip_prefix(root).ok()?)));
        let innermost = holding.min_by_key(|(_, rest)| rest.as_os_str().len());
        let path = innermost.map_or_else(|| dir.to_owned(), |(root, rest)| root.join(rest));
        // The path of the root itself ends with a slash after a join with nothing.
        path.components().collect()
    }

    fn roots_of(&self, dir: &Path) -> Vec<PathBuf> {
        std::iter::once(dir.to_owned())
            .chain(self.shared.iter().filter_map(known))
            .collect()
    }
}

fn known(path: impl AsRef<Path>) -> Option<PathBuf> {
    path.as_ref().canonicalize().ok()
}

/// The files that one agent may access.
#[derive(Debug, Clone)]
pub struct Workspace {
    dir: PathBuf,
    roots: Vec<PathBuf>,
    readable: Vec<PathBuf>,
}

/// The reason why a path cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    #[error("{path} is outside of the workspace; paths must stay inside {roots}")]
    Outside { path: String, roots: String },
    #[error("{path} may be read but not changed: {root} is readable only")]
    ReadOnly { path: String, root: String },
    #[error(
        "{path} may not be changed by tools: what is in `{part}` can make other programs run code later"
    )]
    Protected { path: String, part: String },
    #[error("{path} goes through a link to {target}, which does not exist")]
    Dangling { path: String, target: String },
    #[error("cannot reach {path}: {why}")]
    Io { path: String, why: io::Error },
}

/// The path of a file, divided into the root that contains it and the rest. All links are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPath {
    pub root: PathBuf,
    /// The path relative to the root. It contains neither `.` nor `..`.
    pub below: PathBuf,
}

impl ResolvedPath {
    pub fn path(&self) -> PathBuf {
        if self.below.as_os_str().is_empty() {
            self.root.clone()
        } else {
            self.root.join(&self.below)
        }
    }
}

impl Workspace {
    /// Returns the working directory as an absolute path without links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// Returns the folders that the agent may read but not change.
    pub fn readable(&self) -> &[PathBuf] {
        &self.readable
    }

    /// Resolves a path that a model gave for a file to change. Refuses a path in a folder that the
    /// agent may only read, and a path with a protected component. The file and its parent folders
    /// need not exist.
    pub fn place_to_change(&self, path: &str) -> Result<ResolvedPath, PathError> {
        let place = self.place(path)?;
        if !self.roots.contains(&place.root) {
            return Err(PathError::ReadOnly {
                path: path.into(),
                root: place.root.display().to_string(),
            });
        }
        match protect::refused(&place) {
            Some(part) => Err(PathError::Protected {
                path: path.into(),
                part: part.into(),
            }),
            None => Ok(place),
        }
    }

    /// Resolves a path from a model. The file and its parent folders need not exist.
    pub fn place(&self, path: &str) -> Result<ResolvedPath, PathError> {
        let real = self.resolve(path)?;
        let mut roots = self.roots.iter().chain(&self.readable);
        let root = roots
            .find(|root| real.starts_with(root))
            .ok_or_else(|| self.outside(path))?;
        let below = real
            .strip_prefix(root)
            .map_err(|_| self.outside(path))?
            .to_owned();
        Ok(ResolvedPath {
            root: root.clone(),
            below,
        })
    }

    /// Resolves the links in the longest part of a path that exists, and appends the rest
    /// unchanged.
    fn resolve(&self, path: &str) -> Result<PathBuf, PathError> {
        let whole = self.dir.join(path);
        let mut rest = Vec::new();
        let mut known = whole.as_path();
        loop {
            match known.canonicalize() {
                Ok(real) => return self.append(real, &rest, path),
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Err(why) => {
                    return Err(PathError::Io {
                        path: path.into(),
                        why,
                    });
                }
            }
            if let Ok(target) = known.read_link() {
                return Err(PathError::Dangling {
                    path: path.into(),
                    target: target.display().to_string(),
                });
            }
            rest.extend(known.components().next_back());
            known = known.parent().ok_or_else(|| self.outside(path))?;
        }
    }

    /// Appends the components of a path that do not exist. `..` is refused among them, because it
    /// cannot be resolved.
    fn append(
        &self,
        mut real: PathBuf,
        rest: &[Component],
        path: &str,
    ) -> Result<PathBuf, PathError> {
        for step in rest.iter().rev() {
            match step {
                Component::Normal(name) => real.push(name),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(self.outside(path));
                }
            }
        }
        Ok(real)
    }

    fn outside(&self, path: &str) -> PathError {
        let roots = self
            .roots
            .iter()
            .map(|root| root.display().to_string())
            .collect::<Vec<_>>()
            .join(", ");
        PathError::Outside {
            path: path.into(),
            roots,
        }
    }
}

// A folder that is kept open. Files are opened from it component by component, and no step follows
// a link, so a process that replaces a folder with a link cannot make a tool leave the workspace.

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

#[cfg(test)]
mod tests;
