//! Opens the index, rebuilds it from the session files if it is missing or damaged, and adds
//! session files that it lacks.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
    time::Duration,
};

use planck_common::{SessionId, SessionName, event::json};
use planck_migrations::{SQLITE_INDEX, SQLITE_NEW_SESSION, SQLITE_SESSION};
use sqlx::{Row, query};

use super::super::{
    db::{Db, DbOptions},
    fault::{self, SqliteFault},
    folder::StoreFolder,
    lock,
};
use crate::StoreError;

/// The file name of the index in a store's folder.
pub const NAME: &str = "index.db";

/// Opens the index of a folder. If the index is missing or damaged, rebuilds it from the session
/// files.
pub async fn open(folder: &Path, opening: DbOptions) -> Result<Db, StoreError> {
    let db = match checked(folder, opening).await {
        Err(SqliteFault::Damaged(_)) => put_aside(folder, opening).await?,
        other => other?,
    };
    if db.rows(query("SELECT id FROM store")).await?.is_empty() {
        fill(&db, folder, opening).await?;
    }
    db.execute(query(SQLITE_NEW_SESSION).persistent(false))
        .await?;
    Ok(db)
}

/// Opens the index of a folder read-only. If the index is missing, empty or damaged, builds a new
/// one in memory.
pub async fn look(folder: &Path, opening: DbOptions) -> Result<Db, StoreError> {
    match as_it_is(folder, opening).await {
        Ok(Some(db)) => Ok(db),
        Ok(None) | Err(SqliteFault::Missing(_) | SqliteFault::Damaged(_)) => {
            let db = Db::in_memory(&folder.join(NAME), opening, SQLITE_INDEX).await?;
            fill(&db, folder, opening).await?;
            Ok(db)
        }
        Err(fault) => Err(fault.into()),
    }
}

async fn as_it_is(folder: &Path, opening: DbOptions) -> Result<Option<Db>, SqliteFault> {
    let db = Db::open(&folder.join(NAME), opening, false, SQLITE_INDEX).await?;
    let is_filled = !db.rows(query("SELECT id FROM store")).await?.is_empty();
    Ok(is_filled.then_some(db))
}

async fn checked(folder: &Path, opening: DbOptions) -> Result<Db, SqliteFault> {
    let path = folder.join(NAME);
    let db = Db::open(&path, opening, true, SQLITE_INDEX).await?;
    let row = db.row(query("PRAGMA quick_check(1)")).await?;
    let verdict = row
        .and_then(|row| row.try_get::<String, _>(0).ok())
        .unwrap_or_default();
    if verdict == "ok" {
        Ok(db)
    } else {
        Err(fault::damaged(&path, verdict))
    }
}

/// Renames a damaged index, so that the user can examine it, and opens a new one. A lock file keeps
/// other processes from doing so at the same time. If another process did so first, only opens the
/// new one.
async fn put_aside(folder: &Path, opening: DbOptions) -> Result<Db, SqliteFault> {
    let _guard = guard(folder, opening).await?;
    let why = match checked(folder, opening).await {
        Err(SqliteFault::Damaged(why)) => why,
        other => return other,
    };
    tracing::warn!(folder = %folder.display(), why, "rebuilding the damaged index");
    let writable = |error| {
        fault::broken(
            &folder.join(NAME),
            error,
            "give this user write permission to the folder",
        )
    };
    fs::rename(folder.join(NAME), folder.join("index.db.broken")).map_err(writable)?;
    for rest in ["index.db-wal", "index.db-shm"] {
        let _ = fs::remove_file(folder.join(rest));
    }
    checked(folder, opening).await
}

async fn guard(folder: &Path, opening: DbOptions) -> Result<File, StoreError> {
    let path = folder.join(lock::FOLDER).join("index.lock");
    let failed = |error| {
        fault::broken(
            &path,
            error,
            "give this user write permission to the folder",
        )
    };
    let file = StoreFolder::open(folder)?
        .create_folder(lock::FOLDER)?
        .create_file("index.lock")?;
    let until = tokio::time::Instant::now() + opening.busy;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) if tokio::time::Instant::now() > until => {
                return Err(StoreError::Away(
                    "another process rebuilds the index".into(),
                ));
            }
            Err(TryLockError::WouldBlock) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Returns the sessions that have a file in a folder.
pub fn session_files(folder: &Path) -> Result<Vec<(SessionId, SessionName)>, StoreError> {
    let failed = |error| {
        fault::broken(
            folder,
            error,
            "give this user read permission to the folder",
        )
    };
    let mut found = vec![];
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        found.extend(name.to_str().and_then(session_of_file));
    }
    found.sort();
    Ok(found)
}

/// Parses the id and the name of a session from the name of its file.
pub fn session_of_file(file: &str) -> Option<(SessionId, SessionName)> {
    let (id, name) = file.strip_suffix(".db")?.rsplit_once('_')?;
    Some((SessionId::parse(id).ok()?, SessionName::parse(name).ok()?))
}

/// The rows of the index for some session files, as JSON.
#[derive(Default)]
struct IndexRows {
    store_id: Option<String>,
    sessions: Vec<serde_json::Value>,
    agents: Vec<serde_json::Value>,
    leases: Vec<serde_json::Value>,
    pending: Vec<serde_json::Value>,
    waits: Vec<serde_json::Value>,
}

async fn fill(db: &Db, folder: &Path, opening: DbOptions) -> Result<(), StoreError> {
    let found = read_all(folder, opening, &session_files(folder)?).await;
    let id = found
        .store_id
        .clone()
        .unwrap_or_else(|| SessionId::mint().to_string());
    let first =
        query("INSERT INTO store (only, id) VALUES (1, ?1) ON CONFLICT DO NOTHING").bind(id);
    db.all_or_nothing(first, found.statements()).await?;
    Ok(())
}

/// Adds session files to the index, except those that cannot be read.
pub async fn add(
    db: &Db,
    folder: &Path,
    opening: DbOptions,
    files: &[(SessionId, SessionName)],
) -> Result<(), StoreError> {
    for statement in read_all(folder, opening, files).await.statements() {
        db.execute(statement).await?;
    }
    Ok(())
}

async fn read_all(
    folder: &Path,
    opening: DbOptions,
    files: &[(SessionId, SessionName)],
) -> IndexRows {
    let mut found = IndexRows::default();
    for (id, name) in files {
        if let Err(error) = found
            .read(&folder.join(format!("{id}_{name}.db")), opening)
            .await
        {
            let error = StoreError::from(error);
            tracing::warn!(session = %id, %error, "left a session file out of the index: it cannot be read");
        }
    }
    found
}

impl IndexRows {
    async fn read(&mut self, path: &Path, opening: DbOptions) -> Result<(), SqliteFault> {
        let db = Db::open(path, opening, false, SQLITE_SESSION).await?;
        for (sql, into) in [
            (
                "SELECT json_array(id, name, state, created_at, updated_at) FROM sessions",
                &mut self.sessions,
            ),
            (
                "SELECT json_array(a.id, s.id) FROM agents a, sessions s",
                &mut self.agents,
            ),
            (
                "SELECT DISTINCT json_array(a.node_id, s.id) FROM agents a, sessions s WHERE a.node_id IS NOT NULL",
                &mut self.leases,
            ),
            (
                "SELECT json_array(s.id, i.id, i.agent_id, i.at) FROM inputs i, sessions s WHERE i.outcome IS NULL AND i.turn IS NULL",
                &mut self.pending,
            ),
            (
                "SELECT json_array(s.id, w.id, w.opened_at, iif(w.state IN ('open', 'answered'), 0, NULL)) FROM waits w, sessions s",
                &mut self.waits,
            ),
        ] {
            for row in db.rows(query(sql)).await? {
                let text: String = row.try_get(0).map_err(|error| fault::sort(&error, path))?;
                into.extend(serde_json::from_str::<serde_json::Value>(&text).ok());
            }
        }
        if let Some(row) = db.row(query("SELECT store_id FROM sessions")).await? {
            self.store_id = row.try_get(0).ok();
        }
        Ok(())
    }

    fn statements(&self) -> Vec<super::SqliteStatement<'static>> {
        [
            (
                "INSERT INTO sessions SELECT value->>0, value->>1, value->>2, value->>3, value->>4 FROM json_each(?1) WHERE true
                 ON CONFLICT DO NOTHING",
                &self.sessions,
            ),
            ("INSERT INTO agents SELECT value->>0, value->>1 FROM json_each(?1) WHERE true ON CONFLICT DO NOTHING", &self.agents),
            ("INSERT INTO leases SELECT value->>0, value->>1 FROM json_each(?1) WHERE true ON CONFLICT DO NOTHING", &self.leases),
            (
                "INSERT INTO pending SELECT value->>0, value->>1, value->>2, value->>3 FROM json_each(?1) WHERE true
                 ON CONFLICT DO NOTHING",
                &self.pending,
            ),
            (
                "INSERT INTO waits (session_id, id, opened_at, at, due) SELECT value->>0, value->>1, value->>2, value->>2, value->>3
                 FROM json_each(?1) WHERE true ON CONFLICT DO NOTHING",
                &self.waits,
            ),
        ]
        .into_iter()
        .map(|(sql, rows)| query(sql).bind(json(rows)))
        .collect()
    }
}
