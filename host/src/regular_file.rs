//! Opens files that other people may have created. [`open`] opens a regular file in an open folder
//! without following a link and without waiting for a pipe. [`OpenFolder`] reads only files with a
//! single hard link, and of each at most a given number of bytes.

use std::{
    ffi::{CStr, OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::{
        stat::{FileStat, Mode, SFlag, fstat, fstatat},
        statfs::{PROC_SUPER_MAGIC, SYSFS_MAGIC, fstatfs},
    },
};

const FOLDER: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_CLOEXEC);
const FILE: OFlag = OFlag::O_NOFOLLOW
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_NOCTTY)
    .union(OFlag::O_CLOEXEC);

/// The reason why a file or a folder is not read.
#[derive(Debug, thiserror::Error)]
pub enum FileRefused {
    #[error("it is a link, and links are not followed; put the file itself there")]
    Link,
    #[error("it is {0}, not a regular file")]
    Kind(&'static str),
    #[error("it has {0} names (hard links), so others may change it; put a copy there")]
    HardLinks(u64),
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    #[error("the folder holds more than {0} entries")]
    TooMany(usize),
    #[error("it belongs to the kernel (/proc, /sys)")]
    Kernel,
    #[error("it is outside the folder")]
    Outside,
    #[error("its name is not plain text")]
    Name,
    #[error("it is not UTF-8 text")]
    Text,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for FileRefused {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// The kind of an entry in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    Folder,
    File,
    Link,
    Other(&'static str),
}

impl EntryKind {
    fn of(status: &FileStat) -> Self {
        match SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFDIR => Self::Folder,
            SFlag::S_IFREG => Self::File,
            SFlag::S_IFLNK => Self::Link,
            SFlag::S_IFIFO => Self::Other("a pipe"),
            SFlag::S_IFSOCK => Self::Other("a socket"),
            SFlag::S_IFCHR | SFlag::S_IFBLK => Self::Other("a device"),
            _ => Self::Other("of an unknown kind"),
        }
    }

    /// Returns the reason for refusing an entry of this kind where another kind is expected.
    pub fn refused(self) -> FileRefused {
        match self {
            Self::Folder => FileRefused::Kind("a folder"),
            Self::File => FileRefused::Io(io::ErrorKind::NotADirectory.into()),
            Self::Link => FileRefused::Link,
            Self::Other(what) => FileRefused::Kind(what),
        }
    }
}

/// The reason why a file is not opened.
#[derive(Debug)]
pub enum NotOpened {
    Missing,
    /// The entry is not a regular file.
    Kind(EntryKind),
    Io(io::Error),
}

impl From<NotOpened> for io::Error {
    fn from(why: NotOpened) -> Self {
        match why {
            NotOpened::Missing => Errno::ENOENT.into(),
            NotOpened::Kind(EntryKind::Folder) => io::ErrorKind::IsADirectory.into(),
            NotOpened::Kind(EntryKind::Link) => Errno::ELOOP.into(),
            NotOpened::Kind(EntryKind::File | EntryKind::Other(_)) => {
                Self::other("not a regular file")
            }
            NotOpened::Io(why) => why,
        }
    }
}

/// Opens a regular file by its name in an open folder. `flags` select reading or writing, and
/// `mode` is the mode of a file that is created. No link is followed, and a pipe does not block.
/// Opening a device can already have an effect, so the kind is checked before opening the file. It
/// is checked again on the open file, because the entry may have been replaced in between.
pub fn open(
    folder: impl AsFd,
    name: &OsStr,
    flags: OFlag,
    mode: Mode,
) -> Result<(File, FileStat), NotOpened> {
    match fstatat(&folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(|status| EntryKind::of(&status))
    {
        Ok(EntryKind::File) | Err(_) => {}
        Ok(other @ (EntryKind::Folder | EntryKind::Link | EntryKind::Other(_))) => {
            return Err(NotOpened::Kind(other));
        }
    }
    let file = match openat(folder, name, flags | FILE, mode) {
        Ok(fd) => File::from(fd),
        Err(Errno::ENOENT) => return Err(NotOpened::Missing),
        Err(Errno::ELOOP) => return Err(NotOpened::Kind(EntryKind::Link)),
        Err(Errno::ENXIO) => return Err(NotOpened::Kind(EntryKind::Other("a pipe or a socket"))),
        Err(why) => return Err(NotOpened::Io(why.into())),
    };
    let status = fstat(&file).map_err(|why| NotOpened::Io(why.into()))?;
    match EntryKind::of(&status) {
        EntryKind::File => Ok((file, status)),
        other @ (EntryKind::Folder | EntryKind::Link | EntryKind::Other(_)) => {
            Err(NotOpened::Kind(other))
        }
    }
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    pub bytes: Vec<u8>,
    pub is_executable: bool,
    /// Whether the content is complete. If `false`, the file is longer than what was read.
    pub is_whole: bool,
}

impl FileContent {
    pub fn text(self) -> Result<String, FileRefused> {
        String::from_utf8(self.bytes).map_err(|_| FileRefused::Text)
    }
}

/// A folder that is kept open.
#[derive(Debug)]
pub struct OpenFolder(OwnedFd);

impl OpenFolder {
    /// Opens the folder at a path. The caller must trust the path, because links in it are
    /// followed.
    pub fn open(path: &Path) -> Result<Self, FileRefused> {
        Ok(Self(nix::fcntl::open(path, FOLDER, Mode::empty())?))
    }

    /// Returns the kind of an entry, or `None` if it does not exist.
    pub fn kind(&self, name: &OsStr) -> Result<Option<EntryKind>, FileRefused> {
        match fstatat(&self.0, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(Some(EntryKind::of(&status))),
            Err(Errno::ENOENT) => Ok(None),
            Err(why) => Err(why.into()),
        }
    }

    /// Opens a subfolder. Returns `None` if it does not exist.
    pub fn folder(&self, name: &OsStr) -> Result<Option<Self>, FileRefused> {
        match self.kind(name)? {
            None => Ok(None),
            Some(EntryKind::Folder) => {
                match openat(&self.0, name, FOLDER | OFlag::O_NOFOLLOW, Mode::empty()) {
                    Ok(fd) => Ok(Some(Self(fd))),
                    Err(Errno::ENOENT) => Ok(None),
                    Err(why) => Err(why.into()),
                }
            }
            Some(other @ (EntryKind::File | EntryKind::Link | EntryKind::Other(_))) => {
                Err(other.refused())
            }
        }
    }

    /// Opens a folder at a relative path below this one. Returns `None` if it does not exist.
    pub fn folder_below(&self, path: &Path) -> Result<Option<Self>, FileRefused> {
        let mut folder = self.folder(OsStr::new("."))?;
        for name in names(path)? {
            folder = match folder {
                Some(folder) => folder.folder(name)?,
                None => return Ok(None),
            };
        }
        Ok(folder)
    }

    /// Reads a whole file in this folder. Returns `None` if it does not exist. Fails if it has more
    /// than `most` bytes, or is not a regular file with a single hard link.
    pub fn file(&self, name: &OsStr, most: u64) -> Result<Option<FileContent>, FileRefused> {
        match self.head(name, most)? {
            Some(content) if !content.is_whole => Err(FileRefused::TooLarge(most)),
            content => Ok(content),
        }
    }

    /// Reads a whole file at a relative path below this folder, as [`Self::file`] does.
    pub fn file_below(&self, path: &Path, most: u64) -> Result<Option<FileContent>, FileRefused> {
        let mut above = names(path)?;
        let name = above.pop().ok_or(FileRefused::Kind("a folder"))?;
        match self.folder_below(&above.into_iter().collect::<PathBuf>())? {
            Some(folder) => folder.file(name, most),
            None => Ok(None),
        }
    }

    /// Reads the first `most` bytes of a file in this folder. Returns `None` if the file does not
    /// exist.
    pub fn head(&self, name: &OsStr, most: u64) -> Result<Option<FileContent>, FileRefused> {
        let (file, status) = match open(&self.0, name, OFlag::O_RDONLY, Mode::empty()) {
            Ok(opened) => opened,
            Err(NotOpened::Missing) => return Ok(None),
            Err(NotOpened::Kind(other)) => return Err(other.refused()),
            Err(NotOpened::Io(why)) => return Err(why.into()),
        };
        check(&file, &status)?;
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes)?;
        let is_whole = bytes.len() as u64 <= most;
        bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(Some(FileContent {
            bytes,
            is_executable: status.st_mode & 0o111 != 0,
            is_whole,
        }))
    }

    /// Returns the sorted names in this folder, with their kinds. Fails if there are more than
    /// `most` names, or if a name is not UTF-8.
    pub fn entries(&self, most: usize) -> Result<Vec<(String, EntryKind)>, FileRefused> {
        let mut listing = Dir::openat(&self.0, ".", FOLDER, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in listing.iter() {
            let name = own(entry?.file_name());
            if name == "." || name == ".." {
                continue;
            }
            if entries.len() >= most {
                return Err(FileRefused::TooMany(most));
            }
            let kind = self.kind(&name)?;
            let name = name.into_string().map_err(|_| FileRefused::Name)?;
            entries.extend(kind.map(|kind| (name, kind)));
        }
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(entries)
    }
}

fn own(name: &CStr) -> OsString {
    OsStr::from_bytes(name.to_bytes()).to_owned()
}

fn check(file: &File, status: &FileStat) -> Result<(), FileRefused> {
    if status.st_nlink > 1 {
        return Err(FileRefused::HardLinks(status.st_nlink));
    }
    let system = fstatfs(file)?.filesystem_type();
    if system == PROC_SUPER_MAGIC || system == SYSFS_MAGIC {
        Err(FileRefused::Kernel)
    } else {
        Ok(())
    }
}

/// Returns the components of a relative path. Since no link is followed, `..` simply removes the
/// previous component.
fn names(path: &Path) -> Result<Vec<&OsStr>, FileRefused> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            Component::ParentDir => drop(names.pop().ok_or(FileRefused::Outside)?),
            Component::RootDir | Component::Prefix(_) => return Err(FileRefused::Outside),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    fn read_text(folder: &OpenFolder, path: &str) -> String {
        match folder.file_below(Path::new(path), 8) {
            Ok(Some(content)) => content.text().unwrap(),
            Ok(None) => "nothing".into(),
            Err(why) => why.to_string(),
        }
    }

    #[test]
    fn only_regular_files_with_one_name_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("in/deep")).unwrap();
        fs::write(at("in/deep/a"), "a").unwrap();
        fs::write(at("outside"), "secret").unwrap();
        fs::write(at("in/long"), "123456789").unwrap();
        fs::write(at("in/binary"), [0xff]).unwrap();
        fs::hard_link(at("outside"), at("in/hard")).unwrap();
        symlink(at("outside"), at("in/link")).unwrap();
        symlink("deep/a", at("in/inner")).unwrap();
        symlink(dir.path(), at("in/up")).unwrap();
        symlink("/proc/self", at("in/proc")).unwrap();
        mkfifo(&at("in/pipe"), Mode::S_IRUSR).unwrap();
        let folder = OpenFolder::open(&at("in")).unwrap();
        for (path, what) in [
            ("deep/a", "a"),
            ("./deep/../deep/a", "a"),
            ("none", "nothing"),
            ("none/a", "nothing"),
            ("../outside", "outside the folder"),
            ("deep/../../outside", "outside the folder"),
            ("/etc/hostname", "outside the folder"),
            ("link", "a link"),
            ("inner", "a link"),
            ("up/outside", "a link"),
            ("proc/environ", "a link"),
            ("hard", "2 names"),
            ("pipe", "a pipe"),
            ("deep", "a folder"),
            ("deep/a/b", "not a directory"),
            ("long", "larger than 8 bytes"),
        ] {
            assert!(
                read_text(&folder, path).contains(what),
                "{path}: {}",
                read_text(&folder, path)
            );
        }
        assert!(matches!(
            folder
                .file(OsStr::new("binary"), 8)
                .unwrap()
                .unwrap()
                .text(),
            Err(FileRefused::Text)
        ));
        let kernel = OpenFolder::open(Path::new("/proc/self")).unwrap();
        assert!(matches!(
            kernel.file(OsStr::new("environ"), 1 << 20),
            Err(FileRefused::Kernel)
        ));
    }

    #[test]
    fn a_folder_lists_its_names_and_kinds() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("b")).unwrap();
        fs::write(dir.path().join("a"), "").unwrap();
        symlink("a", dir.path().join("c")).unwrap();
        let folder = OpenFolder::open(dir.path()).unwrap();
        let entries = folder.entries(3).unwrap();
        assert_eq!(
            entries,
            [
                ("a".into(), EntryKind::File),
                ("b".into(), EntryKind::Folder),
                ("c".into(), EntryKind::Link)
            ]
        );
        assert!(matches!(folder.entries(2), Err(FileRefused::TooMany(2))));
    }
}
