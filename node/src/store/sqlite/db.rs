//! One open SQLite file: its one connection, which is a thread of its own, a deadline for
//! everything, and its schema.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use planck_migrations::Migration;
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
    time::{Instant, timeout_at},
};

use super::{
    decode::RowReader,
    fault::{self, SqliteFault},
    folder,
    schema::FileSchema,
    view::{self, View},
};
use crate::store::StoreError;

pub type SqliteStatement<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Pages a connection keeps, in KiB by SQLite's way of a negative number; the system has the rest
/// of the file in its own cache.
const CACHE: &str = "-512";

/// How files are opened.
#[derive(Debug, Clone, Copy)]
pub struct DbOptions {
    /// How long to wait for another process's write.
    pub busy: Duration,
    /// Whether a commit survives the power, not only the death of every process.
    pub full_sync: bool,
    /// Nothing on the disk is to change.
    pub look: bool,
}

impl DbOptions {
    /// What bounds a call: the wait for others, and as long again for the work.
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
}

/// An open file.
#[derive(Debug)]
pub struct Db {
    path: PathBuf,
    /// The file itself, which another process may have replaced or removed since; `None` for one in
    /// memory.
    inode: Option<u64>,
    in_memory: bool,
    /// Whether the connection's thread ended: it answers nothing any more.
    is_dead: AtomicBool,
    opening: DbOptions,
    connection: Mutex<SqliteConnection>,
    /// What is open in the file's place.
    _copy: Option<TempDir>,
}

impl Db {
    /// Opens a file, brings its schema up to date, and refuses one that is newer.
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
        let was_there = inode(path).is_some();
        let opened = async {
            let db = Self::connect(
                path,
                View {
                    connect: opening.connect(path, create),
                    copy: None,
                },
                opening,
            )
            .await?;
            db.migrate(schema).await.map(|()| db)
        };
        match opened.await {
            // Whatever is said of a file that another process creates or removes meanwhile: it was
            // not there.
            Err(_) if !was_there || inode(path).is_none() => Err(missing(path)),
            opened => opened,
        }
    }

    /// A database of this process alone, which is gone with it.
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
            View {
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

    async fn connect(path: &Path, view: View, opening: DbOptions) -> Result<Self, SqliteFault> {
        let opened = timeout_at(opening.deadline(), view.connect.connect()).await;
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

    /// Opens a file without changing anything beside it; one whose schema is older than this
    /// version's is refused.
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
        for way in view::ways(path) {
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

    /// The version of the file's schema, which is one that this version knows and has the tables of
    /// it.
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

    pub fn reader<'a>(&'a self, row: &'a SqliteRow) -> RowReader<'a> {
        RowReader {
            row,
            path: &self.path,
        }
    }

    /// Whether the file that is open is still the one at its path, and answers.
    pub fn is_current(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed) && self.is_in_place()
    }

    fn is_in_place(&self) -> bool {
        self.in_memory || self.inode.is_some() && inode(&self.path) == self.inode
    }

    /// All rows of one statement. It is run to its end, so that what it changes is committed.
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

    /// The first row of one statement.
    pub async fn row(
        &self,
        statement: SqliteStatement<'_>,
    ) -> Result<Option<SqliteRow>, SqliteFault> {
        Ok(self.rows(statement).await?.into_iter().next())
    }

    /// How many rows one statement changed.
    pub async fn execute(&self, statement: SqliteStatement<'_>) -> Result<u64, SqliteFault> {
        let run = async { statement.execute(&mut *self.connection.lock().await).await };
        Ok(self.bounded(run).await?.rows_affected())
    }

    /// Several statements in one transaction, for what concerns nobody else yet. The first one says
    /// how many rows there must be for the others to be carried out.
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

    async fn bounded<T>(
        &self,
        run: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, SqliteFault> {
        let done = timeout_at(self.opening.deadline(), run)
            .await
            .map_err(|_elapsed| slow(&self.path))?;
        if matches!(done, Err(sqlx::Error::WorkerCrashed)) {
            self.is_dead.store(true, Ordering::Relaxed);
        }
        // Of a file that was removed SQLite says many things.
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

    /// One process does it; another that waited finds it done.
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
