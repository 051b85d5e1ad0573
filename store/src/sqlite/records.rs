//! The records of sessions and agents, in SQLite.

mod creation;
mod list;
mod members;

use std::fs;

use async_trait::async_trait;
use planck_common::{
    AgentId, NodeId, SessionId, Timestamp,
    command::{ListSessions, RemovedCounts, SessionState, Sessions},
    event::{WorkerExit, json},
    spec::AgentSpec,
};
use serde_json::{Map, Value};
use sqlx::query;

use super::{
    SqliteStore,
    db::{Db, SqliteStatement},
    files::InUse,
};
use crate::{
    AgentCreation, AgentRecord, Created, LeadIncarnation, NAMESAKES, NewMember, NewSession,
    SessionRecord, SessionRecords, StoreError, refusal, stored,
};

const RECORD: &str =
    "SELECT s.*, a.node_id AS owner FROM sessions s JOIN agents a ON a.id = s.lead";

const EXITS: &str = "SELECT a.id, a.name, coalesce((SELECT l.body->>'reason' FROM log l
      WHERE l.agent_id = a.id AND l.kind = 'agent_stopped' ORDER BY l.seq DESC LIMIT 1), 'stopped') AS reason
    FROM agents a JOIN sessions s ON a.id <> s.lead WHERE a.state = 'stopped' AND NOT EXISTS (
      SELECT 1 FROM log l WHERE l.agent_id = s.lead AND l.body->>'id' = a.id
        AND (l.kind = 'worker_exit' OR l.kind = 'worker_spawned' AND l.hidden_by IS NOT NULL))
    ORDER BY a.n";

#[async_trait]
impl SessionRecords for SqliteStore {
    async fn create(&self, session: NewSession, node: &NodeId) -> Result<Created, StoreError> {
        creation::create(self, session, node).await
    }

    async fn session(&self, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError> {
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

    async fn recorded(&self, id: &SessionId) -> Result<Option<SessionRecord>, StoreError> {
        if self.index.find_indexed(id.as_str()).await?.is_none() {
            return Ok(None);
        }
        self.session(id.as_str()).await
    }

    async fn sessions(&self, filter: ListSessions) -> Result<Sessions, StoreError> {
        list::sessions(self, filter).await
    }

    async fn set_state(
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
            .execute(
                query(CHANGE)
                    .bind(stored::session_state_name(state))
                    .bind(epoch),
            )
            .await?
            == 0
        {
            return Err(refusal::stale_lead(session));
        }
        self.index.state(session, state, Timestamp::now()).await
    }

    async fn set_metadata(
        &self,
        session: &SessionId,
        metadata: &Map<String, Value>,
    ) -> Result<(), StoreError> {
        let file = self.file(session).await?;
        let set = query("UPDATE sessions SET metadata = ?1").bind(json(&metadata));
        file.db.execute(set).await?;
        Ok(())
    }

    /// Removes a session. The record and the agents are deleted before the file is removed, so that
    /// a process that still has the file open finds no agent in it.
    async fn delete(&self, session: &SessionId) -> Result<RemovedCounts, StoreError> {
        const COUNT: &str = "SELECT s.state, (SELECT count(*) FROM agents) AS agents, (SELECT count(*) FROM log) AS events,
            (SELECT count(*) FROM inputs) AS inputs FROM sessions s";
        let file = self.file(session).await?;
        let row = file
            .db
            .row(query(COUNT))
            .await?
            .ok_or_else(|| refusal::no_session(session))?;
        let row = file.reader(&row);
        let removed = RemovedCounts {
            agents: row.amount("agents")?,
            events: row.amount("events")?,
            inputs: row.amount("inputs")?,
        };
        let emptied = file
            .db
            .all_or_nothing(
                query("DELETE FROM sessions WHERE state = 'closed'"),
                vec![query("DELETE FROM agents")],
            )
            .await?;
        if !emptied {
            return Err(refusal::still_open(session));
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

    async fn expired(&self, before: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        let mut old = vec![];
        for id in self.index.closed_before(before).await? {
            match self.session(id.as_str()).await {
                Ok(record) => old.extend(
                    record
                        .filter(|r| r.state == SessionState::Closed && r.updated_at < before)
                        .map(|r| r.id),
                ),
                Err(error) => {
                    tracing::warn!(session = %id, %error, "left a session out of the expired ones: its file cannot be read")
                }
            }
        }
        Ok(old)
    }

    async fn find_agent(&self, agent: &AgentId) -> Result<Option<AgentRecord>, StoreError> {
        let Some(session) = self.index.session_of(agent).await? else {
            return Ok(None);
        };
        let Some(file) = self.file_if_any(&session).await? else {
            return Ok(None);
        };
        file.agent(agent).await
    }

    async fn agents(&self, session: &SessionId) -> Result<Vec<AgentRecord>, StoreError> {
        let all = query("SELECT * FROM agents ORDER BY n");
        agents(&self.file(session).await?, all).await
    }

    async fn agents_named(
        &self,
        session: &SessionId,
        id_or_name: &str,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        let named = query("SELECT * FROM agents WHERE id = ?1 OR name = ?1").bind(id_or_name);
        agents(&self.file(session).await?, named).await
    }

    async fn agents_of_type(
        &self,
        session: &SessionId,
        r#type: &str,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        const TYPED: &str =
            "SELECT * FROM agents WHERE type = ?1 ORDER BY state = 'stopped', n LIMIT ?2";
        let of_type = query(TYPED).bind(r#type).bind(NAMESAKES);
        agents(&self.file(session).await?, of_type).await
    }

    async fn create_agents(
        &self,
        session: &SessionId,
        members: &[NewMember],
        lead: &LeadIncarnation,
        node: &NodeId,
    ) -> Result<Vec<AgentCreation>, StoreError> {
        members::create_agents(self, session, members, lead, node).await
    }

    async fn replace_spec(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        spec: &AgentSpec,
    ) -> Result<(), StoreError> {
        const RESPEC: &str =
            "UPDATE agents SET type = ?3, role = ?4, spec = ?5 WHERE id = ?1 AND epoch = ?2";
        let file = self.file(session).await?;
        let statement = query(RESPEC).bind(agent.as_str()).bind(epoch);
        let statement = statement
            .bind(spec.r#type.as_str())
            .bind(stored::role_name(spec.role))
            .bind(json(spec));
        if file.db.execute(statement).await? > 0 {
            return Ok(());
        }
        match file.agent(agent).await? {
            Some(_) => Err(refusal::stale_lease(agent)),
            None => Err(refusal::no_agent(agent, session)),
        }
    }

    async fn unreported_exits(&self, session: &SessionId) -> Result<Vec<WorkerExit>, StoreError> {
        let file = self.file(session).await?;
        let rows = file.db.rows(query(EXITS)).await?;
        rows.iter().map(|row| file.reader(row).exit()).collect()
    }
}

pub(super) async fn record_in(db: &Db) -> Result<Option<SessionRecord>, StoreError> {
    let row = db.row(query(RECORD)).await.map_err(StoreError::from)?;
    row.map(|row| db.reader(&row).session()).transpose()
}

async fn agents<'q>(
    file: &InUse,
    statement: SqliteStatement<'q>,
) -> Result<Vec<AgentRecord>, StoreError> {
    let rows = file.db.rows(statement).await?;
    let agent = |row| file.reader(row).agent(file.id.clone(), file.team.clone());
    rows.iter().map(agent).collect()
}
