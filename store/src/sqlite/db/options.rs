//! The options with which SQLite files are opened, and the connection to files that may be locked.

use std::{path::Path, time::Duration};

use sqlx::{
    ConnectOptions as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use tokio::time::{Instant, sleep};

use crate::sqlite::fault;

/// The size of a connection's page cache, where SQLite reads a negative number as KiB. The
/// operating system caches the rest of the file.
const CACHE: &str = "-512";

/// The pause between attempts to connect to a locked file.
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// The options with which a file is opened.
#[derive(Debug, Clone, Copy)]
pub struct DbOptions {
    /// How long a call waits for another process's write.
    pub busy: Duration,
    /// Whether a committed write survives a power failure. Otherwise the write only survives the
    /// end of all processes.
    pub full_sync: bool,
    /// Whether the file is opened read-only, so that nothing on the disk changes.
    pub look: bool,
}

impl DbOptions {
    /// Returns the deadline of a call that starts now. It allows the time to wait for other
    /// processes, and the same time for the call itself.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.busy * 2
    }

    pub fn connect(&self, path: &Path, create: bool) -> SqliteConnectOptions {
        let synchronous = if self.full_sync {
            SqliteSynchronous::Full
        } else {
            SqliteSynchronous::Normal
        };
        SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(create)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .busy_timeout(self.busy)
            .foreign_keys(false)
            .pragma("cache_size", CACHE)
            .pragma("trusted_schema", "OFF")
            .pragma("cell_size_check", "ON")
            .disable_statement_logging()
    }

    /// Connects to a file. While the file is locked, tries again until the time in `busy` has
    /// passed. SQLite itself does not wait for another process that switches a new file to WAL at
    /// the same time.
    pub(super) async fn connect_when_free(
        &self,
        to: &SqliteConnectOptions,
    ) -> sqlx::Result<SqliteConnection> {
        let until = Instant::now() + self.busy;
        loop {
            match to.connect().await {
                Err(error) if fault::is_busy(&error) && Instant::now() < until => {
                    sleep(TRY_AGAIN).await;
                }
                connected => return connected,
            }
        }
    }
}
