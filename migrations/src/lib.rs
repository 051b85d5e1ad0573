//! The SQL schema in two dialects that change together. A change is a new file in both folders, and
//! the statements of released files never change. Functions that only Postgres needs are only in
//! its folder, so each folder numbers its files on its own.

/// One step of a schema to the next version.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// The version of the schema after this step. Versions start at 1 and have no gaps.
    pub version: u32,
    pub sql: &'static str,
}

/// The migrations of the shared Postgres database.
pub const POSTGRES: &[Migration] = &[
    Migration {
        version: 1,
        sql: include_str!("../postgres/0001_base.sql"),
    },
    Migration {
        version: 2,
        sql: include_str!("../postgres/0002_put.sql"),
    },
    Migration {
        version: 3,
        sql: include_str!("../postgres/0003_rewind.sql"),
    },
    Migration {
        version: 4,
        sql: include_str!("../postgres/0004_release.sql"),
    },
    Migration {
        version: 5,
        sql: include_str!("../postgres/0005_waits.sql"),
    },
    Migration {
        version: 6,
        sql: include_str!("../postgres/0006_rewind.sql"),
    },
    Migration {
        version: 7,
        sql: include_str!("../postgres/0007_baselines.sql"),
    },
];

/// The migrations of each session's SQLite file.
pub const SQLITE_SESSION: &[Migration] = &[
    Migration {
        version: 1,
        sql: include_str!("../sqlite/0001_session.sql"),
    },
    Migration {
        version: 2,
        sql: include_str!("../sqlite/0002_rewind.sql"),
    },
    Migration {
        version: 3,
        sql: include_str!("../sqlite/0003_append.sql"),
    },
    Migration {
        version: 4,
        sql: include_str!("../sqlite/0004_waits.sql"),
    },
    Migration {
        version: 5,
        sql: include_str!("../sqlite/0005_baselines.sql"),
    },
];

/// The statement that creates the temporary trigger of a rewind on a connection to a session's
/// SQLite file.
pub const SQLITE_REWIND: &str = include_str!("../sqlite/rewind.sql");

/// The statements that create the temporary view `new_session` on a connection to `index.db`.
pub const SQLITE_NEW_SESSION: &str = include_str!("../sqlite/new_session.sql");

/// The migrations of `index.db` in the folder of a SQLite store. The file can be rebuilt from the
/// session files.
pub const SQLITE_INDEX: &[Migration] = &[
    Migration {
        version: 1,
        sql: include_str!("../sqlite/0001_index.sql"),
    },
    Migration {
        version: 2,
        sql: include_str!("../sqlite/0002_index_waits.sql"),
    },
];
