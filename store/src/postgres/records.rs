//! The records of sessions and agents, in Postgres.

use async_trait::async_trait;
use serde_json::{Map, Value};
use sqlx::postgres::PgRow;

use planck_common::{
    AgentId, NodeId, SessionId, SessionName, Timestamp,
    command::{ListSessions, RemovedCounts, SessionActivity, SessionRow, SessionState, Sessions},
    event::{WorkerExit, json},
    spec::AgentSpec,
};

use super::{
    PostgresStore,
    database::{Database, PgStatement, reader, unknown_verdict},
};
use crate::{
    AgentCreation, AgentRecord, Created, DEFAULT_MAX_AGENTS, HeldLease, LeadIncarnation, NAMESAKES,
    NewAgent, NewMember, NewSession, SessionRecord, SessionRecords, StoreError, name_taken,
    no_agent, no_free_name, no_session,
    page::{self, SessionCursor},
    postgres::log::append::column,
    preview::{self, PreviewBodies, SessionPreview},
    records::{NAME_TRIES, make_up_name},
    row::{role_name, session_state_name},
    stale_lead, stale_lease, still_open,
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
        create(&self.database, session, node).await
    }

    async fn session(&self, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError> {
        find(&self.database, id_or_name).await
    }

    async fn sessions(&self, filter: ListSessions) -> Result<Sessions, StoreError> {
        sessions(&self.database, filter).await
    }

    async fn session_names(&self, limit: u32) -> Result<Vec<String>, StoreError> {
        const NAMES: &str = "SELECT name FROM sessions ORDER BY created_at DESC, id DESC LIMIT $1";
        let found = self.database.all(sqlx::query(NAMES).bind(i64::from(limit)));
        let found = found.await?;
        found.iter().map(|row| reader(row).get("name")).collect()
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
            .bind(session_state_name(state));
        if self.database.optional(statement).await?.is_some() {
            return Ok(());
        }
        match find(&self.database, session).await? {
            Some(_) => Err(stale_lead(session)),
            None => Err(no_session(session)),
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
        set.map(|_| ()).ok_or_else(|| no_session(session))
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
            "not_found" => Err(no_session(session)),
            "open" => Err(still_open(session)),
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
        create_agents(&self.database, session, members, lead, node).await
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
            .bind(role_name(spec.role));
        if self.database.optional(statement).await?.is_some() {
            return Ok(());
        }
        match find_agent(&self.database, agent).await? {
            Some(_) => Err(stale_lease(agent)),
            None => Err(no_agent(agent, session)),
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

// Records a new session with one statement.

const CREATE: &str = "
WITH s AS (INSERT INTO sessions (id, name, team_id, lead, spec, metadata, agents, created_at, updated_at)
  SELECT $1, $2, $3, $4, $5, $6, cardinality($9::text[]), $7, $7 ON CONFLICT DO NOTHING RETURNING id),
a AS (INSERT INTO agents (session_id, id, name, type, role, spec, node_id, incarnation)
  SELECT s.id, a.id, a.name, a.type, a.role, a.spec, $8, CASE WHEN a.id = $4 THEN 1 ELSE 0 END
  FROM s, unnest($9::text[], $10::text[], $11::text[], $12::text[], $13::text[]) WITH ORDINALITY AS a(id, name, type, role, spec, n) ORDER BY a.n),
i AS (INSERT INTO inputs (session_id, id, agent_id, kind, mode, sender_name, content, fresh, output, at, head)
  SELECT s.id, $14, $15, $16, $17, $18, $19, $20, $21, $22, 0 FROM s WHERE $14::text IS NOT NULL)
SELECT id FROM s";

async fn create(
    database: &Database,
    session: NewSession,
    node: &NodeId,
) -> Result<Created, StoreError> {
    session.check()?;
    for attempt in 0..NAME_TRIES {
        let name = session
            .name
            .clone()
            .unwrap_or_else(|| make_up_name(attempt));
        let inserted = database
            .optional(insert(&session, &name, node))
            .await?
            .is_some();
        if inserted {
            return Ok(session.created(name, node));
        }
        match find(database, &session.id).await? {
            Some(record) if record.id == session.id => return Ok(Created::Known(record)),
            Some(_) | None if session.name.is_some() => {
                return Err(name_taken(&name));
            }
            Some(_) | None => {}
        }
    }
    Err(no_free_name())
}

fn insert<'q>(session: &NewSession, name: &SessionName, node: &NodeId) -> PgStatement<'q> {
    let statement = sqlx::query(CREATE)
        .bind(session.id.to_string())
        .bind(name.to_string())
        .bind(session.spec.team_id.to_string())
        .bind(session.spec.lead.to_string())
        .bind(json(&session.spec))
        .bind(json(&session.metadata))
        .bind(session.at.millis())
        .bind(node.to_string());
    bind_prompt(bind_agents(statement, session), session)
}

fn bind_agents<'q>(statement: PgStatement<'q>, session: &NewSession) -> PgStatement<'q> {
    let column =
        |value: fn(&NewAgent) -> String| session.agents.iter().map(value).collect::<Vec<_>>();
    statement
        .bind(column(|agent| agent.id.to_string()))
        .bind(session.agent_names())
        .bind(column(|agent| agent.spec.r#type.clone()))
        .bind(column(|agent| role_name(agent.spec.role).to_owned()))
        .bind(column(|agent| json(&agent.spec)))
}

fn bind_prompt<'q>(statement: PgStatement<'q>, session: &NewSession) -> PgStatement<'q> {
    let prompt = session.prompt.as_ref();
    statement
        .bind(prompt.map(|prompt| prompt.id.to_string()))
        .bind(prompt.map(|prompt| prompt.agent.to_string()))
        .bind(prompt.map(|prompt| prompt.kind.name()))
        .bind(prompt.map(|prompt| prompt.mode.name()))
        .bind(prompt.and_then(|prompt| prompt.sender_name().map(str::to_owned)))
        .bind(prompt.map(|prompt| prompt.content.clone()))
        .bind(prompt.is_some_and(|prompt| prompt.fresh))
        .bind(prompt.and_then(|prompt| prompt.output_json()))
        .bind(prompt.map(|prompt| prompt.at.millis()))
}

// Records new members of a running session, in one statement if the server accepts the data of
// all.

const CREATE_MEMBERS: &str = "
WITH b AS MATERIALIZED (SELECT * FROM planck_births($1, $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
  (SELECT lead FROM sessions WHERE id = $1 AND lead = $2), $3, $4, $5)),
i AS (INSERT INTO inputs (session_id, id, agent_id, kind, mode, sender, sender_name, content, at, head)
  SELECT $1, t.task, t.agent, 'task', 'queue', t.sender, t.sender_name, t.content, t.at, (SELECT next_seq - 1 FROM sessions WHERE id = $1)
  FROM b JOIN unnest($6::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[])
    WITH ORDINALITY AS t(agent, task, sender, sender_name, content, at, n) USING (n)
  WHERE b.verdict = 'born' AND t.task IS NOT NULL ORDER BY n ON CONFLICT DO NOTHING)
SELECT verdict, detail, most FROM b ORDER BY n";

/// Creates the valid members, and refuses those that no store can record.
async fn create_agents(
    database: &Database,
    session: &SessionId,
    members: &[NewMember],
    lead: &LeadIncarnation,
    node: &NodeId,
) -> Result<Vec<AgentCreation>, StoreError> {
    let refused: Vec<Option<AgentCreation>> = members.iter().map(NewMember::refusal).collect();
    if refused.iter().all(Option::is_none) {
        return create_all(database, session, members, lead, node).await;
    }
    let good = members.iter().zip(&refused);
    let good: Vec<NewMember> = good
        .filter(|(_, refused)| refused.is_none())
        .map(|(member, _)| member.clone())
        .collect();
    let created = create_all(database, session, &good, lead, node).await?;
    let mut created = created.into_iter();
    Ok(refused
        .into_iter()
        .filter_map(|refused| refused.or_else(|| created.next()))
        .collect())
}

async fn create_all(
    database: &Database,
    session: &SessionId,
    members: &[NewMember],
    lead: &LeadIncarnation,
    node: &NodeId,
) -> Result<Vec<AgentCreation>, StoreError> {
    match state(database, session, members, lead, node).await? {
        Ok(outcomes) => Ok(outcomes),
        Err(refusal) if members.len() == 1 => Ok(vec![AgentCreation::Refused(refusal)]),
        // The members are created one by one, so that only those with bad data are refused.
        Err(_) => {
            let mut outcomes = Vec::with_capacity(members.len());
            for one in members {
                let outcome =
                    state(database, session, std::slice::from_ref(one), lead, node).await?;
                outcomes.extend(
                    outcome.unwrap_or_else(|refusal| vec![AgentCreation::Refused(refusal)]),
                );
            }
            Ok(outcomes)
        }
    }
}

/// Creates members with one statement. The inner `Err` is the server's message if the server
/// refused the data.
async fn state(
    database: &Database,
    session: &SessionId,
    members: &[NewMember],
    lead: &LeadIncarnation,
    node: &NodeId,
) -> Result<Result<Vec<AgentCreation>, String>, StoreError> {
    let statement = sqlx::query(CREATE_MEMBERS)
        .bind(session.as_str())
        .bind(lead.lead.as_str())
        .bind(lead.incarnation)
        .bind(node.as_str())
        .bind(i32::try_from(DEFAULT_MAX_AGENTS).unwrap_or(i32::MAX));
    let statement = bind_tasks(bind_members(statement, members), members);
    let rows = match database.all_or_refused(statement).await? {
        Ok(rows) => rows,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut outcomes = Vec::with_capacity(members.len());
    for (row, NewMember { agent, .. }) in rows.iter().zip(members) {
        let row = reader(row);
        outcomes.push(match row.get::<&str>("verdict")? {
            "born" => AgentCreation::Created {
                lease: HeldLease::FIRST,
                name: row.text("detail")?,
            },
            "known" => match find_agent(database, &agent.id).await? {
                Some(record) if record.session == *session => {
                    AgentCreation::Known(Box::new(record))
                }
                Some(_) | None => AgentCreation::Refused(no_agent(&agent.id, session).to_string()),
            },
            "team_dead" => AgentCreation::TeamDead,
            "full" => AgentCreation::Full {
                max: row.small("most")?,
            },
            other => {
                return Err(unknown_verdict(other));
            }
        });
    }
    Ok(Ok(outcomes))
}

fn bind_members<'q>(statement: PgStatement<'q>, members: &[NewMember]) -> PgStatement<'q> {
    statement
        .bind(column(members, |member| member.agent.id.as_str()))
        .bind(column(members, |member| member.agent.spec.name.as_str()))
        .bind(column(members, |member| member.agent.spec.r#type.as_str()))
        .bind(column(members, |member| role_name(member.agent.spec.role)))
        .bind(column(members, |member| json(&member.agent.spec)))
}

fn bind_tasks<'q>(statement: PgStatement<'q>, members: &[NewMember]) -> PgStatement<'q> {
    let sender = |member: &NewMember| member.task.as_ref().and_then(|task| task.sender.clone());
    statement
        .bind(column(members, |member| {
            member.task.as_ref().map(|task| task.id.as_str())
        }))
        .bind(column(members, |member| {
            sender(member).map(|sender| sender.id.to_string())
        }))
        .bind(column(members, |member| {
            sender(member).map(|sender| sender.name)
        }))
        .bind(column(members, |member| {
            member.task.as_ref().map(|task| task.content.as_str())
        }))
        .bind(column(members, |member| {
            member.task.as_ref().map(|task| task.at.millis())
        }))
}

// Lists sessions in pages, each with its current activity.

/// The expression for the activity of a session `s`. A session is not `failed` once a new turn
/// began, because the latest of the orchestrator's rows that begin or end a turn is then a
/// `turn_start`. The body is searched as text, because Postgres' JSON functions fail on a body that
/// contains `\u0000`. The pattern cannot match inside a string of the body, where every quote has a
/// backslash before it.
const ACTIVITY: &str = r#"CASE
  WHEN EXISTS (SELECT 1 FROM agents a WHERE a.session_id = s.id AND a.state IN ('streaming', 'executing_tools', 'compacting')) THEN 'working'
  WHEN EXISTS (SELECT 1 FROM inputs i JOIN agents a ON a.session_id = i.session_id AND a.id = i.agent_id
    WHERE i.session_id = s.id AND i.outcome IS NULL AND i.turn IS NULL AND a.state <> 'stopped')
    OR EXISTS (SELECT 1 FROM agents a WHERE a.session_id = s.id AND a.state = 'waiting') THEN 'waiting'
  WHEN (SELECT g.kind = 'error' OR g.kind = 'turn_end' AND g.body ~ '"outcome"\s*:\s*"(limit|truncated)"' FROM log g
    WHERE g.session_id = s.id AND g.agent_id = s.lead AND g.kind IN ('turn_start', 'turn_end', 'error') AND g.hidden_by IS NULL
    ORDER BY g.seq DESC LIMIT 1) THEN 'failed'
  ELSE 'idle' END AS activity"#;

/// The bodies of the orchestrator's rows that describe a session `s`. The columns are those of
/// [`PreviewBodies`](crate::preview::PreviewBodies), and the parameters 5 to 7 its bounds.
const BODIES: &str = r#"(SELECT left(g.body, $6) FROM log g WHERE g.session_id = s.id AND g.agent_id = s.lead
    AND g.kind = 'message' AND g.hidden_by IS NULL AND starts_with(g.body, '{"role":"user"')
    AND g.seq <= coalesce((SELECT e.seq FROM log e WHERE e.session_id = s.id AND e.agent_id = s.lead ORDER BY e.seq LIMIT 1 OFFSET $5), s.next_seq)
    ORDER BY g.seq LIMIT 1) AS prompt,
  (SELECT left(g.body, $7) FROM log g WHERE g.session_id = s.id AND g.agent_id = s.lead
    AND g.kind = 'message' AND g.hidden_by IS NULL AND starts_with(g.body, '{"role":"assistant"') AND strpos(g.body, '"type":"text"') > 0
    AND g.seq >= coalesce((SELECT e.seq FROM log e WHERE e.session_id = s.id AND e.agent_id = s.lead ORDER BY e.seq DESC LIMIT 1 OFFSET $5), 0)
    ORDER BY g.seq DESC LIMIT 1) AS answer,
  (SELECT CASE WHEN g.kind = 'error' OR g.kind = 'turn_end' AND g.body ~ '"outcome"\s*:\s*"(limit|truncated)"' THEN left(g.body, $7) END FROM log g
    WHERE g.session_id = s.id AND g.agent_id = s.lead AND g.kind IN ('turn_start', 'turn_end', 'error') AND g.hidden_by IS NULL
    ORDER BY g.seq DESC LIMIT 1) AS ended"#;

async fn sessions(database: &Database, filter: ListSessions) -> Result<Sessions, StoreError> {
    let limit = page::sessions(filter.limit);
    let after = filter
        .after
        .as_deref()
        .map(SessionCursor::parse)
        .transpose()?;
    let text = format!(
        "SELECT {SESSION}, {ACTIVITY}, {BODIES} FROM sessions s LEFT JOIN agents l ON l.session_id = s.id AND l.id = s.lead
         WHERE ($1::text IS NULL OR s.state = $1) AND ($2::bigint IS NULL OR (s.created_at, s.id) < ($2, $3))
         ORDER BY s.created_at DESC, s.id DESC LIMIT $4"
    );
    let statement = sqlx::query(sqlx::AssertSqlSafe(text))
        .bind(filter.state.map(session_state_name))
        .bind(after.as_ref().map(|after| after.created_at.millis()))
        .bind(after.as_ref().map(|after| after.id.as_str()))
        .bind(i64::from(limit) + 1)
        .bind(i64::from(preview::ROWS))
        .bind(characters(preview::PROMPT))
        .bind(characters(preview::BODY));
    let mut found = database.all(statement).await?;
    let size = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = found.len() > size;
    found.truncate(size);
    let next = found.last().filter(|_| more).map(cursor).transpose()?;
    let sessions = found.iter().map(session_row);
    Ok(page::fit(sessions.collect::<Result<_, _>>()?, next))
}

fn session_row(row: &PgRow) -> Result<SessionRow, StoreError> {
    let row = reader(row);
    let activity = row.named("activity", SessionActivity::find)?;
    let bodies = PreviewBodies {
        prompt: row.get("prompt")?,
        answer: row.get("answer")?,
        end: row.get("ended")?,
    };
    Ok(row.session()?.row(SessionPreview::of(activity, bodies)))
}

/// Returns a number of characters as `left` takes it.
fn characters(most: u32) -> i32 {
    i32::try_from(most).unwrap_or(i32::MAX)
}

fn cursor(row: &PgRow) -> Result<String, StoreError> {
    let row = reader(row);
    let cursor = SessionCursor {
        created_at: row.timestamp("created_at")?,
        id: row.parse("id")?,
    };
    Ok(cursor.to_string())
}
