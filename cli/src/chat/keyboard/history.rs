//! The history of a project's chats: a file with one JSON string per line, which only its owner can
//! read.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::output::warn;

/// The maximum number of entries that are loaded.
pub const LINES: usize = 1_000;
/// The size in bytes above which the file is cut to its newest entries. Before they are encoded as
/// JSON, these take at most half of this size.
const MOST: u64 = 1024 * 1024;
/// The maximum size in bytes of a stored entry.
const LONGEST: usize = 16 * 1024;

pub struct History {
    /// The file, or `None` if the history is not stored.
    file: Option<PathBuf>,
    entries: Vec<String>,
}

impl History {
    /// Reads the stored entries, and cuts the file if it is too long. If that fails, prints a
    /// warning and returns a history that is not stored.
    pub fn open(file: Option<PathBuf>) -> Self {
        let Some(path) = file else {
            return Self {
                file: None,
                entries: Vec::new(),
            };
        };
        match load(&path) {
            Ok(entries) => Self {
                file: Some(path),
                entries,
            },
            Err(why) => {
                warn(&format!(
                    "planck: warning: cannot read the history {}: {why}; this chat keeps none",
                    path.display()
                ));
                Self {
                    file: None,
                    entries: Vec::new(),
                }
            }
        }
    }

    /// Returns the entries, oldest first.
    pub fn entries(&self) -> &[String] {
        &self.entries
    }

    /// Appends an entry to the file, unless the entry has more than [`LONGEST`] bytes. If the file
    /// cannot be written, prints a warning and stores no further entries.
    pub fn add(&mut self, entry: &str) {
        let Some(path) = self.file.as_ref().filter(|_| entry.len() <= LONGEST) else {
            return;
        };
        if let Err(why) = append(path, entry) {
            warn(&format!(
                "planck: warning: cannot write the history {}: {why}; this chat keeps none",
                path.display()
            ));
            self.file = None;
        }
    }
}

fn load(path: &Path) -> io::Result<Vec<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(why) => return Err(why),
    };
    // The file may be longer than [`MOST`], because chats append to it without cutting it.
    // Its newest entries are at its end.
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(2 * MOST)))?;
    let mut text = Vec::new();
    file.take(2 * MOST).read_to_end(&mut text)?;
    let parsed = text
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok());
    let mut entries: Vec<String> = parsed.collect();
    entries.drain(..entries.len().saturating_sub(LINES));
    if text.len() as u64 > MOST {
        let mut left = usize::try_from(MOST / 2).unwrap_or(usize::MAX);
        let fit = entries.iter().rev().take_while(|entry| {
            left = left.saturating_sub(entry.len());
            left > 0
        });
        let fit = fit.count();
        entries.drain(..entries.len() - fit);
        replace(path, &entries)?;
    }
    Ok(entries)
}

fn replace(path: &Path, entries: &[String]) -> io::Result<()> {
    let next = path.with_extension(format!("{}", std::process::id()));
    let lines = entries
        .iter()
        .map(|entry| line(entry))
        .collect::<io::Result<String>>()?;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&next)?
        .write_all(lines.as_bytes())?;
    fs::rename(next, path)
}

fn append(path: &Path, entry: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?
        .write_all(line(entry)?.as_bytes())
}

fn line(entry: &str) -> io::Result<String> {
    Ok(serde_json::to_string(entry)? + "\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn newest_entries_of_a_long_file_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let entry = |n: u64| format!("{n} {}", "x".repeat(10_000));
        let count = 4 * MOST / 10_000;
        let lines: String = (0..count).map(|n| line(&entry(n)).unwrap()).collect();
        std::fs::write(&path, lines).unwrap();
        for _ in 0..2 {
            let history = History::open(Some(path.clone()));
            assert_eq!(history.entries().last(), Some(&entry(count - 1)));
        }
        assert!(path.metadata().unwrap().size() <= MOST);
    }

    #[test]
    fn entries_of_several_lines_are_restored_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("project/history");
        let mut history = History::open(Some(path.clone()));
        for entry in ["one", "two\nlines \\ \"quoted\"", &"long".repeat(LONGEST)] {
            history.add(entry);
        }
        assert_eq!(
            History::open(Some(path.clone())).entries(),
            ["one", "two\nlines \\ \"quoted\""]
        );
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_history_that_is_too_long_is_cut_to_its_newest_entries() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let mut history = History::open(Some(path.clone()));
        for number in 0..150 {
            history.add(&format!("{number} {}", "x".repeat(10_000)));
        }
        let entries = History::open(Some(path.clone())).entries;
        assert!(
            entries
                .last()
                .is_some_and(|entry| entry.starts_with("149 "))
                && entries.len() < 60,
            "{}",
            entries.len()
        );
        assert!(
            fs::metadata(&path).unwrap().len() < MOST,
            "the file is cut too"
        );
    }
}
