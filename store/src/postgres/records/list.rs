//! Lists sessions in pages, each with its current activity.

use planck_common::command::{ListSessions, SessionActivity, SessionRow, Sessions};
use sqlx::postgres::PgRow;

use super::SESSION;
use crate::{
    StoreError,
    page::{self, SessionCursor},
    postgres::database::{Database, reader},
    preview::{self, PreviewBodies, SessionPreview},
    stored,
};

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

pub async fn sessions(database: &Database, filter: ListSessions) -> Result<Sessions, StoreError> {
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
        .bind(filter.state.map(stored::session_state_name))
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
