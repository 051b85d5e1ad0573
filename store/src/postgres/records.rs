//! The records of sessions and agents, in Postgres.

mod creation;
mod list;
mod members;

use async_trait::async_trait;
use planck_common::{
    AgentId, NodeId, SessionId, Timestamp,
    command::{ListSessions, RemovedCounts, SessionState, Sessions},
    event::{WorkerExit, json},
    spec::AgentSpec,
};

use serde_json::{Map, Value};

use super::{
    PostgresStore,
    database::{Database, PgStatement, reader, unknown_verdict},
};
use crate::{
    AgentCreation, AgentRecord, Created, LeadIncarnation, NAMESAKES, NewMember, NewSession,
    SessionRecord, SessionRecords, StoreError, refusal, stored,
};

/// The columns that [`RowReader::session`](crate::row::RowReader::session) reads, from `sessions s`
/// and the orchestrator's row `l`.
const SESSION: &str = "s.id, s.name, s.state, s.spec, s.metadata, s.next_seq, s.agents, s.input_tokens, s.output_tokens, \
s.cache_read_tokens, s.cache_write_tokens, s.cost_usd, s.created_at, s.updated_at, l.node_id AS owner";

const SET_STATE: &str = "
WITH lead AS MATERIALIZED (SELECT a.session_id FROM agents a JOIN sessions s ON s.id = a.session_id AND s.lead = a.id
  WHERE a.session_id = $1 AND a.epoch = $2 FOR SHARE OF a)
UPDATE sessions SET state = $3 FROM lead WHERE id = lead.session_id RETURNING id";

/// Builds a query for agents from its `WHERE` clause. The query lists the columns, because a
/// prepared statement with `*` fails once a newer node adds a column.
macro_rules! agents {
    ($which:literal) => {
        concat!(
            "SELECT a.session_id, a.id, a.name, a.spec, a.state, a.input_tokens, a.output_tokens, a.cache_read_tokens, ",
            "a.cache_write_tokens, a.cost_usd, a.node_id, a.epoch, a.last_seq, a.incarnation, s.team_id ",
            "FROM agents a JOIN sessions s ON s.id = a.session_id ",
            $which
        )
    };
}

const AGENT: &str = agents!("WHERE a.id = $1");
const AGENTS: &str = agents!("WHERE a.session_id = $1 ORDER BY a.born");

const NAMED: &str = agents!("WHERE a.session_id = $1 AND (a.id = $2 OR a.name = $2)");
const TYPED: &str = agents!(
    "WHERE a.session_id = $1 AND a.type = $2 ORDER BY a.state = 'stopped', a.born LIMIT $3"
);

const RESPEC: &str = "UPDATE agents SET spec = $4, type = $5, role = $6 WHERE session_id = $1 AND id = $2 AND epoch = $3 RETURNING 1";

const EXITS: &str = "
SELECT a.id, a.name, coalesce((SELECT l.body::json ->> 'reason' FROM log l
  WHERE l.session_id = $1 AND l.agent_id = a.id AND l.kind = 'agent_stopped' ORDER BY l.seq DESC LIMIT 1), 'stopped') AS reason
FROM agents a JOIN sessions s ON s.id = a.session_id AND s.lead <> a.id
WHERE a.session_id = $1 AND a.state = 'stopped' AND NOT EXISTS (SELECT 1 FROM log l
  WHERE l.session_id = $1 AND l.agent_id = s.lead AND l.body::json ->> 'id' = a.id
    AND (l.kind = 'worker_exit' OR l.kind = 'worker_spawned' AND l.hidden_by IS NOT NULL))
ORDER BY a.born";

#[async_trait]
impl SessionRecords for PostgresStore {
    async fn create(&self, session: NewSession, node: &NodeId) -> Result<Created, StoreError> {
        creation::create(&self.database, session, node).await
    }

    async fn session(&self, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError> {
        find(&self.database, id_or_name).await
    }

    async fn sessions(&self, filter: ListSessions) -> Result<Sessions, StoreError> {
        list::sessions(&self.database, filter).await
    }

    async fn set_state(
        &self,
        session: &SessionId,
        epoch: i64,
        state: SessionState,
    ) -> Result<(), StoreError> {
        let statement = sqlx::query(SET_STATE)
            .bind(session.as_str())
            .bind(epoch)
            .bind(stored::session_state_name(state));
        if self.database.optional(statement).await?.is_some() {
            return Ok(());
        }
        match find(&self.database, session).await? {
            Some(_) => Err(refusal::stale_lead(session)),
            None => Err(refusal::no_session(session)),
        }
    }

    async fn set_metadata(
        &self,
        session: &SessionId,
        metadata: &Map<String, Value>,
    ) -> Result<(), StoreError> {
        let set = sqlx::query("UPDATE sessions SET metadata = $2 WHERE id = $1 RETURNING id")
            .bind(session.as_str())
            .bind(json(&metadata));
        let set = self.database.optional(set).await?;
        set.map(|_| ()).ok_or_else(|| refusal::no_session(session))
    }

    async fn delete(&self, session: &SessionId) -> Result<RemovedCounts, StoreError> {
        let row = self
            .database
            .one(sqlx::query("SELECT * FROM planck_delete($1)").bind(session.as_str()))
            .await?;
        let row = reader(&row);
        match row.get::<&str>("verdict")? {
            "deleted" => Ok(RemovedCounts {
                agents: row.amount("agents_gone")?,
                events: row.amount("rows_gone")?,
                inputs: row.amount("inputs_gone")?,
            }),
            "not_found" => Err(refusal::no_session(session)),
            "open" => Err(refusal::still_open(session)),
            other => Err(unknown_verdict(other)),
        }
    }

    async fn expired(&self, before: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        let closed = "SELECT id FROM sessions WHERE state = 'closed' AND updated_at < $1 ORDER BY updated_at";
        let found = self
            .database
            .all(sqlx::query(closed).bind(before.millis()))
            .await?;
        found.iter().map(|row| reader(row).parse("id")).collect()
    }

    async fn find_agent(&self, agent: &AgentId) -> Result<Option<AgentRecord>, StoreError> {
        find_agent(&self.database, agent).await
    }

    async fn agents(&self, session: &SessionId) -> Result<Vec<AgentRecord>, StoreError> {
        let statement = sqlx::query(AGENTS).bind(session.as_str());
        agents(&self.database, statement).await
    }

    async fn agents_named(
        &self,
        session: &SessionId,
        id_or_name: &str,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        let statement = sqlx::query(NAMED).bind(session.as_str()).bind(id_or_name);
        agents(&self.database, statement).await
    }

    async fn agents_of_type(
        &self,
        session: &SessionId,
        r#type: &str,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        let statement = sqlx::query(TYPED).bind(session.as_str()).bind(r#type);
        agents(&self.database, statement.bind(i64::from(NAMESAKES))).await
    }

    async fn create_agents(
        &self,
        session: &SessionId,
        members: &[NewMember],
        lead: &LeadIncarnation,
        node: &NodeId,
    ) -> Result<Vec<AgentCreation>, StoreError> {
        members::create_agents(&self.database, session, members, lead, node).await
    }

    async fn replace_spec(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        spec: &AgentSpec,
    ) -> Result<(), StoreError> {
        let statement = sqlx::query(RESPEC)
            .bind(session.as_str())
            .bind(agent.as_str())
            .bind(epoch)
            .bind(json(spec))
            .bind(spec.r#type.as_str())
            .bind(stored::role_name(spec.role));
        if self.database.optional(statement).await?.is_some() {
            return Ok(());
        }
        match find_agent(&self.database, agent).await? {
            Some(_) => Err(refusal::stale_lease(agent)),
            None => Err(refusal::no_agent(agent, session)),
        }
    }

    async fn unreported_exits(&self, session: &SessionId) -> Result<Vec<WorkerExit>, StoreError> {
        let found = self
            .database
            .all(sqlx::query(EXITS).bind(session.as_str()))
            .await?;
        found.iter().map(|row| reader(row).exit()).collect()
    }
}

async fn find(database: &Database, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError> {
    let text = format!(
        "SELECT {SESSION} FROM sessions s LEFT JOIN agents l ON l.session_id = s.id AND l.id = s.lead
         WHERE s.id = $1 OR s.name = $1 ORDER BY s.id = $1 DESC LIMIT 1"
    );
    let row = database
        .optional(sqlx::query(sqlx::AssertSqlSafe(text)).bind(id_or_name))
        .await?;
    row.map(|row| reader(&row).session()).transpose()
}

async fn find_agent(
    database: &Database,
    agent: &AgentId,
) -> Result<Option<AgentRecord>, StoreError> {
    let found = agents(database, sqlx::query(AGENT).bind(agent.as_str())).await?;
    Ok(found.into_iter().next())
}

async fn agents(
    database: &Database,
    statement: PgStatement<'_>,
) -> Result<Vec<AgentRecord>, StoreError> {
    let agent = |row| {
        let row = reader(row);
        row.agent(row.parse("session_id")?, row.parse("team_id")?)
    };
    database.all(statement).await?.iter().map(agent).collect()
}
