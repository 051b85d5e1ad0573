//! Classifies SQLite's errors by how the caller has to react.

use std::path::Path;

use sqlx::error::DatabaseError;

use crate::{StoreError, row::damaged_file};

/// The reason for which a trigger of the schema refused a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abort {
    /// The epoch is not that of the agent's lease, or `prev` is not the agent's last row.
    StaleEpoch,
    /// An input is unknown, was already consumed, or has an outcome.
    InputGone,
    /// The row to rewind to is not a visible message.
    NoMessage,
    /// The session or its name is in the index already.
    Known,
    /// A reason that only a newer schema has.
    Other(String),
}

impl Abort {
    /// Parses the text that a trigger passes to `RAISE`.
    fn parse(text: &str) -> Self {
        match text {
            "stale_epoch" => Self::StaleEpoch,
            "input_gone" => Self::InputGone,
            "no_message" => Self::NoMessage,
            "known" => Self::Known,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// Why a statement failed.
#[derive(Debug)]
pub enum SqliteFault {
    /// A trigger of the schema refused the statement.
    Aborted(Abort),
    /// The statement violates a constraint of the schema, or a value is too large.
    Refused(String),
    /// The file does not exist, or has no tables or no session yet.
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

/// SQLite's result codes: <https://sqlite.org/rescode.html>.
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

/// Classifies the error of opening the file at `path` or of running a statement on it.
pub fn sort(error: &sqlx::Error, path: &Path) -> SqliteFault {
    let Some(database) = error.as_database_error() else {
        return sort_own(error, path);
    };
    let extended = extended_code(database);
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
        // These messages can only be about stored values, because this crate makes the statements
        // and their parameters.
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

/// Returns whether the error means that another connection holds a lock on the file.
pub fn is_busy(error: &sqlx::Error) -> bool {
    let database = error.as_database_error();
    database.is_some_and(|database| extended_code(database) & 0xff == code::BUSY)
}

/// Returns whether every later write of the connection would fail with the same error, while a new
/// connection may work.
pub fn ends_connection(error: &sqlx::Error) -> bool {
    let is_read_only =
        |database: &dyn DatabaseError| extended_code(database) & 0xff == code::READONLY;
    matches!(error, sqlx::Error::WorkerCrashed)
        || error.as_database_error().is_some_and(is_read_only)
}

fn extended_code(database: &dyn DatabaseError) -> i32 {
    let code = database.code().and_then(|code| code.parse().ok());
    code.unwrap_or(0)
}

/// Classifies an error that comes from sqlx and not from SQLite.
#[allow(clippy::wildcard_enum_match_arm, reason = "sqlx may add errors")]
fn sort_own(error: &sqlx::Error, path: &Path) -> SqliteFault {
    match error {
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => damaged(path, error),
        // sqlx returns this error for every statement once its thread has panicked. The next call
        // opens the file again.
        sqlx::Error::WorkerCrashed => broken(
            path,
            "the thread that reads it failed",
            "report this with the node's log",
        )
        .into(),
        _ => away(path, error),
    }
}

/// Returns the error for damaged content of the file at `path`.
pub fn damaged(path: &Path, what: impl std::fmt::Display) -> SqliteFault {
    SqliteFault::Damaged(damaged_file(path, what))
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

/// Returns the error for an operation on the file at `path` that the operating system refused.
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

/// Returns the error for a problem with the file at `path` that only the user can solve.
pub fn broken(path: &Path, what: impl std::fmt::Display, way_out: &str) -> StoreError {
    StoreError::Broken(format!("cannot use {}: {what}; {way_out}", path.display()))
}
