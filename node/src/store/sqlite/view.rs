//! Opens a database only to look at it, so that no byte on the disk changes: no journal, no index
//! of it, no checkpoint.

use std::{
    fs,
    path::{Path, PathBuf},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sqlx::{ConnectOptions as _, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::fault::{self, SqliteFault};

/// What a path in a `file:` URI keeps as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'.')
    .remove(b'-')
    .remove(b'_');

/// How to look at one database.
pub struct View {
    pub connect: SqliteConnectOptions,
    /// A copy that is looked at in the database's place, for as long as this is held.
    pub copy: Option<TempDir>,
}

/// One way to look at a database.
pub type Way = fn(&Path) -> Result<View, SqliteFault>;

/// The ways to look at a database, the best one first; the next one is for a database that the one
/// before cannot open.
///
/// - A database without a journal is immutable as far as SQLite is concerned.
/// - A database that a process writes, or wrote when it was killed, has a journal and its index.
///   They are read as they are: an index that nobody maintains any more is rebuilt in memory.
/// - A journal without an index is replayed on a private copy of both.
pub fn ways(path: &Path) -> Vec<Way> {
    let is_there =
        |end: &str| fs::symlink_metadata(beside(path, end)).is_ok_and(|file| file.len() > 0);
    match (is_there("-wal") || is_there("-journal"), is_there("-shm")) {
        (false, _) => vec![alone],
        (true, true) => vec![with_journal, copied],
        (true, false) => vec![copied],
    }
}

fn options() -> SqliteConnectOptions {
    // What a stranger wrote into the schema calls no function with an effect.
    SqliteConnectOptions::new()
        .foreign_keys(false)
        .pragma("trusted_schema", "OFF")
        .pragma("cell_size_check", "ON")
        .disable_statement_logging()
}

fn alone(path: &Path) -> Result<View, SqliteFault> {
    Ok(View {
        connect: options().filename(path).read_only(true).immutable(true),
        copy: None,
    })
}

fn with_journal(path: &Path) -> Result<View, SqliteFault> {
    let Some(text) = path.to_str() else {
        return copied(path);
    };
    let uri = format!(
        "file:{}?mode=ro&readonly_shm=1",
        utf8_percent_encode(text, PLAIN)
    );
    Ok(View {
        connect: options().filename(uri).read_only(true),
        copy: None,
    })
}

fn copied(path: &Path) -> Result<View, SqliteFault> {
    let failed = |error: std::io::Error| {
        SqliteFault::Store(fault::refused(
            path,
            &error,
            "free some space in the folder for temporary files",
        ))
    };
    let copy = TempDir::new().map_err(failed)?;
    let to = copy.path().join("copy.db");
    for end in ["", "-wal", "-journal"] {
        match fs::copy(beside(path, end), beside(&to, end)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(View {
        connect: options().filename(to).pragma("query_only", "ON"),
        copy: Some(copy),
    })
}

/// The file of that ending beside a database.
pub fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}
