//! Opens a database read-only in such a way that nothing on the disk changes: SQLite creates no
//! journal and no journal index, and makes no checkpoint.

use std::{
    fs,
    path::{Path, PathBuf},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sqlx::{ConnectOptions as _, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::fault::{self, SqliteFault};

/// The characters that are escaped in a `file:` URI.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'.')
    .remove(b'-')
    .remove(b'_');

/// The options that open one database read-only.
pub struct ReadOnlyView {
    pub connect: SqliteConnectOptions,
    /// The copy that is opened instead of the database. The copy is removed when the `TempDir` is
    /// dropped.
    pub copy: Option<TempDir>,
}

/// A way to open a database read-only.
pub type Way = fn(&Path) -> Result<ReadOnlyView, SqliteFault>;

/// Returns the ways to open a database read-only. If the first one fails, the caller tries the
/// next.
///
/// - A database without a journal is opened as immutable.
/// - A database that a process is writing, or was writing when it was killed, has a journal and a
///   journal index. Both are read as they are. If no process maintains the index, SQLite rebuilds
///   it in memory.
/// - If there is a journal without an index, or reading both failed, the database and the journal
///   are copied to a private folder, where SQLite can apply the journal.
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
    // The file may be from a stranger, whose schema must not call functions with side effects.
    SqliteConnectOptions::new()
        .foreign_keys(false)
        .pragma("trusted_schema", "OFF")
        .pragma("cell_size_check", "ON")
        .disable_statement_logging()
}

fn alone(path: &Path) -> Result<ReadOnlyView, SqliteFault> {
    Ok(ReadOnlyView {
        connect: options().filename(path).read_only(true).immutable(true),
        copy: None,
    })
}

fn with_journal(path: &Path) -> Result<ReadOnlyView, SqliteFault> {
    let Some(text) = path.to_str() else {
        return copied(path);
    };
    let uri = format!(
        "file:{}?mode=ro&readonly_shm=1",
        utf8_percent_encode(text, PLAIN)
    );
    Ok(ReadOnlyView {
        connect: options().filename(uri).read_only(true),
        copy: None,
    })
}

fn copied(path: &Path) -> Result<ReadOnlyView, SqliteFault> {
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
    Ok(ReadOnlyView {
        connect: options().filename(to).pragma("query_only", "ON"),
        copy: Some(copy),
    })
}

/// Returns the path of the file beside a database that has this suffix.
pub fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}
