//! `~/.planck/trusted`: which projects the user trusts, a line of JSON each.
//!
//! A planck that knew paths only reads these lines as paths that no folder has, and so trusts none
//! of them.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::{fcntl::OFlag, unistd::Uid};
use planck_common::Timestamp;
use serde::{Deserialize, Serialize};

use super::snapshot::{Print, Snapshot};

/// A larger list is not read.
const MOST: u64 = 64 * 1024 * 1024;

/// A project as it was when it was trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub folder: PathBuf,
    pub at: Timestamp,
    /// The text of `config.toml`, so that a change of it can be shown by keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    pub files: BTreeMap<String, Print>,
}

impl Record {
    pub fn of(folder: &Path, snapshot: &Snapshot) -> Self {
        Self {
            folder: folder.into(),
            at: Timestamp::now(),
            config: snapshot.config.clone(),
            files: snapshot.prints.clone(),
        }
    }
}

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Record(Record),
    /// Of a planck that trusted folders whatever they hold; it counts as not trusted.
    PathOnly(PathBuf),
    /// Of another version, kept as it is; it trusts nothing.
    Unknown(String),
}

impl Line {
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

/// The list in the user's folder.
#[derive(Debug, Clone)]
pub struct Ledger {
    user_folder: PathBuf,
}

impl Ledger {
    /// The list that is kept in `~/.planck`.
    pub fn at(user_folder: &Path) -> Self {
        Self {
            user_folder: user_folder.into(),
        }
    }

    pub fn file(&self) -> PathBuf {
        self.user_folder.join("trusted")
    }

    pub fn lines(&self) -> io::Result<Vec<Line>> {
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
            .map(Line::parse)
            .collect())
    }

    /// A list that somebody else can write says nothing.
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

    pub fn find(&self, folder: &Path) -> io::Result<Option<Line>> {
        Ok(self
            .lines()?
            .into_iter()
            .rev()
            .find(|line| line.folder() == Some(folder)))
    }

    /// Records a project in place of what was recorded of its folder.
    pub fn put(&self, record: Record) -> io::Result<()> {
        if record.folder.to_str().is_none() {
            return Err(io::Error::other("the folder's name is not plain text"));
        }
        let folder = record.folder.clone();
        self.change(|lines| {
            lines.retain(|line| line.folder() != Some(&folder));
            lines.push(Line::Record(record));
        })
    }

    /// Takes a folder out; whether it was in.
    pub fn remove(&self, folder: &Path) -> io::Result<bool> {
        if self.find(folder)?.is_none() {
            return Ok(false);
        }
        self.change(|lines| lines.retain(|line| line.folder() != Some(folder)))?;
        Ok(true)
    }

    /// Writes the list as a whole or not at all, one process at a time.
    fn change(&self, change: impl FnOnce(&mut Vec<Line>)) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.user_folder)?;
        let private = |name: &str, flags: OFlag| {
            let flags = (flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(flags)
                .open(self.user_folder.join(name))
        };
        let lock = private("trusted.lock", OFlag::empty())?;
        lock.lock()?;
        let mut lines = self.lines()?;
        change(&mut lines);
        let text = lines
            .iter()
            .map(|line| Ok(line.write()? + "\n"))
            .collect::<io::Result<String>>()?;
        let draft = format!("trusted.{:016x}", fastrand::u64(..));
        let written = private(&draft, OFlag::O_EXCL).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(self.user_folder.join(&draft), self.file())
        });
        if written.is_err() {
            let _ = fs::remove_file(self.user_folder.join(&draft));
        }
        written
    }
}
