//! The SQL schema in two dialects that change together. Since 0.1.0 a change is a
//! new file in both folders with the next version, and the statements of released files never change. Functions that only Postgres needs are only in its folder.

/// One step of a schema to the next version.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// The version of the schema after this step. Versions start at 1 and have no gaps.
    pub version: u32,
    pub sql: &'static str,
}

/// The migrations of the shared Postgres database.
pub const POSTGRES: &[Migration] = &[Migration {
    version: 1,
    sql: include_str!("../postgres/schema.sql"),
}];

/// The migrations of each session's SQLite file.
pub const SQLITE_SESSION: &[Migration] = &[Migration {
    version: 1,
    sql: include_str!("../sqlite/session.sql"),
}];

/// The statement that creates the temporary trigger of a rewind on a connection to a session's
/// SQLite file.
pub const SQLITE_REWIND: &str = include_str!("../sqlite/rewind.sql");

/// The statements that create the temporary view `new_session` on a connection to `index.db`.
pub const SQLITE_NEW_SESSION: &str = include_str!("../sqlite/new_session.sql");

/// The migrations of `index.db` in the folder of a SQLite store. The file can be rebuilt from the
/// session files.
pub const SQLITE_INDEX: &[Migration] = &[Migration {
    version: 1,
    sql: include_str!("../sqlite/index.sql"),
}];
