//! Lists sessions in pages, each with its current activity.

use planck_common::{
    SessionId,
    command::{ListSessions, SessionActivity, SessionRow, Sessions},
};
use sqlx::query;

use super::record_in;
use crate::{
    StoreError,
    page::{self, SessionCursor},
    preview::{self, PreviewBodies, SessionPreview},
    sqlite::SqliteStore,
};

/// The query for the activity of a session and for the rows of its log that describe it. A session is
/// not `failed` once a new turn began, because the latest of the orchestrator's rows that begin or end
/// a turn is then a `turn_start`.
const PREVIEW: &str = "SELECT CASE
  WHEN EXISTS (SELECT 1 FROM agents WHERE state IN ('streaming', 'executing_tools', 'compacting')) THEN 'working'
  WHEN EXISTS (SELECT 1 FROM inputs i JOIN agents a ON a.id = i.agent_id
    WHERE i.outcome IS NULL AND i.turn IS NULL AND a.state <> 'stopped')
    OR EXISTS (SELECT 1 FROM agents WHERE state = 'waiting') THEN 'waiting'
  WHEN (SELECT kind = 'error' OR kind = 'turn_end' AND body->>'outcome' IN ('limit', 'truncated') FROM log
    WHERE agent_id = s.lead AND kind IN ('turn_start', 'turn_end', 'error') AND hidden_by IS NULL
    ORDER BY seq DESC LIMIT 1) THEN 'failed'
  ELSE 'idle' END AS activity,
  (SELECT substr(body, 1, ?2) FROM log WHERE agent_id = s.lead AND kind = 'message' AND hidden_by IS NULL
    AND substr(body, 1, 14) = '{\"role\":\"user\"'
    AND seq <= coalesce((SELECT seq FROM log WHERE agent_id = s.lead ORDER BY seq LIMIT 1 OFFSET ?1), s.next_seq)
    ORDER BY seq LIMIT 1) AS prompt,
  (SELECT substr(body, 1, ?3) FROM log WHERE agent_id = s.lead AND kind = 'message' AND hidden_by IS NULL
    AND substr(body, 1, 19) = '{\"role\":\"assistant\"' AND instr(body, '\"type\":\"text\"')
    AND seq >= coalesce((SELECT seq FROM log WHERE agent_id = s.lead ORDER BY seq DESC LIMIT 1 OFFSET ?1), 0)
    ORDER BY seq DESC LIMIT 1) AS answer,
  (SELECT iif(kind = 'error' OR kind = 'turn_end' AND body->>'outcome' IN ('limit', 'truncated'), substr(body, 1, ?3), NULL) FROM log
    WHERE agent_id = s.lead AND kind IN ('turn_start', 'turn_end', 'error') AND hidden_by IS NULL
    ORDER BY seq DESC LIMIT 1) AS ended
  FROM sessions s";

pub async fn sessions(store: &SqliteStore, filter: ListSessions) -> Result<Sessions, StoreError> {
    let limit = page::sessions(filter.limit);
    let after = filter.after.as_deref().map(SessionCursor::parse);
    // The query reads one session more than fits, to find out whether another page follows.
    let mut listed = store
        .index
        .page(filter.state, after.transpose()?, limit + 1)
        .await?;
    let size = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_more = listed.len() > size;
    listed.truncate(size);
    let next = listed
        .last()
        .filter(|_| is_more)
        .map(|last| last.cursor().to_string());
    let mut sessions = Vec::with_capacity(listed.len());
    for listed in listed {
        match row_of(store, &listed.id).await {
            Ok(row) => {
                sessions.extend(row.filter(|r| filter.state.is_none_or(|state| state == r.state)));
            }
            Err(error) => {
                tracing::warn!(session = %listed.id, name = %listed.name, %error, "left a session out of the list: its file cannot be read")
            }
        }
    }
    Ok(page::fit(sessions, next))
}

async fn row_of(
    store: &SqliteStore,
    session: &SessionId,
) -> Result<Option<SessionRow>, StoreError> {
    let Some(file) = store.file_if_any(session).await? else {
        return Ok(None);
    };
    let Some(record) = record_in(&file.db).await? else {
        return Ok(None);
    };
    let preview = query(PREVIEW)
        .bind(preview::ROWS)
        .bind(preview::PROMPT)
        .bind(preview::BODY);
    let Some(row) = file.db.row(preview).await? else {
        return Ok(None);
    };
    let row = file.reader(&row);
    let bodies = PreviewBodies {
        prompt: row.get("prompt")?,
        answer: row.get("answer")?,
        end: row.get("ended")?,
    };
    let activity = row.named("activity", SessionActivity::find)?;
    Ok(Some(record.row(SessionPreview::of(activity, bodies))))
}
