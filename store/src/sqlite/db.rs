//! An open SQLite file: one connection with its own thread, a deadline for each call, and a schema
//! that was checked.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Row, Sqlite, SqliteConnection,
    query::Query,
    sqlite::{
        SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous,
    },
};
use tempfile::TempDir;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout_at},
};

use planck_migrations::Migration;

use super::{
    fault::{self, SqliteFault},
    folder,
    read_only::{self, ReadOnlyView},
    schema::{FileSchema, Migrated},
};
use crate::StoreError;

pub type SqliteStatement<'q> = Query<'q, Sqlite, SqliteArguments>;

/// A row whose columns are read by name.
pub type SqliteRowReader<'a> = crate::row::RowReader<'a, SqliteRow>;

/// An open file, or a database in memory.
#[derive(Debug)]
pub struct Db {
    path: PathBuf,
    /// The inode of the open file, which shows whether another process replaced or removed the
    /// file. Not used for a database in memory.
    inode: Option<u64>,
    in_memory: bool,
    /// Whether the connection can no longer be used: its thread has ended, or SQLite opened the file
    /// read-only because it could not open it for writing.
    is_dead: AtomicBool,
    opening: DbOptions,
    connection: Mutex<SqliteConnection>,
    /// The private copy that is open instead of the file itself. The copy is removed when the `Db`
    /// is dropped.
    _copy: Option<TempDir>,
}

impl Db {
    /// Opens a file and migrates its schema to this version. With `create`, creates the file if it
    /// is missing. Refuses a newer schema, and tables that do not match the file's schema version.
    /// If `opening.look` is set, opens the file read-only instead, and refuses every other schema.
    pub async fn open(
        path: &Path,
        opening: DbOptions,
        create: bool,
        schema: &[Migration],
    ) -> Result<Self, SqliteFault> {
        folder::admit(path, create && !opening.look)?;
        if opening.look {
            return Self::look(path, opening, schema).await;
        }
        // SQLite opens a file read-only if it cannot open the file for writing, and so it would do with
        // a file that another task creates between the two attempts.
        if inode(path).is_none() {
            return Err(missing(path));
        }
        let opened = async {
            let db = Self::connect(
                path,
                ReadOnlyView {
                    connect: opening.connect(path, create),
                    copy: None,
                },
                opening,
            )
            .await?;
            db.migrate(schema).await.map(|()| db)
        };
        match opened.await {
            // SQLite returns various errors for a file that was removed meanwhile.
            Err(_) if inode(path).is_none() => Err(missing(path)),
            opened => opened,
        }
    }

    /// Creates a file with the tables of this version and no rows. If the file exists already or
    /// cannot be created in one step, opens it as [`Self::open`] with `create` does.
    pub async fn create(
        path: &Path,
        opening: DbOptions,
        schema: &[Migration],
    ) -> Result<Self, SqliteFault> {
        match Self::create_filled(path, opening, schema, vec![]).await? {
            Some(db) => Ok(db),
            None => Self::open(path, opening, true, schema).await,
        }
    }

    /// Creates a file with the tables of this version, to which these statements were applied, in
    /// one step: other processes see the file with all its rows or not at all. Returns `None` if
    /// the file exists already, if it cannot be created in one step, or if a statement fails.
    pub async fn create_filled(
        path: &Path,
        opening: DbOptions,
        schema: &[Migration],
        rows: Vec<SqliteStatement<'_>>,
    ) -> Result<Option<Self>, SqliteFault> {
        let migrated = Migrated::by(path, opening, schema).await?;
        let Ok(image) = migrated.image_with(rows).await else {
            return Ok(None);
        };
        if !folder::create_with(path, &image, opening.full_sync) {
            return Ok(None);
        }
        let connect = opening.connect(path, false);
        let view = ReadOnlyView {
            connect,
            copy: None,
        };
        Self::connect(path, view, opening).await.map(Some)
    }

    /// Opens a database in memory and applies the migrations `schema`. Errors name the file at
    /// `path`, which is not opened.
    pub async fn in_memory(
        path: &Path,
        opening: DbOptions,
        schema: &[Migration],
    ) -> Result<Self, SqliteFault> {
        let connect = SqliteConnectOptions::new()
            .filename(":memory:")
            .foreign_keys(false)
            .disable_statement_logging();
        let db = Self::connect(
            path,
            ReadOnlyView {
                connect,
                copy: None,
            },
            opening,
        )
        .await?;
        let db = Self {
            in_memory: true,
            ..db
        };
        for migration in schema {
            db.step(migration).await?;
        }
        Ok(db)
    }

    async fn connect(
        path: &Path,
        view: ReadOnlyView,
        opening: DbOptions,
    ) -> Result<Self, SqliteFault> {
        let opened = timeout_at(opening.deadline(), opening.connect_when_free(&view.connect)).await;
        let connection = opened
            .map_err(|_elapsed| slow(path))?
            .map_err(|error| fault::sort(&error, path))?;
        let connection = Mutex::new(connection);
        Ok(Self {
            path: path.to_owned(),
            inode: inode(path),
            in_memory: false,
            is_dead: AtomicBool::new(false),
            opening,
            connection,
            _copy: view.copy,
        })
    }

    /// Opens a file read-only, without changing it or creating a file beside it. Refuses a schema
    /// of another version.
    async fn look(
        path: &Path,
        opening: DbOptions,
        schema: &[Migration],
    ) -> Result<Self, SqliteFault> {
        if inode(path).is_none() {
            return Err(missing(path));
        }
        let mut tried = Err(SqliteFault::Missing(format!(
            "{} cannot be looked at",
            path.display()
        )));
        for way in read_only::ways(path) {
            let view = way(path)?;
            tried = async {
                let db = Self::connect(path, view, opening).await?;
                db.is_of(schema).await.map(|()| db)
            }
            .await;
            if tried.is_ok() {
                break;
            }
        }
        tried
    }

    async fn is_of(&self, schema: &[Migration]) -> Result<(), SqliteFault> {
        let known = schema.last().map_or(0, |migration| migration.version);
        match self.checked_version(schema).await? {
            0 => Err(SqliteFault::Missing(format!(
                "{} holds nothing yet",
                self.path.display()
            ))),
            found if found < known => {
                let what = format!(
                    "its schema {found} is older than {known}, and looking changes nothing"
                );
                Err(fault::broken(
                    &self.path,
                    what,
                    "the next node on this store brings it up to date",
                )
                .into())
            }
            _known => Ok(()),
        }
    }

    /// Returns the version of the file's schema. Fails if this process does not know the version or
    /// the tables do not match it.
    async fn checked_version(&self, schema: &[Migration]) -> Result<u32, SqliteFault> {
        let known = schema.last().map_or(0, |migration| migration.version);
        let found = FileSchema::read(self).await?;
        if found.version > known {
            return Err(self.newer(found.version, known));
        }
        found
            .check(&self.path, self.opening, schema)
            .await
            .map(|()| found.version)
    }

    fn newer(&self, found: u32, known: u32) -> SqliteFault {
        let what = format!("its schema {found} is newer than {known}, the newest this node knows");
        fault::broken(&self.path, what, "run a newer planck").into()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn reader<'a>(&'a self, row: &'a SqliteRow) -> SqliteRowReader<'a> {
        SqliteRowReader {
            row,
            file: Some(&self.path),
        }
    }

    /// Returns whether the connection works and the path still leads to the open file.
    pub fn is_current(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed) && self.is_in_place()
    }

    fn is_in_place(&self) -> bool {
        self.in_memory || self.inode.is_some() && inode(&self.path) == self.inode
    }

    /// Runs one statement to completion, which commits its changes, and returns its rows.
    pub async fn rows(
        &self,
        statement: SqliteStatement<'_>,
    ) -> Result<Vec<SqliteRow>, SqliteFault> {
        let run = async {
            statement
                .fetch_all(&mut *self.connection.lock().await)
                .await
        };
        self.bounded(run).await
    }

    /// Runs one statement and returns its first row.
    pub async fn row(
        &self,
        statement: SqliteStatement<'_>,
    ) -> Result<Option<SqliteRow>, SqliteFault> {
        Ok(self.rows(statement).await?.into_iter().next())
    }

    /// Runs one statement and returns how many rows it changed.
    pub async fn execute(&self, statement: SqliteStatement<'_>) -> Result<u64, SqliteFault> {
        let run = async { statement.execute(&mut *self.connection.lock().await).await };
        Ok(self.bounded(run).await?.rows_affected())
    }

    /// Runs several statements in one transaction. Returns `false` without running the others if
    /// the first one changes no row. The file stays locked between the statements, so the store
    /// uses this function only to create, adopt or remove sessions and to change the index.
    pub async fn all_or_nothing(
        &self,
        first: SqliteStatement<'_>,
        others: Vec<SqliteStatement<'_>>,
    ) -> Result<bool, SqliteFault> {
        let run = async {
            let mut connection = self.connection.lock().await;
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            if first.execute(&mut *transaction).await?.rows_affected() == 0 {
                return Ok(false);
            }
            for statement in others {
                statement.execute(&mut *transaction).await?;
            }
            transaction.commit().await.map(|()| true)
        };
        self.bounded(run).await
    }

    /// Returns the database, to which these statements were applied, in the format of an SQLite
    /// file. The database itself does not change.
    pub async fn image_with(&self, rows: Vec<SqliteStatement<'_>>) -> Result<Vec<u8>, SqliteFault> {
        let run = async {
            let mut connection = self.connection.lock().await;
            // `BEGIN` fails if the rollback below should ever have failed.
            let mut transaction = connection.begin_with("BEGIN").await?;
            for statement in rows {
                statement.execute(&mut *transaction).await?;
            }
            // Dropping the transaction rolls it back before the connection's next statement.
            transaction
                .serialize(None)
                .await
                .map(|image| image.to_vec())
        };
        self.bounded(run).await
    }

    async fn bounded<T>(
        &self,
        run: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, SqliteFault> {
        let done = timeout_at(self.opening.deadline(), run)
            .await
            .map_err(|_elapsed| slow(&self.path))?;
        if done.as_ref().is_err_and(fault::ends_connection) {
            self.is_dead.store(true, Ordering::Relaxed);
        }
        // SQLite returns various errors for a file that was removed.
        done.map_err(|error| {
            if self.is_in_place() {
                fault::sort(&error, &self.path)
            } else {
                missing(&self.path)
            }
        })
    }

    async fn migrate(&self, schema: &[Migration]) -> Result<(), SqliteFault> {
        let found = self.checked_version(schema).await?;
        for migration in schema.iter().filter(|migration| migration.version > found) {
            self.step(migration).await?;
        }
        Ok(())
    }

    /// Applies one migration, unless another process applied it while this one waited for the lock.
    async fn step(&self, migration: &Migration) -> Result<(), SqliteFault> {
        let run = async {
            let mut connection = self.connection.lock().await;
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            let found: u32 = sqlx::query("PRAGMA user_version")
                .fetch_one(&mut *transaction)
                .await?
                .try_get(0)?;
            if found >= migration.version {
                return Ok(());
            }
            sqlx::raw_sql(migration.sql)
                .execute(&mut *transaction)
                .await?;
            let stamp = AssertSqlSafe(format!("PRAGMA user_version = {}", migration.version));
            sqlx::raw_sql(stamp).execute(&mut *transaction).await?;
            transaction.commit().await
        };
        self.bounded(run).await
    }
}

fn missing(path: &Path) -> SqliteFault {
    SqliteFault::Missing(format!("there is no {}", path.display()))
}

fn inode(path: &Path) -> Option<u64> {
    Some(fs::symlink_metadata(path).ok()?.ino())
}

fn slow(path: &Path) -> SqliteFault {
    StoreError::Away(format!("{} did not answer in time", path.display())).into()
}

// The options with which SQLite files are opened, and the connection to files that may be locked.

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
    async fn connect_when_free(&self, to: &SqliteConnectOptions) -> sqlx::Result<SqliteConnection> {
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
