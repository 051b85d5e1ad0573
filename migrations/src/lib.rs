//! The SQL schema in two dialects that change together. A change is a new file in both folders;
//! files that were released stay as they are. A function that only Postgres needs is in its folder
//! alone, so the two number their own steps.

/// One step forward of a schema.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// The schema's version after it, from 1 without gaps.
    pub version: u32,
    pub sql: &'static str,
}

/// Of the shared Postgres database.
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
    #[cfg(feature = "next")]
    Migration {
        version: 4,
        sql: NEXT,
    },
];

/// Of each session's SQLite file.
pub const SQLITE_SESSION: &[Migration] = &[
    Migration {
        version: 1,
        sql: include_str!("../sqlite/0001_session.sql"),
    },
    Migration {
        version: 2,
        sql: include_str!("../sqlite/0002_rewind.sql"),
    },
    #[cfg(feature = "next")]
    Migration {
        version: 3,
        sql: NEXT,
    },
];

/// What a next version may do while nodes of this one still run: add what they need not know.
#[cfg(feature = "next")]
const NEXT: &str = "ALTER TABLE agents ADD COLUMN herald text;";

/// Of a folder's `index.db`, which can be rebuilt from the session files.
pub const SQLITE_INDEX: &[Migration] = &[Migration {
    version: 1,
    sql: include_str!("../sqlite/0001_index.sql"),
}];
