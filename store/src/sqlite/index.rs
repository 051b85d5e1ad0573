//! The index `index.db`, which maps names, agents and nodes to session files. It can be rebuilt
//! from those files.

mod rebuild;
mod waits;

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sqlx::{query, sqlite::SqliteRow};
use tokio::sync::Mutex as AsyncMutex;

use planck_common::{
    AgentId, InputId, NodeId, SessionId, SessionName, Timestamp, command::SessionState, event::json,
};

use super::db::{Db, DbOptions, SqliteRowReader, SqliteStatement};
use crate::{
    NewSession, StoreError,
    page::SessionCursor,
    row::session_state_name,
    sqlite::fault::{Abort, SqliteFault},
};

pub use rebuild::{NAME, session_of_file};
pub use waits::{DueWait, WaitHint};

/// The index of one folder.
#[derive(Debug)]
pub struct Index {
    folder: PathBuf,
    opening: DbOptions,
    open: AsyncMutex<Option<OpenIndex>>,
    known: IndexCache,
}

/// The open file of the index, with the id of the store in it, which never changes.
#[derive(Debug, Clone)]
struct OpenIndex {
    db: Arc<Db>,
    store_id: String,
}

/// A session as recorded in the index, which may be slightly out of date.
#[derive(Debug, Clone)]
pub struct Listed {
    pub id: SessionId,
    pub name: SessionName,
    pub created_at: Timestamp,
}

impl Listed {
    pub fn cursor(&self) -> SessionCursor {
        SessionCursor {
            created_at: self.created_at,
            id: self.id.clone(),
        }
    }
}

impl Index {
    pub fn new(folder: PathBuf, opening: DbOptions) -> Self {
        Self {
            folder,
            opening,
            open: AsyncMutex::new(None),
            known: IndexCache::default(),
        }
    }

    /// Returns the open index. Reopens it if another process replaced it or the connection failed,
    /// and rebuilds it if it is missing or damaged. A read-only index is rebuilt in memory.
    async fn open(&self) -> Result<OpenIndex, StoreError> {
        let mut open = self.open.lock().await;
        if let Some(index) = open.as_ref().filter(|index| index.db.is_current()) {
            return Ok(index.clone());
        }
        let db = match self.opening.look {
            true => rebuild::look(&self.folder, self.opening).await?,
            false => rebuild::open(&self.folder, self.opening).await?,
        };
        let index = OpenIndex {
            store_id: store_id(&db).await?,
            db: Arc::new(db),
        };
        *open = Some(index.clone());
        Ok(index)
    }

    async fn db(&self) -> Result<Arc<Db>, StoreError> {
        Ok(self.open().await?.db)
    }

    async fn execute(&self, statement: SqliteStatement<'_>) -> Result<u64, StoreError> {
        Ok(self.db().await?.execute(statement).await?)
    }

    async fn read<T>(
        &self,
        statement: SqliteStatement<'_>,
        read: impl Fn(SqliteRowReader<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let db = self.db().await?;
        let rows: Vec<SqliteRow> = db.rows(statement).await?;
        rows.iter().map(|row| read(db.reader(row))).collect()
    }

    pub async fn store_id(&self) -> Result<String, StoreError> {
        Ok(self.open().await?.store_id)
    }

    /// Adds the agents of a session and the lease of their node. The caller does so before it
    /// writes them to the session's file.
    pub async fn add<'a>(
        &self,
        session: &SessionId,
        agents: impl Iterator<Item = &'a AgentId>,
        node: &NodeId,
    ) -> Result<(), StoreError> {
        self.execute(added(session, agents)).await?;
        self.leased(session, node).await
    }

    pub async fn leased(&self, session: &SessionId, node: &NodeId) -> Result<(), StoreError> {
        self.execute(leased(session, node)).await.map(drop)
    }

    pub async fn unleased(&self, session: &SessionId, nodes: &[NodeId]) -> Result<(), StoreError> {
        const UNLEASED: &str = "DELETE FROM leases WHERE session_id = ?1 AND node_id IN (SELECT value FROM json_each(?2))";
        self.execute(query(UNLEASED).bind(session.as_str()).bind(json(&nodes)))
            .await
            .map(drop)
    }

    pub async fn pending(
        &self,
        session: &SessionId,
        inputs: &[(&InputId, &AgentId)],
        at: Timestamp,
    ) -> Result<(), StoreError> {
        self.execute(pending(session, inputs, at)).await?;
        self.known.announced(inputs.iter().map(|(input, _)| *input));
        Ok(())
    }

    /// Returns those of the inputs that this process added to the index, and removes them from the
    /// cache. The caller then removes them from the index. A sweep removes those that other
    /// processes added.
    pub fn announced_here<'a>(&self, inputs: &[&'a InputId]) -> Vec<&'a InputId> {
        self.known.take_announced(inputs)
    }

    pub async fn consumed(
        &self,
        session: &SessionId,
        inputs: &[&InputId],
    ) -> Result<(), StoreError> {
        const CONSUMED: &str = "DELETE FROM pending WHERE session_id = ?1 AND input_id IN (SELECT value FROM json_each(?2))";
        self.execute(query(CONSUMED).bind(session.as_str()).bind(json(&inputs)))
            .await
            .map(drop)
    }

    pub async fn state(
        &self,
        session: &SessionId,
        state: SessionState,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        const STATE: &str = "UPDATE sessions SET state = ?2, changed_at = ?3 WHERE id = ?1";
        let statement = query(STATE)
            .bind(session.as_str())
            .bind(session_state_name(state))
            .bind(at.millis());
        self.execute(statement).await.map(drop)
    }

    pub async fn forget(&self, session: &SessionId) -> Result<(), StoreError> {
        for table in [
            "DELETE FROM agents WHERE session_id = ?1",
            "DELETE FROM leases WHERE session_id = ?1",
            "DELETE FROM pending WHERE session_id = ?1",
            "DELETE FROM waits WHERE session_id = ?1",
            "DELETE FROM sessions WHERE id = ?1",
        ] {
            self.execute(query(table).bind(session.as_str())).await?;
        }
        Ok(())
    }

    /// Finds a session by its id or its name. If the index does not have the session, searches the
    /// folder, and adds the session to the index unless the index is read-only.
    pub async fn find(
        &self,
        id_or_name: &str,
    ) -> Result<Option<(SessionId, SessionName)>, StoreError> {
        if let Some(found) = self.find_indexed(id_or_name).await? {
            return Ok(Some(found));
        }
        let files = rebuild::session_files(&self.folder)?;
        let Some(file) = files
            .into_iter()
            .find(|(id, name)| id.as_str() == id_or_name || name.as_str() == id_or_name)
        else {
            return Ok(None);
        };
        if self.opening.look {
            return Ok(Some(file));
        }
        let db = self.db().await?;
        rebuild::add(&db, &self.folder, self.opening, std::slice::from_ref(&file)).await?;
        Ok(Some(file))
    }

    /// Finds a session in the index by its id or its name.
    pub async fn find_indexed(
        &self,
        id_or_name: &str,
    ) -> Result<Option<(SessionId, SessionName)>, StoreError> {
        const FIND: &str =
            "SELECT id, name FROM sessions WHERE id = ?1 OR name = ?1 ORDER BY id <> ?1";
        let found = self.read(query(FIND).bind(id_or_name), id_and_name).await?;
        Ok(found.into_iter().next())
    }

    /// Adds the agents of a session that was adopted from another folder, and the session if the
    /// index does not have it.
    pub async fn adopted(&self, id: &SessionId, name: &SessionName) -> Result<(), StoreError> {
        let db = self.db().await?;
        rebuild::add(
            &db,
            &self.folder,
            self.opening,
            &[(id.clone(), name.clone())],
        )
        .await
    }

    pub async fn session_of(&self, agent: &AgentId) -> Result<Option<SessionId>, StoreError> {
        if let Some(known) = self.known.session_of(agent) {
            return Ok(Some(known));
        }
        let found = query("SELECT session_id FROM agents WHERE id = ?1").bind(agent.as_str());
        let read = |row: SqliteRowReader<'_>| row.parse::<SessionId>("session_id");
        let session = self.read(found, read).await?.into_iter().next();
        session
            .iter()
            .for_each(|session| self.known.belongs(agent, session));
        Ok(session)
    }

    /// Returns a page of sessions after a position in the list, newest first.
    pub async fn page(
        &self,
        state: Option<SessionState>,
        after: Option<SessionCursor>,
        limit: u32,
    ) -> Result<Vec<Listed>, StoreError> {
        const PAGE: &str = "SELECT id, name, created_at FROM sessions
            WHERE state <> 'new' AND (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR (created_at, id) < (?2, ?3))
            ORDER BY created_at DESC, id DESC LIMIT ?4";
        let statement = query(PAGE)
            .bind(state.map(session_state_name))
            .bind(after.as_ref().map(|after| after.created_at.millis()))
            .bind(after.as_ref().map(|after| after.id.to_string()))
            .bind(limit);
        let listed = |row: SqliteRowReader<'_>| {
            let (id, name) = id_and_name(row)?;
            Ok(Listed {
                id,
                name,
                created_at: row.timestamp("created_at")?,
            })
        };
        self.read(statement, listed).await
    }

    pub async fn closed_before(&self, at: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        const CLOSED: &str = "SELECT id FROM sessions WHERE state = 'closed' AND created_at < ?1 ORDER BY created_at, id";
        self.read(query(CLOSED).bind(at.millis()), |row| {
            row.parse::<SessionId>("id")
        })
        .await
    }

    /// Returns the sessions with leases of nodes that are not in `but`, each with the node. With
    /// `of`, ignores `but` and returns only the sessions with leases of the node `of`. Some of the
    /// leases may have ended.
    pub async fn leases(
        &self,
        but: &[NodeId],
        of: Option<&NodeId>,
    ) -> Result<Vec<(SessionId, NodeId)>, StoreError> {
        const LEASES: &str = "SELECT session_id, node_id FROM leases
            WHERE CASE WHEN ?2 IS NULL THEN node_id NOT IN (SELECT value FROM json_each(?1)) ELSE node_id = ?2 END
            ORDER BY session_id";
        let statement = query(LEASES)
            .bind(json(&but))
            .bind(of.map(|node| node.to_string()));
        let lease = |row: SqliteRowReader<'_>| {
            Ok((
                row.parse::<SessionId>("session_id")?,
                row.parse::<NodeId>("node_id")?,
            ))
        };
        self.read(statement, lease).await
    }

    /// Returns the inputs that may be unread, each with its session and the time at which it was
    /// added to the index.
    pub async fn all_pending(&self) -> Result<Vec<(SessionId, InputId, Timestamp)>, StoreError> {
        let pending = |row: SqliteRowReader<'_>| {
            Ok((
                row.parse::<SessionId>("session_id")?,
                row.parse::<InputId>("input_id")?,
                row.timestamp("at")?,
            ))
        };
        self.read(
            query("SELECT session_id, input_id, at FROM pending ORDER BY session_id"),
            pending,
        )
        .await
    }
}

async fn store_id(db: &Db) -> Result<String, StoreError> {
    match db.row(query("SELECT id FROM store")).await? {
        Some(row) => db.reader(&row).get("id"),
        None => Err(StoreError::Broken(
            "index.db names no store; delete it, and it is rebuilt".into(),
        )),
    }
}

fn added<'a>(
    session: &SessionId,
    agents: impl Iterator<Item = &'a AgentId>,
) -> SqliteStatement<'static> {
    const AGENTS: &str = "INSERT INTO agents (id, session_id) SELECT value, ?1 FROM json_each(?2) WHERE true ON CONFLICT DO NOTHING";
    let ids: Vec<&AgentId> = agents.collect();
    query(AGENTS).bind(session.to_string()).bind(json(&ids))
}

fn leased(session: &SessionId, node: &NodeId) -> SqliteStatement<'static> {
    const LEASED: &str =
        "INSERT INTO leases (node_id, session_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    query(LEASED)
        .bind(node.to_string())
        .bind(session.to_string())
}

fn pending(
    session: &SessionId,
    inputs: &[(&InputId, &AgentId)],
    at: Timestamp,
) -> SqliteStatement<'static> {
    const PENDING: &str = "INSERT INTO pending (session_id, input_id, agent_id, at)
        SELECT ?1, value->>0, value->>1, ?2 FROM json_each(?3) WHERE true ON CONFLICT DO NOTHING";
    query(PENDING)
        .bind(session.to_string())
        .bind(at.millis())
        .bind(json(&inputs))
}

fn id_and_name(row: SqliteRowReader<'_>) -> Result<(SessionId, SessionName), StoreError> {
    Ok((
        row.parse::<SessionId>("id")?,
        row.parse::<SessionName>("name")?,
    ))
}

// A cache of the index, so that a process need not read the index for each prompt.

/// The maximum number of entries of each kind. A full cache is cleared, which only costs a lookup
/// or leaves work to a sweep.
const MOST: usize = 65_536;

#[derive(Debug, Default)]
struct IndexCache {
    /// The session of each agent, which never changes.
    sessions: Mutex<HashMap<AgentId, SessionId>>,
    announced: Mutex<HashSet<InputId>>,
}

impl IndexCache {
    fn session_of(&self, agent: &AgentId) -> Option<SessionId> {
        lock(&self.sessions).get(agent).cloned()
    }

    fn belongs(&self, agent: &AgentId, session: &SessionId) {
        let mut sessions = lock(&self.sessions);
        if sessions.len() >= MOST {
            sessions.clear();
        }
        sessions.insert(agent.clone(), session.clone());
    }

    fn announced<'a>(&self, inputs: impl Iterator<Item = &'a InputId>) {
        let mut announced = lock(&self.announced);
        if announced.len() >= MOST {
            announced.clear();
        }
        announced.extend(inputs.cloned());
    }

    /// Returns those of the inputs that this process added to the index, and removes them from the
    /// cache.
    fn take_announced<'a>(&self, inputs: &[&'a InputId]) -> Vec<&'a InputId> {
        let mut announced = lock(&self.announced);
        inputs
            .iter()
            .copied()
            .filter(|input| announced.remove(*input))
            .collect()
    }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

// Reserves the name of a session before its file is created.

/// The result of reserving a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Reserved {
    Yes,
    /// The session already has this name.
    Known(SessionName),
    /// Another session has the name.
    Taken(SessionId),
    /// Another session had the name, and was removed meanwhile. Another attempt may succeed.
    Gone,
}

/// What is added to the index with the name of a new session.
#[derive(Debug, Default)]
pub struct NewRows<'a> {
    pub agents: Vec<&'a AgentId>,
    /// The node that holds the leases of the agents.
    pub node: Option<&'a NodeId>,
    /// The unread inputs, each with its agent.
    pub inputs: Vec<(&'a InputId, &'a AgentId)>,
}

impl Index {
    /// Reserves a name for a session, and adds these rows, with one statement. Nothing is changed
    /// if the session or the name is known.
    pub async fn reserve(
        &self,
        id: &SessionId,
        name: &SessionName,
        created_at: Timestamp,
        rows: NewRows<'_>,
    ) -> Result<Reserved, StoreError> {
        const RESERVE: &str = "INSERT INTO new_session (id, name, created_at, agents, node_id, inputs, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let NewRows {
            agents,
            node,
            inputs,
        } = rows;
        let statement = query(RESERVE)
            .bind(id.as_str())
            .bind(name.as_str())
            .bind(created_at.millis())
            .bind(json(&agents))
            .bind(node.map(|node| node.to_string()))
            .bind(json(&inputs))
            .bind(Timestamp::now().millis());
        match self.db().await?.execute(statement).await {
            Ok(_) => {
                for agent in agents {
                    self.known.belongs(agent, id);
                }
                self.known.announced(inputs.iter().map(|(input, _)| *input));
                Ok(Reserved::Yes)
            }
            Err(SqliteFault::Aborted(Abort::Known)) => self.holder(id, name).await,
            Err(fault) => Err(fault.into()),
        }
    }

    /// Returns which session has this id or this name.
    async fn holder(&self, id: &SessionId, name: &SessionName) -> Result<Reserved, StoreError> {
        const HOLDER: &str =
            "SELECT id, name FROM sessions WHERE id = ?1 OR name = ?2 ORDER BY id <> ?1";
        let statement = query(HOLDER).bind(id.as_str()).bind(name.as_str());
        let found = self.read(statement, id_and_name).await?;
        Ok(match found.into_iter().next() {
            Some((known, name)) if known == *id => Reserved::Known(name),
            Some((other, _)) => Reserved::Taken(other),
            None => Reserved::Gone,
        })
    }

    /// Reserves a name for a new session, and adds its agents, their lease and its prompt. The
    /// caller does so before it writes them to the session's file.
    pub async fn reserve_new(
        &self,
        session: &NewSession,
        name: &SessionName,
        node: &NodeId,
    ) -> Result<Reserved, StoreError> {
        let prompt = session.prompt.iter();
        let rows = NewRows {
            agents: session.agents.iter().map(|agent| &agent.id).collect(),
            node: Some(node),
            inputs: prompt.map(|prompt| (&prompt.id, &prompt.agent)).collect(),
        };
        self.reserve(&session.id, name, session.at, rows).await
    }

    /// Records that the file of a new session is complete.
    pub async fn state_of_new(&self, session: &SessionId) -> Result<(), StoreError> {
        let statement = query("UPDATE sessions SET state = 'open' WHERE id = ?1 AND state = 'new'")
            .bind(session.as_str());
        self.execute(statement).await.map(drop)
    }

    /// Returns whether the session's name was reserved before `at`, in milliseconds since 1970, and
    /// its file does not exist.
    pub async fn abandoned(&self, session: &SessionId, at: i64) -> Result<bool, StoreError> {
        const ABANDONED: &str =
            "SELECT id, name FROM sessions WHERE id = ?1 AND state = 'new' AND changed_at < ?2";
        let found = self
            .read(
                query(ABANDONED).bind(session.as_str()).bind(at),
                id_and_name,
            )
            .await?;
        Ok(found
            .first()
            .is_some_and(|(id, name)| !self.folder.join(format!("{id}_{name}.db")).exists()))
    }
}
