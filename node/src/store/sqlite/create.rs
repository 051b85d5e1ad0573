//! Sessions: created, found, listed, closed, removed.

use std::fs;

use planck_common::{
    NodeId, SessionId, SessionName, Timestamp,
    command::{RemovedCounts, SessionState},
    event::json,
};
use sqlx::query;

use super::{
    SqliteStore,
    db::{Db, Statement},
    decode::{Reader, role_name, session_state_name},
    files::InUse,
    inbox,
    index::Reserved,
};
use crate::store::{
    Created, NewAgent, NewSession, SessionRecord, StoreError, name, row::max_agents,
};

/// How many made-up names are tried.
const TRIES: u32 = 40;

/// A name reserved for a session that never came to be is free again after this.
const ABANDONED_MS: i64 = 60_000;

const RECORD: &str = "SELECT s.*, a.node_id FROM sessions s JOIN agents a ON a.id = s.lead";

impl SqliteStore {
    pub(super) async fn create_session(
        &self,
        session: NewSession,
        node: &NodeId,
    ) -> Result<Created, StoreError> {
        session.check()?;
        let name = self.reserve(&session).await?;
        self.index
            .add(
                &session.id,
                session.agents.iter().map(|agent| &agent.id),
                node,
            )
            .await?;
        if let Some(prompt) = &session.prompt {
            self.index
                .pending(
                    &session.id,
                    &[(&prompt.id, &prompt.agent)],
                    Timestamp::now(),
                )
                .await?;
        }
        let db = self.files.create(&session.id, &name).await?;
        let first = self.insert(&session, &name).await?;
        let is_new = db.all_or_nothing(first, rest(&session, node)).await?;
        drop(db);
        self.index.state_of_new(&session.id).await?;
        let record = self.record(session.id.as_str()).await?;
        let record = record
            .ok_or_else(|| StoreError::NotFound(format!("session {} was deleted", session.id)))?;
        Ok(if is_new {
            Created::New(record)
        } else {
            Created::Known(record)
        })
    }

    async fn reserve(&self, session: &NewSession) -> Result<SessionName, StoreError> {
        let now = Timestamp::now();
        for attempt in 0..TRIES {
            let name = session
                .name
                .clone()
                .unwrap_or_else(|| name::make_up(attempt));
            match self.index.reserve(&session.id, &name, session.at).await? {
                Reserved::Yes => return Ok(name),
                Reserved::Known(name) => return Ok(name),
                Reserved::Taken(by)
                    if self
                        .index
                        .abandoned(&by, now.millis() - ABANDONED_MS)
                        .await? =>
                {
                    self.index.forget(&by).await?;
                }
                Reserved::Taken(_) if session.name.is_some() => {
                    return Err(StoreError::Exists(format!(
                        "there is a session `{name}` already"
                    )));
                }
                Reserved::Taken(_) => {}
            }
        }
        Err(StoreError::Limit(
            "no free session name was found; give one".into(),
        ))
    }

    async fn insert(
        &self,
        session: &NewSession,
        name: &SessionName,
    ) -> Result<Statement<'static>, StoreError> {
        const INSERT: &str =
            "INSERT INTO sessions (only, id, store_id, name, state, spec, lead, metadata, max_agents, created_at, updated_at)
            VALUES (1, ?1, ?2, ?3, 'open', ?4, ?5, ?6, ?7, ?8, ?8) ON CONFLICT DO NOTHING";
        Ok(query(INSERT)
            .bind(session.id.to_string())
            .bind(self.index.store_id().await?)
            .bind(name.to_string())
            .bind(json(&session.spec))
            .bind(session.spec.lead.to_string())
            .bind(json(&session.metadata))
            .bind(max_agents(&session.spec.limits))
            .bind(session.at.millis()))
    }

    /// The open file of a session.
    pub(super) async fn file(&self, id: &SessionId) -> Result<InUse, StoreError> {
        if let Some(open) = self.files.open_one(id).await? {
            return Ok(open);
        }
        let unknown = || StoreError::NotFound(format!("there is no session {id}"));
        let (found, name) = self.index.find(id.as_str()).await?.ok_or_else(unknown)?;
        if found != *id {
            return Err(unknown());
        }
        match self.files.open(id, &name).await {
            Err(StoreError::NotFound(_)) => Err(unknown()),
            other => other,
        }
    }

    /// The same; `None` where the session is gone.
    pub(super) async fn file_if_any(&self, id: &SessionId) -> Result<Option<InUse>, StoreError> {
        match self.file(id).await {
            Ok(file) => Ok(Some(file)),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn record(
        &self,
        id_or_name: &str,
    ) -> Result<Option<SessionRecord>, StoreError> {
        let open = match SessionId::parse(id_or_name) {
            Ok(id) => self.files.open_one(&id).await?,
            Err(_name) => None,
        };
        if let Some(file) = open {
            return record_in(&file.db).await;
        }
        let Some((id, _)) = self.index.find(id_or_name).await? else {
            return Ok(None);
        };
        let Some(file) = self.file_if_any(&id).await? else {
            return Ok(None);
        };
        record_in(&file.db).await
    }

    pub(super) async fn change_state(
        &self,
        session: &SessionId,
        epoch: i64,
        state: SessionState,
    ) -> Result<(), StoreError> {
        const CHANGE: &str = "UPDATE sessions SET state = ?1
            WHERE EXISTS (SELECT 1 FROM agents WHERE id = sessions.lead AND epoch = ?2)";
        let file = self.file(session).await?;
        if file
            .db
            .execute(query(CHANGE).bind(session_state_name(state)).bind(epoch))
            .await?
            == 0
        {
            return Err(StoreError::StaleEpoch(file.lead.to_string()));
        }
        self.index.state(session, state, Timestamp::now()).await
    }

    /// The record and the agents go first, so that whoever still has the file open finds nobody in
    /// it.
    pub(super) async fn remove(&self, session: &SessionId) -> Result<RemovedCounts, StoreError> {
        const COUNT: &str = "SELECT s.state, (SELECT count(*) FROM agents) AS agents, (SELECT count(*) FROM log) AS events,
            (SELECT count(*) FROM inputs) AS inputs FROM sessions s";
        let file = self.file(session).await?;
        let row = file
            .db
            .row(query(COUNT))
            .await?
            .ok_or_else(|| StoreError::NotFound(format!("there is no session {session}")))?;
        let row = Reader {
            row: &row,
            path: file.db.path(),
        };
        let count = |column| Ok::<_, StoreError>(row.get::<i64>(column)?.unsigned_abs());
        let removed = RemovedCounts {
            agents: count("agents")?,
            events: count("events")?,
            inputs: count("inputs")?,
        };
        let emptied = file
            .db
            .all_or_nothing(
                query("DELETE FROM sessions WHERE state = 'closed'"),
                vec![query("DELETE FROM agents")],
            )
            .await?;
        if !emptied {
            return Err(StoreError::Busy(format!(
                "session {session} is open; close it first"
            )));
        }
        let path = file.db.path().to_owned();
        drop(file);
        self.files.forget(session);
        self.index.forget(session).await?;
        for end in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{end}", path.display()));
        }
        Ok(removed)
    }

    pub(super) async fn closed_and_old(
        &self,
        before: Timestamp,
    ) -> Result<Vec<SessionId>, StoreError> {
        let mut old = vec![];
        for id in self.index.closed_before(before).await? {
            match self.record(id.as_str()).await {
                Ok(record) => old.extend(
                    record
                        .filter(|r| r.state == SessionState::Closed && r.updated_at < before)
                        .map(|r| r.id),
                ),
                Err(error) => {
                    tracing::warn!(session = %id, %error, "a session is left out of the old ones")
                }
            }
        }
        Ok(old)
    }
}

pub(super) async fn record_in(db: &Db) -> Result<Option<SessionRecord>, StoreError> {
    let row = db.row(query(RECORD)).await.map_err(StoreError::from)?;
    row.map(|row| {
        Reader {
            row: &row,
            path: db.path(),
        }
        .session()
    })
    .transpose()
}

fn rest(session: &NewSession, node: &NodeId) -> Vec<Statement<'static>> {
    let names = session.agent_names();
    let agents = session.agents.iter().zip(names).enumerate();
    let agents =
        agents.map(|(n, (agent, name))| insert_agent(agent, &name, node, i64::from(n == 0)));
    agents
        .chain(session.prompt.iter().map(inbox::insert))
        .collect()
}

fn insert_agent(
    agent: &NewAgent,
    name: &str,
    node: &NodeId,
    incarnation: i64,
) -> Statement<'static> {
    const INSERT: &str = "INSERT INTO agents (id, name, type, role, spec, node_id, incarnation)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    query(INSERT)
        .bind(agent.id.to_string())
        .bind(name.to_owned())
        .bind(agent.spec.r#type.clone())
        .bind(role_name(agent.spec.role))
        .bind(json(&agent.spec))
        .bind(node.to_string())
        .bind(incarnation)
}
