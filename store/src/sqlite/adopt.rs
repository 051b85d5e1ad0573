//! Adopts sessions from another folder, for example the folder of an earlier version or of a
//! project that was moved. The files are not trusted, so the store copies only their rows, into
//! tables that this version creates. No adopted agent has a host.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use sqlx::query;
use tempfile::TempDir;

use planck_common::{SessionId, SessionName, Timestamp, command::SessionState};
use planck_migrations::SQLITE_SESSION;

use super::{
    SqliteStore,
    db::{Db, DbOptions, SqliteRowReader},
    fault,
    folder::StoreFolder,
    index::{NewRows, Reserved, session_of_file},
    lock, read_only,
};
use crate::{StoreError, name_taken};

const TOTALS: &str = "input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd";

/// A session file in a folder that does not belong to this store.
#[derive(Debug, Clone)]
pub struct StraySession {
    pub id: SessionId,
    pub name: SessionName,
    pub bytes: u64,
    /// Why the session cannot be adopted, or `None` if the check of the file found no problem.
    pub problem: Option<String>,
}

impl StraySession {
    fn file(&self) -> String {
        format!("{}_{}.db", self.id, self.name)
    }
}

/// Returns the session files of a folder, sorted by the names of the sessions. Opens each file only
/// to check that it is a regular file, and to read its size.
pub fn stray_sessions(folder: &Path) -> Result<Vec<StraySession>, StoreError> {
    let folder = StoreFolder::open(folder)?;
    let mut found: Vec<StraySession> = Vec::new();
    for file in folder.names()? {
        let Some((id, name)) = session_of_file(&file) else {
            continue;
        };
        let (bytes, problem) = match folder.read_file(&file) {
            Ok(file) => (
                file.and_then(|file| Some(file.metadata().ok()?.len()))
                    .unwrap_or(0),
                None,
            ),
            Err(error) => (0, Some(error.to_string())),
        };
        found.push(StraySession {
            id,
            name,
            bytes,
            problem,
        });
    }
    found.sort_by(|one, other| one.name.as_str().cmp(other.name.as_str()));
    Ok(found)
}

impl SqliteStore {
    /// Copies a session into this store as a closed one, and then removes its original files. The
    /// leases of its agents are released, and its unread inputs are withdrawn.
    pub async fn adopt(&self, from: &Path, stray: &StraySession) -> Result<(), StoreError> {
        let source = StoreFolder::open(from)?;
        if lock::is_in_use(&source) {
            let message = format!(
                "a planck process still works in {}; end it first",
                from.display()
            );
            return Err(StoreError::Busy(message));
        }
        let copy = copied(&source, stray)?;
        let old = copy.path().join("copy.db");
        let created_at = self.created_at(&old, stray).await?;
        match self
            .index
            .reserve(&stray.id, &stray.name, created_at, NewRows::default())
            .await?
        {
            Reserved::Yes => {}
            Reserved::Known(_) | Reserved::Taken(_) | Reserved::Gone => {
                return Err(name_taken(&stray.name));
            }
        }
        let filled = self.fill(&old, stray).await;
        if let Err(error) = filled {
            self.files.forget(&stray.id);
            self.index.forget(&stray.id).await?;
            for end in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(read_only::beside(
                    &self.files.path(&stray.id, &stray.name),
                    end,
                ));
            }
            return Err(error);
        }
        self.index.adopted(&stray.id, &stray.name).await?;
        self.index
            .state(&stray.id, SessionState::Closed, Timestamp::now())
            .await?;
        for end in ["", "-wal", "-shm"] {
            let _ = source.remove(&format!("{}{end}", stray.file()));
        }
        Ok(())
    }

    /// Migrates the copy of a session file to this version's schema, and returns when the session
    /// was created.
    async fn created_at(&self, old: &Path, stray: &StraySession) -> Result<Timestamp, StoreError> {
        let opening = DbOptions {
            look: false,
            ..self.opening
        };
        let db = Db::open(old, opening, false, SQLITE_SESSION).await?;
        let created = query("SELECT created_at FROM sessions WHERE id = ?1 AND name = ?2");
        let row = db
            .row(
                created
                    .bind(stray.id.to_string())
                    .bind(stray.name.to_string()),
            )
            .await?;
        let row = row.ok_or_else(|| {
            StoreError::NotFound(format!(
                "the file of session {} holds another one",
                stray.name
            ))
        })?;
        SqliteRowReader {
            row: &row,
            file: Some(old),
        }
        .timestamp("created_at")
    }

    async fn fill(&self, old: &Path, stray: &StraySession) -> Result<(), StoreError> {
        let file = self.files.create(&stray.id, &stray.name).await?;
        let db = &file.db;
        db.execute(query("ATTACH DATABASE ?1 AS old").bind(old.to_string_lossy().into_owned()))
            .await?;
        let session = sqlx::AssertSqlSafe(format!(
            "INSERT INTO main.sessions (only, id, store_id, name, state, spec, lead, metadata, next_seq, max_agents, {TOTALS},
                created_at, updated_at)
             SELECT 1, id, ?3, name, 'closed', spec, lead, metadata, next_seq, max_agents, {TOTALS}, created_at, updated_at
             FROM old.sessions WHERE id = ?1 AND name = ?2 LIMIT 1"
        ));
        let agents = sqlx::AssertSqlSafe(format!(
            "INSERT INTO main.agents (n, id, name, type, role, spec, state, node_id, epoch, last_seq, incarnation, {TOTALS})
             SELECT n, id, name, type, role, spec, iif(state = 'stopped', 'stopped', 'idle'), NULL, epoch + 1, last_seq,
                incarnation, {TOTALS} FROM old.agents"
        ));
        const LOG: &str =
            "INSERT INTO main.log (seq, agent_id, epoch, prev, kind, turn, request, at, node_id, covers, hidden_by, body)
             SELECT seq, agent_id, epoch, prev, kind, turn, request, at, node_id, covers, hidden_by, body FROM old.log";
        const INPUTS: &str =
            "INSERT INTO main.inputs (n, id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, output, head,
                at, turn, outcome, answer, waiting)
             SELECT n, id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, output, head, at, turn,
                iif(outcome IS NULL AND turn IS NULL, 'withdrawn', outcome), answer,
                iif(outcome IS NULL AND turn IS NULL, 0, waiting) FROM old.inputs";
        // The answers of the waits are also the rules of the session.
        const WAITS: &str =
            "INSERT INTO main.waits (id, agent_id, kind, seq, opened_at, digest, expires_at, state, answer)
             SELECT id, agent_id, kind, seq, opened_at, digest, expires_at, state, answer FROM old.waits";
        const BASELINES: &str =
            "INSERT INTO main.baselines (call_id, agent_id, epoch, roots, changed)
             SELECT call_id, agent_id, epoch, roots, changed FROM old.baselines";
        let first = query(session)
            .bind(stray.id.to_string())
            .bind(stray.name.to_string())
            .bind(self.index.store_id().await?);
        let rest = vec![
            query(agents),
            query(LOG),
            query(INPUTS),
            query(WAITS),
            query(BASELINES),
        ];
        match db.all_or_nothing(first, rest).await? {
            true => Ok(()),
            false => Err(StoreError::NotFound(format!(
                "the file of session {} holds another one",
                stray.name
            ))),
        }
    }
}

/// Makes a private copy of a session's file and journal.
fn copied(source: &StoreFolder, stray: &StraySession) -> Result<TempDir, StoreError> {
    let failed = |path: PathBuf| {
        move |error: io::Error| fault::refused(&path, &error, "free some space for temporary files")
    };
    let copy = TempDir::new().map_err(failed(std::env::temp_dir()))?;
    for end in ["", "-wal", "-journal"] {
        let Some(mut from) = source.read_file(&format!("{}{end}", stray.file()))? else {
            continue;
        };
        let to = copy.path().join(format!("copy.db{end}"));
        let written = File::create(&to).and_then(|mut into| io::copy(&mut from, &mut into));
        written.map_err(failed(to))?;
    }
    Ok(copy)
}
