//! Accesses files below a root folder that is kept open. No step of a path follows a link, so a
//! concurrent call that replaces a folder with a link cannot make the node leave the workspace.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat, renameat},
    sys::stat::{FchmodatFlags, FileStat, Mode, fchmod, fchmodat, fstat, fstatat, mkdirat},
    unistd::{UnlinkatFlags, symlinkat, unlinkat},
};

use planck_host::regular_file;

const FOLDER: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);
const QUIET: OFlag = OFlag::O_NOFOLLOW
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_CLOEXEC);

/// The maximum depth of nested folders that are removed.
const DEEPEST: usize = 128;

#[derive(Debug)]
pub(super) struct Tree(OwnedFd);

impl Tree {
    pub fn open(root: &Path) -> io::Result<Self> {
        Ok(Self(nix::fcntl::open(root, FOLDER, Mode::empty())?))
    }

    /// Returns the metadata of a path, without following a link, or `None` if the path does not
    /// exist or leads through a link.
    pub fn stat(&self, path: &Path) -> io::Result<Option<FileStat>> {
        match self.at(path, |folder, name| {
            fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)
        }) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            Err(why) => Err(why.into()),
        }
    }

    /// Opens a folder, or the root if the path is empty. The open folder can be found even after it
    /// was moved. The caller needs no rights in the folder itself.
    pub fn hold(&self, path: &Path) -> io::Result<OwnedFd> {
        if path.as_os_str().is_empty() {
            return self.0.try_clone();
        }
        Ok(self.at(path, |folder, name| {
            openat(folder, name, FOLDER, Mode::empty())
        })?)
    }

    /// Reads a regular file. Fails if it has more than `most` bytes.
    pub fn read(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let opened = self.at(path, |folder, name| {
            Ok(regular_file::open(
                folder,
                name,
                OFlag::O_RDONLY,
                Mode::empty(),
            ))
        })?;
        let (file, _) = opened?;
        let mut content = Vec::new();
        file.take(most + 1).read_to_end(&mut content)?;
        match content.len() as u64 > most {
            true => Err(io::Error::other("too large")),
            false => Ok(content),
        }
    }

    pub fn link_target(&self, path: &Path) -> io::Result<OsString> {
        Ok(self.at(path, |folder, name| readlinkat(folder, name))?)
    }

    /// Returns the names in a folder, in any order.
    pub fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        Ok(self.at(path, |folder, name| names(&mut open_to_list(folder, name)?))?)
    }

    /// Removes a file, or a folder with its contents.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        Ok(self.at(path, |folder, name| remove(folder, name, DEEPEST))?)
    }

    pub fn rename(&self, path: &Path, to: &Path) -> io::Result<()> {
        Ok(self.at(path, |from, old| {
            self.at(to, |folder, new| renameat(from, old, folder, new))
        })?)
    }

    /// Moves a file or folder from a path on the same file system to a path in the tree.
    pub fn bring(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(self.at(to, |folder, name| renameat(AT_FDCWD, from, folder, name))?)
    }

    pub fn make_folder(&self, path: &Path, mode: u32) -> io::Result<()> {
        Ok(self.at(path, |folder, name| {
            mkdirat(folder, name, Mode::from_bits_truncate(mode))
        })?)
    }

    pub fn make_link(&self, path: &Path, target: &OsStr) -> io::Result<()> {
        Ok(self.at(path, |folder, name| symlinkat(target, folder, name))?)
    }

    pub fn mode_of_folder(&self, path: &Path) -> io::Result<u32> {
        Ok(fstat(self.hold(path)?)?.st_mode & 0o7777)
    }

    /// Gives the owner of a folder, or of the root if the path is empty, the rights in `needed`.
    /// Returns the same as [`unlock`].
    pub fn unlock(&self, path: &Path, needed: u32) -> io::Result<Option<u32>> {
        unlock(&self.hold(path)?, needed)
    }

    /// Sets the mode of a folder, or of the root if the path is empty.
    pub fn set_folder_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        change_mode(&self.hold(path)?, mode)
    }

    /// Creates a file or replaces it atomically. Other hard links to the old file keep the old
    /// content.
    pub fn write(&self, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
        let draft = path.with_file_name(format!(".planck-{:016x}.tmp", fastrand::u64(..)));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | QUIET;
        let owner = Mode::S_IRUSR | Mode::S_IWUSR;
        let mut file =
            File::from(self.at(&draft, |folder, name| openat(folder, name, flags, owner))?);
        let written = file
            .write_all(content)
            .and_then(|()| Ok(fchmod(&file, Mode::from_bits_truncate(mode))?));
        let placed = written.and_then(|()| self.rename(&draft, path));
        if placed.is_err() {
            let _ = self.remove(&draft);
        }
        placed
    }

    /// Calls `act` with the parent folder of a path and the last component.
    fn at<T>(
        &self,
        path: &Path,
        act: impl FnOnce(BorrowedFd, &OsStr) -> nix::Result<T>,
    ) -> nix::Result<T> {
        let mut steps: Vec<&OsStr> = path.iter().collect();
        let name = steps.pop().ok_or(Errno::EINVAL)?;
        let mut folder: Option<OwnedFd> = None;
        for step in steps {
            let from = folder.as_ref().unwrap_or(&self.0);
            folder = Some(openat(from, step, FOLDER, Mode::empty())?);
        }
        act(folder.as_ref().unwrap_or(&self.0).as_fd(), name)
    }
}

/// Gives the owner of an open folder the rights in `needed`. Returns the mode that the folder had
/// if this function changed the mode. Fails if the folder belongs to another user.
pub(super) fn unlock(folder: &OwnedFd, needed: u32) -> io::Result<Option<u32>> {
    let mode = fstat(folder)?.st_mode & 0o7777;
    if mode & needed == needed {
        return Ok(None);
    }
    change_mode(folder, mode | needed)?;
    Ok(Some(mode))
}

/// Changes the mode of an open folder. The kernel refuses `fchmod` of a descriptor that was opened
/// with `O_PATH`, so this function uses the descriptor's name in `/proc`.
fn change_mode(folder: &OwnedFd, mode: u32) -> io::Result<()> {
    Ok(fchmodat(
        AT_FDCWD,
        format!("/proc/self/fd/{}", folder.as_raw_fd()).as_str(),
        Mode::from_bits_truncate(mode),
        FchmodatFlags::FollowSymlink,
    )?)
}

fn open_to_list(folder: BorrowedFd, name: &OsStr) -> nix::Result<Dir> {
    Dir::openat(
        folder,
        name,
        OFlag::O_RDONLY | OFlag::O_DIRECTORY | QUIET,
        Mode::empty(),
    )
}

fn names(dir: &mut Dir) -> nix::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in dir.iter() {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

fn remove(folder: BorrowedFd, name: &OsStr, depth: usize) -> nix::Result<()> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) if depth > 0 => {}
        Err(why) => return Err(why),
    }
    let mut dir = open_to_list(folder, name)?;
    for inner in names(&mut dir)? {
        remove(dir.as_fd(), &inner, depth - 1)?;
    }
    unlinkat(folder, name, UnlinkatFlags::RemoveDir)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("in")).unwrap();
        fs::write(at("in/file"), "content").unwrap();
        symlink("file", at("in/link")).unwrap();
        mkfifo(&at("in/pipe"), Mode::S_IRUSR).unwrap();
        let tree = Tree::open(root.path()).unwrap();
        let read = |path: &str, most| {
            tree.read(Path::new(path), most)
                .map_err(|why| why.to_string())
        };
        assert_eq!(read("in/file", 7), Ok(b"content".to_vec()));
        for (path, most, why) in [
            ("in/file", 6, "too large"),
            ("in/link", 9, "symbolic links"),
            ("in/pipe", 9, "not a regular file"),
            ("in", 9, "directory"),
        ] {
            assert!(
                read(path, most).is_err_and(|told| told.contains(why)),
                "{path}: {:?}",
                read(path, most)
            );
        }
    }
}
