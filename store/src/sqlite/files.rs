//! The open session files. Each has a thread, so their number is limited, and the least recently
//! used one is closed to make room.

use std::{
    collections::HashMap,
    ops::Deref,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use planck_common::{AgentId, SessionId, SessionName, TeamId};
use planck_migrations::SQLITE_SESSION;
use sqlx::{query, sqlite::SqliteRow};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

use super::{
    db::SqliteRowReader,
    db::{Db, DbOptions, SqliteStatement},
    fault::{self, SqliteFault},
};
use crate::{AgentRecord, NewSession, StoreError};

/// The open file of one session, with the ids in it that never change.
#[derive(Debug)]
pub struct SessionFile {
    pub db: Db,
    pub id: SessionId,
    pub team: TeamId,
    pub lead: AgentId,
}

/// A session file in use. The file stays open at least until the `InUse` is dropped.
#[derive(Debug)]
pub struct InUse {
    file: Arc<SessionFile>,
    _permit: OwnedSemaphorePermit,
}

impl Deref for InUse {
    type Target = SessionFile;
    fn deref(&self) -> &SessionFile {
        &self.file
    }
}

/// The file of a session that is being created.
#[derive(Debug)]
pub struct NewFile {
    pub db: Db,
    /// The permit to use one file. There are as many permits as files that may be open.
    _permit: OwnedSemaphorePermit,
}

type Cell = Arc<OnceCell<Arc<SessionFile>>>;

#[derive(Debug, Default)]
struct Pool {
    /// The open files by session, each with the time of its last use.
    slots: HashMap<SessionId, (Cell, Instant)>,
}

#[derive(Debug)]
pub struct SessionFiles {
    folder: PathBuf,
    opening: DbOptions,
    capacity: usize,
    pool: Mutex<Pool>,
    permits: Arc<Semaphore>,
}

impl SessionFiles {
    pub fn new(folder: PathBuf, opening: DbOptions, capacity: usize) -> Self {
        let permits = Arc::new(Semaphore::new(capacity.max(1)));
        Self {
            folder,
            opening,
            capacity: capacity.max(1),
            pool: Mutex::default(),
            permits,
        }
    }

    pub fn path(&self, id: &SessionId, name: &SessionName) -> PathBuf {
        self.folder.join(format!("{id}_{name}.db"))
    }

    /// Returns the file of a session if it is open, its connection works, and its path still leads
    /// to the open file. Otherwise returns `None`, and removes the file from the pool.
    pub async fn open_one(&self, id: &SessionId) -> Result<Option<InUse>, StoreError> {
        let permit = self.permit().await?;
        let cell = self.pool().find(id);
        let Some(file) = cell.and_then(|cell| cell.get().cloned()) else {
            return Ok(None);
        };
        if file.db.is_current() {
            return Ok(Some(InUse {
                file,
                _permit: permit,
            }));
        }
        self.forget(id);
        Ok(None)
    }

    /// Returns the file of a session, and opens it if necessary.
    pub async fn open(&self, id: &SessionId, name: &SessionName) -> Result<InUse, StoreError> {
        let permit = self.permit().await?;
        let cell = self.pool().take(id, self.capacity);
        let opened = cell
            .get_or_try_init(async || {
                SessionFile::open(id, self.path(id, name), self.opening)
                    .await
                    .map(Arc::new)
            })
            .await;
        match opened {
            Ok(file) => Ok(InUse {
                file: file.clone(),
                _permit: permit,
            }),
            Err(fault) => {
                self.forget(id);
                Err(fault.into())
            }
        }
    }

    /// Creates the file of a session with empty tables, or opens the file if it exists.
    pub async fn create(&self, id: &SessionId, name: &SessionName) -> Result<NewFile, StoreError> {
        let permit = self.permit().await?;
        let db = Db::create(&self.path(id, name), self.opening, SQLITE_SESSION).await?;
        Ok(NewFile {
            db,
            _permit: permit,
        })
    }

    /// Creates the file of a session with these rows in one step. Returns `None` if the file exists
    /// or cannot be created in this way.
    pub async fn create_filled(
        &self,
        id: &SessionId,
        name: &SessionName,
        rows: Vec<SqliteStatement<'_>>,
    ) -> Result<Option<NewFile>, StoreError> {
        let permit = self.permit().await?;
        let path = self.path(id, name);
        let db = Db::create_filled(&path, self.opening, SQLITE_SESSION, rows).await?;
        Ok(db.map(|db| NewFile {
            db,
            _permit: permit,
        }))
    }

    /// Keeps the file of a new session open, unless this process has opened it again meanwhile.
    pub fn keep(&self, new: NewFile, session: &NewSession) {
        let file = SessionFile {
            db: new.db,
            id: session.id.clone(),
            team: session.spec.team_id.clone(),
            lead: session.spec.lead.clone(),
        };
        let cell = self.pool().take(&session.id, self.capacity);
        let _ = cell.set(Arc::new(file));
    }

    /// Closes the files that are not in use and that no caller requested for this long, because
    /// each keeps a thread and cached pages.
    pub fn close_unused(&self, for_long: Duration) {
        self.pool()
            .slots
            .retain(|_, (cell, used)| used.elapsed() < for_long || !is_unused(cell));
    }

    pub fn forget(&self, id: &SessionId) {
        self.pool().slots.remove(id);
    }

    /// Returns how many files are open.
    #[cfg(test)]
    pub fn open_count(&self) -> usize {
        self.pool().slots.len()
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        let permit = self.permits.clone().acquire_owned().await;
        permit.map_err(|_closed| StoreError::Away("the store is closed".into()))
    }

    fn pool(&self) -> std::sync::MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn find(&mut self, id: &SessionId) -> Option<Cell> {
        let (cell, used) = self.slots.get_mut(id)?;
        *used = Instant::now();
        Some(cell.clone())
    }

    fn take(&mut self, id: &SessionId, capacity: usize) -> Cell {
        if let Some(cell) = self.find(id) {
            return cell;
        }
        while self.slots.len() >= capacity && self.close_one() {}
        let cell = Cell::default();
        self.slots
            .insert(id.clone(), (cell.clone(), Instant::now()));
        cell
    }

    /// Closes the least recently used file that is not in use. Returns `false` if all files are in
    /// use.
    fn close_one(&mut self) -> bool {
        let oldest = self
            .slots
            .iter()
            .filter(|(_, (cell, _))| is_unused(cell))
            .min_by_key(|(_, (_, used))| *used);
        let Some(id) = oldest.map(|(id, _)| id.clone()) else {
            return false;
        };
        self.slots.remove(&id).is_some()
    }
}

fn is_unused(cell: &Cell) -> bool {
    Arc::strong_count(cell) == 1 && cell.get().is_none_or(|file| Arc::strong_count(file) == 1)
}

impl SessionFile {
    async fn open(
        named: &SessionId,
        path: PathBuf,
        opening: DbOptions,
    ) -> Result<Self, SqliteFault> {
        let db = Db::open(&path, opening, false, SQLITE_SESSION).await?;
        let row = db
            .row(query(
                "SELECT id, lead, spec->>'team_id' AS team_id FROM sessions",
            ))
            .await?;
        let Some(row) = row else {
            return Err(SqliteFault::Missing(format!(
                "{} holds no session",
                path.display()
            )));
        };
        let row = db.reader(&row);
        let (id, lead) = (row.parse::<SessionId>("id")?, row.parse::<AgentId>("lead")?);
        if id != *named {
            return Err(fault::damaged(&path, format!("it holds session {id}")));
        }
        let team = row.parse::<TeamId>("team_id")?;
        Ok(Self { db, id, team, lead })
    }

    pub fn reader<'a>(&'a self, row: &'a SqliteRow) -> SqliteRowReader<'a> {
        self.db.reader(row)
    }

    /// Returns the record of an agent, or `None` if the session has no such agent.
    pub async fn agent(&self, id: &AgentId) -> Result<Option<AgentRecord>, StoreError> {
        let found = query("SELECT * FROM agents WHERE id = ?1").bind(id.as_str());
        let row = self.db.row(found).await?;
        row.map(|row| self.reader(&row).agent(self.id.clone(), self.team.clone()))
            .transpose()
    }
}
