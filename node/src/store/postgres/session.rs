//! Records of sessions.

use planck_common::{
    NodeId, SessionId, SessionName, Timestamp,
    command::{ListSessions, RemovedCounts, SessionState, Sessions},
    event::json,
};
use sqlx::postgres::PgRow;

use super::{
    Created, NewAgent, NewSession, SessionRecord, StoreError,
    database::{Database, Statement},
    rows::{self, Columns, SESSION},
};
use crate::store::name;

const PAGE: u32 = 100;
const MAX_PAGE: u32 = 1_000;
/// Tries at a name that nobody has.
const NAMES: u32 = 12;

const CREATE: &str = "
WITH s AS (INSERT INTO sessions (id, name, team_id, lead, spec, metadata, agents, created_at, updated_at)
  SELECT $1, $2, $3, $4, $5, $6, cardinality($9::text[]), $7, $7 ON CONFLICT DO NOTHING RETURNING id),
a AS (INSERT INTO agents (session_id, id, name, type, role, spec, node_id, incarnation)
  SELECT s.id, a.id, a.name, a.type, a.role, a.spec, $8, CASE WHEN a.id = $4 THEN 1 ELSE 0 END
  FROM s, unnest($9::text[], $10::text[], $11::text[], $12::text[], $13::text[]) WITH ORDINALITY AS a(id, name, type, role, spec, n) ORDER BY a.n),
i AS (INSERT INTO inputs (session_id, id, agent_id, kind, mode, content, fresh, at, head)
  SELECT s.id, $14, $15, $16, $17, $18, $19, $20, 0 FROM s WHERE $14::text IS NOT NULL)
SELECT id FROM s";

const SET_STATE: &str = "
WITH lead AS MATERIALIZED (SELECT a.session_id FROM agents a JOIN sessions s ON s.id = a.session_id AND s.lead = a.id
  WHERE a.session_id = $1 AND a.epoch = $2 FOR SHARE OF a)
UPDATE sessions SET state = $3 FROM lead WHERE id = lead.session_id RETURNING id";

pub async fn store_id(database: &Database) -> Result<String, StoreError> {
    let row = database.one(sqlx::query("SELECT id FROM store")).await?;
    Columns(&row).get("id")
}

pub async fn create(
    database: &Database,
    session: NewSession,
    node: &NodeId,
) -> Result<Created, StoreError> {
    session.check()?;
    for tries in 0..NAMES {
        let name = session.name.clone().unwrap_or_else(|| name::make_up(tries));
        let inserted = database
            .optional(insert(&session, &name, node))
            .await?
            .is_some();
        match find(database, &session.id).await? {
            Some(record) if inserted => return Ok(Created::New(record)),
            Some(record) if record.id == session.id => return Ok(Created::Known(record)),
            Some(_) | None if session.name.is_some() => {
                return Err(StoreError::Exists(format!("a session is named {name}")));
            }
            Some(_) | None => {}
        }
    }
    Err(StoreError::Exists(
        "found no free name for the session".into(),
    ))
}

fn insert<'q>(session: &NewSession, name: &SessionName, node: &NodeId) -> Statement<'q> {
    let statement = sqlx::query(CREATE)
        .bind(session.id.to_string())
        .bind(name.to_string())
        .bind(session.spec.team_id.to_string())
        .bind(session.spec.lead.to_string())
        .bind(json(&session.spec))
        .bind(json(&session.metadata))
        .bind(session.at.millis())
        .bind(node.to_string());
    bind_prompt(bind_agents(statement, &session.agents), session)
}

fn bind_agents<'q>(statement: Statement<'q>, agents: &[NewAgent]) -> Statement<'q> {
    let column = |value: fn(&NewAgent) -> String| agents.iter().map(value).collect::<Vec<_>>();
    statement
        .bind(column(|agent| agent.id.to_string()))
        .bind(distinct_names(agents))
        .bind(column(|agent| agent.spec.r#type.clone()))
        .bind(column(|agent| rows::role_name(agent.spec.role).to_owned()))
        .bind(column(|agent| json(&agent.spec)))
}

fn bind_prompt<'q>(statement: Statement<'q>, session: &NewSession) -> Statement<'q> {
    let prompt = session.prompt.as_ref();
    statement
        .bind(prompt.map(|prompt| prompt.id.to_string()))
        .bind(prompt.map(|prompt| prompt.agent.to_string()))
        .bind(prompt.map(|prompt| prompt.kind.name()))
        .bind(prompt.map(|prompt| prompt.mode.name()))
        .bind(prompt.map(|prompt| prompt.content.clone()))
        .bind(prompt.is_some_and(|prompt| prompt.fresh))
        .bind(prompt.map(|prompt| prompt.at.millis()))
}

fn distinct_names(agents: &[NewAgent]) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(agents.len());
    for agent in agents {
        names.extend(
            (1..)
                .map(|n| name::nth(&agent.spec.name, n))
                .find(|name| !names.contains(name)),
        );
    }
    names
}

pub async fn find(
    database: &Database,
    id_or_name: &str,
) -> Result<Option<SessionRecord>, StoreError> {
    let text = format!(
        "SELECT {SESSION} FROM sessions s LEFT JOIN agents l ON l.session_id = s.id AND l.id = s.lead
         WHERE s.id = $1 OR s.name = $1 ORDER BY s.id = $1 DESC LIMIT 1"
    );
    let row = database
        .optional(sqlx::query(sqlx::AssertSqlSafe(text)).bind(id_or_name))
        .await?;
    row.as_ref().map(rows::session).transpose()
}

/// Of a session `s`. A turn that runs has begun after the last one ended. A body is searched as text:
/// Postgres' JSON functions refuse all of it for one `\u0000`, and a quote within a string of it has
/// a backslash before it.
const ACTIVITY: &str = r#"CASE
  WHEN EXISTS (SELECT 1 FROM agents a WHERE a.session_id = s.id AND a.state IN ('streaming', 'executing_tools', 'compacting')) THEN 'working'
  WHEN EXISTS (SELECT 1 FROM inputs i JOIN agents a ON a.session_id = i.session_id AND a.id = i.agent_id
    WHERE i.session_id = s.id AND i.outcome IS NULL AND i.turn IS NULL AND a.state <> 'stopped') THEN 'waiting'
  WHEN (SELECT g.kind = 'error' OR g.kind = 'turn_end' AND g.body ~ '"outcome"\s*:\s*"(limit|truncated)"' FROM log g
    WHERE g.session_id = s.id AND g.agent_id = s.lead AND g.kind IN ('turn_start', 'turn_end', 'error') AND g.hidden_by IS NULL
    ORDER BY g.seq DESC LIMIT 1) THEN 'failed'
  ELSE 'idle' END AS activity"#;

pub async fn list(database: &Database, filter: ListSessions) -> Result<Sessions, StoreError> {
    let limit = filter.limit.unwrap_or(PAGE).clamp(1, MAX_PAGE);
    let after = filter.after.as_deref().map(parse_cursor).transpose()?;
    let text = format!(
        "SELECT {SESSION}, {ACTIVITY} FROM sessions s LEFT JOIN agents l ON l.session_id = s.id AND l.id = s.lead
         WHERE ($1::text IS NULL OR s.state = $1) AND ($2::bigint IS NULL OR (s.created_at, s.id) < ($2, $3))
         ORDER BY s.created_at DESC, s.id DESC LIMIT $4"
    );
    let statement = sqlx::query(sqlx::AssertSqlSafe(text))
        .bind(filter.state.map(rows::session_state_name))
        .bind(after.as_ref().map(|(at, _)| at.millis()))
        .bind(after.as_ref().map(|(_, id)| id.as_str()))
        .bind(i64::from(limit) + 1);
    let mut found = database.all(statement).await?;
    let page = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = found.len() > page;
    found.truncate(page);
    let next = found.last().filter(|_| more).map(cursor).transpose()?;
    Ok(Sessions {
        sessions: found
            .iter()
            .map(rows::session_row)
            .collect::<Result<_, _>>()?,
        next,
    })
}

fn cursor(row: &PgRow) -> Result<String, StoreError> {
    let row = Columns(row);
    Ok(format!(
        "{}.{}",
        row.get::<i64>("created_at")?,
        row.get::<&str>("id")?
    ))
}

fn parse_cursor(text: &str) -> Result<(Timestamp, SessionId), StoreError> {
    let parts = text
        .split_once('.')
        .and_then(|(at, id)| Some((at.parse().ok()?, SessionId::parse(id).ok()?)));
    let (at, id) = parts.ok_or_else(|| {
        StoreError::BadRequest(format!("`after` is no cursor of a page: `{text}`"))
    })?;
    Ok((Timestamp::from_millis(at), id))
}

pub async fn set_state(
    database: &Database,
    session: &SessionId,
    epoch: i64,
    state: SessionState,
) -> Result<(), StoreError> {
    let statement = sqlx::query(SET_STATE)
        .bind(session.as_str())
        .bind(epoch)
        .bind(rows::session_state_name(state));
    if database.optional(statement).await?.is_some() {
        return Ok(());
    }
    match find(database, session).await? {
        Some(record) => Err(StoreError::StaleEpoch(record.spec.lead.to_string())),
        None => Err(StoreError::NotFound(format!("no session {session}"))),
    }
}

pub async fn delete(database: &Database, session: &SessionId) -> Result<RemovedCounts, StoreError> {
    let row = database
        .one(sqlx::query("SELECT * FROM planck_delete($1)").bind(session.as_str()))
        .await?;
    let row = Columns(&row);
    let count = |name: &str| Ok::<_, StoreError>(u64::try_from(row.get::<i64>(name)?).unwrap_or(0));
    match row.get::<&str>("verdict")? {
        "deleted" => Ok(RemovedCounts {
            agents: count("agents_gone")?,
            events: count("rows_gone")?,
            inputs: count("inputs_gone")?,
        }),
        "not_found" => Err(StoreError::NotFound(format!("no session {session}"))),
        "open" => Err(StoreError::Busy(format!(
            "session {session} is open: close it first"
        ))),
        other => Err(StoreError::Broken(format!(
            "unknown verdict `{other}` of the database"
        ))),
    }
}

pub async fn expired(database: &Database, before: Timestamp) -> Result<Vec<SessionId>, StoreError> {
    let closed =
        "SELECT id FROM sessions WHERE state = 'closed' AND updated_at < $1 ORDER BY updated_at";
    let found = database
        .all(sqlx::query(closed).bind(before.millis()))
        .await?;
    found.iter().map(|row| Columns(row).parse("id")).collect()
}
