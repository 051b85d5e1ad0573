//! `~/.planck/trusted`, the list of projects that the user trusts. Planck writes one line of JSON
//! for each project.
//!
//! Earlier versions of Planck stored only paths. They read the lines of this version as paths of
//! folders that do not exist, and therefore do not trust these projects.

use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::{fcntl::OFlag, unistd::Uid};
use planck_common::Timestamp;
use planck_host::whole_file;
use serde::{Deserialize, Serialize};

use super::snapshot::{Print, Snapshot};

/// The maximum number of bytes that are read of the list. The rest is ignored.
const MOST: u64 = 64 * 1024 * 1024;

/// The state of a project when it was trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustRecord {
    pub folder: PathBuf,
    pub at: Timestamp,
    /// The text of `config.toml`. Planck needs the text to show a later change key by key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    pub files: BTreeMap<String, Print>,
    /// The identities of the skills and MCP servers for other programs, by the path of their file below
    /// the folder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub skills: BTreeMap<String, Print>,
}

impl TrustRecord {
    pub fn of(folder: &Path, snapshot: &Snapshot) -> Self {
        Self {
            folder: folder.into(),
            at: Timestamp::now(),
            config: snapshot.config.clone(),
            files: snapshot.prints.clone(),
            skills: snapshot.offered_prints(),
        }
    }
}

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerLine {
    Record(TrustRecord),
    /// A line of an earlier version, which contains only a path. Earlier versions trusted that
    /// folder whatever it contained; this version does not trust it.
    PathOnly(PathBuf),
    /// A line in the format of another version. It is kept unchanged, and this version ignores it.
    Unknown(String),
}

impl LedgerLine {
    fn parse(line: &str) -> Self {
        match serde_json::from_str(line) {
            Ok(record) => Self::Record(record),
            Err(_) if line.starts_with('/') => Self::PathOnly(line.into()),
            Err(_) => Self::Unknown(line.into()),
        }
    }

    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Record(record) => Some(&record.folder),
            Self::PathOnly(folder) => Some(folder),
            Self::Unknown(_) => None,
        }
    }

    fn write(&self) -> io::Result<String> {
        match self {
            Self::Record(record) => Ok(serde_json::to_string(record)?),
            Self::PathOnly(folder) => Ok(folder.display().to_string()),
            Self::Unknown(line) => Ok(line.clone()),
        }
    }
}

/// The list of trusted projects in the user's folder.
#[derive(Debug, Clone)]
pub struct Ledger {
    user_folder: PathBuf,
}

impl Ledger {
    /// Returns the list in the folder `user_folder`, which is usually `~/.planck`.
    pub fn at(user_folder: &Path) -> Self {
        Self {
            user_folder: user_folder.into(),
        }
    }

    pub fn file(&self) -> PathBuf {
        self.user_folder.join("trusted")
    }

    pub fn lines(&self) -> io::Result<Vec<LedgerLine>> {
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let file = match OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(self.file())
        {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.refused(&error)),
        };
        self.check(&file)?;
        let mut text = String::new();
        file.take(MOST).read_to_string(&mut text)?;
        Ok(text
            .lines()
            .filter(|line| !line.is_empty())
            .map(LedgerLine::parse)
            .collect())
    }

    /// Fails if the list is not a regular file, or if a user other than root or the current one
    /// could have written it.
    fn check(&self, file: &File) -> io::Result<()> {
        let status = file.metadata()?;
        let owner = Uid::from_raw(status.uid());
        if !status.is_file()
            || (owner != Uid::effective() && !owner.is_root())
            || status.mode() & 0o022 != 0
        {
            return Err(self.refused(
                &"it is not a file that only you can write; see to it, then `chmod 600` it",
            ));
        }
        Ok(())
    }

    fn refused(&self, why: &dyn std::fmt::Display) -> io::Error {
        io::Error::other(format!("cannot use {}: {why}", self.file().display()))
    }

    pub fn find(&self, folder: &Path) -> io::Result<Option<LedgerLine>> {
        Ok(self
            .lines()?
            .into_iter()
            .rev()
            .find(|line| line.folder() == Some(folder)))
    }

    /// Adds a project. Its record replaces an earlier one of the same folder.
    pub fn put(&self, record: TrustRecord) -> io::Result<()> {
        if record.folder.to_str().is_none() {
            return Err(io::Error::other("the folder's name is not plain text"));
        }
        let folder = record.folder.clone();
        self.change(|lines| {
            lines.retain(|line| line.folder() != Some(&folder));
            lines.push(LedgerLine::Record(record));
        })
    }

    /// Removes the project with this folder from the list. Returns whether the list contained it.
    pub fn remove(&self, folder: &Path) -> io::Result<bool> {
        if self.find(folder)?.is_none() {
            return Ok(false);
        }
        self.change(|lines| lines.retain(|line| line.folder() != Some(folder)))?;
        Ok(true)
    }

    /// Applies `change` to the lines of the list, and replaces the file atomically. A lock excludes
    /// other processes meanwhile.
    fn change(&self, change: impl FnOnce(&mut Vec<LedgerLine>)) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.user_folder)?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(self.user_folder.join("trusted.lock"))?;
        lock.lock()?;
        let mut lines = self.lines()?;
        change(&mut lines);
        let text = lines
            .iter()
            .map(|line| Ok(line.write()? + "\n"))
            .collect::<io::Result<String>>()?;
        whole_file::replace(&self.file(), text.as_bytes(), 0o600)
    }
}
