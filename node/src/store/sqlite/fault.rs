//! The errors of SQLite, classified by what the caller does about them.

use std::path::Path;

use crate::store::StoreError;

/// Why a trigger of the schema refused a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abort {
    /// The lease has another epoch, or the agent's last row is another one.
    StaleEpoch,
    /// An input was consumed or has an outcome.
    InputGone,
    /// The message of a rewind does not exist or is hidden.
    NoMessage,
    /// A trigger of a newer schema.
    Other(String),
}

impl Abort {
    /// Reads the text that the trigger passes to `RAISE`.
    fn parse(text: &str) -> Self {
        match text {
            "stale_epoch" => Self::StaleEpoch,
            "input_gone" => Self::InputGone,
            "no_message" => Self::NoMessage,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// Why a statement was not carried out.
#[derive(Debug)]
pub enum SqliteFault {
    /// A trigger refused it.
    Aborted(Abort),
    /// A row with this key exists, or a value is not allowed.
    Refused(String),
    /// The file does not exist.
    Missing(String),
    /// The content of the file is damaged.
    Damaged(String),
    Store(StoreError),
}

impl From<SqliteFault> for StoreError {
    fn from(fault: SqliteFault) -> Self {
        match fault {
            SqliteFault::Store(error) => error,
            SqliteFault::Missing(message) => Self::NotFound(message),
            SqliteFault::Damaged(message) => Self::Broken(message),
            SqliteFault::Aborted(abort) => {
                Self::Broken(format!("a trigger refused the statement: {abort:?}"))
            }
            SqliteFault::Refused(message) => {
                Self::Broken(format!("the database refused the statement: {message}"))
            }
        }
    }
}

impl From<StoreError> for SqliteFault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Result codes, from <https://sqlite.org/rescode.html>.
mod code {
    pub const ERROR: i32 = 1;
    pub const PERM: i32 = 3;
    pub const BUSY: i32 = 5;
    pub const LOCKED: i32 = 6;
    pub const READONLY: i32 = 8;
    pub const INTERRUPT: i32 = 9;
    pub const IOERR: i32 = 10;
    pub const CORRUPT: i32 = 11;
    pub const FULL: i32 = 13;
    pub const CANTOPEN: i32 = 14;
    pub const PROTOCOL: i32 = 15;
    pub const TOOBIG: i32 = 18;
    pub const CONSTRAINT: i32 = 19;
    pub const MISMATCH: i32 = 20;
    pub const NOTADB: i32 = 26;
    pub const CONSTRAINT_TRIGGER: i32 = 1811;
}

/// Classifies the error of a statement on the file at `path`, or of opening it.
pub fn sort(error: &sqlx::Error, path: &Path) -> SqliteFault {
    let Some(database) = error.as_database_error() else {
        return sort_own(error, path);
    };
    let extended: i32 = database
        .code()
        .and_then(|code| code.parse().ok())
        .unwrap_or(0);
    if extended == code::CONSTRAINT_TRIGGER {
        return SqliteFault::Aborted(Abort::parse(database.message()));
    }
    let broken = |what, way_out| SqliteFault::Store(broken(path, what, way_out));
    match extended & 0xff {
        code::BUSY | code::LOCKED | code::INTERRUPT | code::PROTOCOL => away(path, error),
        code::CONSTRAINT | code::TOOBIG => SqliteFault::Refused(database.message().to_owned()),
        code::FULL => SqliteFault::Store(full(path)),
        code::READONLY | code::PERM => broken(
            "it cannot be written",
            "give this user write permission to the file and its folder",
        ),
        code::CANTOPEN if !path.exists() => {
            SqliteFault::Missing(format!("there is no {}", path.display()))
        }
        code::CANTOPEN => broken(
            "it cannot be opened",
            "check the permissions of the file and its folder, and the limit of open files",
        ),
        code::CORRUPT | code::NOTADB | code::MISMATCH => damaged(path, database.message()),
        // These messages are about stored values, because the statements and their arguments come
        // from this crate.
        code::ERROR
            if ["JSON", "integer overflow"]
                .iter()
                .any(|of| database.message().contains(of)) =>
        {
            damaged(path, database.message())
        }
        code::IOERR => broken(
            "the disk gives an error",
            "check the disk and the system's log",
        ),
        _other => broken(database.message(), "report this"),
    }
}

/// Classifies an error that sqlx raised itself.
#[allow(clippy::wildcard_enum_match_arm, reason = "sqlx may add errors")]
fn sort_own(error: &sqlx::Error, path: &Path) -> SqliteFault {
    match error {
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => damaged(path, error),
        // sqlx gives this error for every statement after its thread panicked. The next call opens
        // the file again.
        sqlx::Error::WorkerCrashed => broken(
            path,
            "the thread that reads it failed",
            "report this with the node's log",
        )
        .into(),
        _ => away(path, error),
    }
}

/// The content of the file at `path` is damaged.
pub fn damaged(path: &Path, what: impl std::fmt::Display) -> SqliteFault {
    let way_out = "put it aside, or recover it with `sqlite3 FILE .recover`";
    SqliteFault::Damaged(format!(
        "cannot use {}: it is damaged: {what}; {way_out}",
        path.display()
    ))
}

fn away(path: &Path, error: &sqlx::Error) -> SqliteFault {
    SqliteFault::Store(StoreError::Away(format!("{}: {error}", path.display())))
}

fn full(path: &Path) -> StoreError {
    StoreError::Full(format!(
        "cannot use {}: the disk is full; free some space; what was saved is safe",
        path.display()
    ))
}

/// The operating system refused an operation on the file at `path`.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the standard library's list is open"
)]
pub fn refused(path: &Path, error: &std::io::Error, way_out: &str) -> StoreError {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => full(path),
        _ => broken(path, error, way_out),
    }
}

/// A person must help with the file at `path`.
pub fn broken(path: &Path, what: impl std::fmt::Display, way_out: &str) -> StoreError {
    StoreError::Broken(format!("cannot use {}: {what}; {way_out}", path.display()))
}
