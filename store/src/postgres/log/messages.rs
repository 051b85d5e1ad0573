//! Reads messages in segments between checkpoints.
//!
//! `before` names the segment that ends just before that number. The first message of a segment is
//! never used as `before`, so a `before` that equals a checkpoint's `covers + 1` always means a
//! whole segment.

use planck_common::{AgentId, Seq, SessionId, TeamId, command::Messages};
use serde_json::value::RawValue;

use super::MAX_BYTES;
use crate::{
    StoreError,
    page::LOG_ROWS,
    postgres::database::{Database, reader},
    refusal,
};

/// The statement that finds a segment. `after` is the `covers` of the checkpoint at the beginning
/// of the segment, or -1 at the beginning of the log.
const SEGMENT: &str = "
SELECT s.team_id, c.after, EXISTS (SELECT 1 FROM log l WHERE l.session_id = $1 AND l.kind = 'message' AND l.hidden_by IS NULL
    AND ($2::text IS NULL OR l.agent_id = $2) AND (l.seq <= c.after OR l.covers < c.after)) AS earlier
FROM sessions s, LATERAL (SELECT coalesce(max(covers), -1) AS after FROM log WHERE session_id = $1 AND kind = 'checkpoint'
    AND hidden_by IS NULL AND ($2::text IS NULL OR agent_id = $2) AND covers <= $3 - 2) c
WHERE s.id = $1";

/// The statement that reads the messages of a segment, newest first, and then its summaries.
const PAGE: &str = "
WITH m AS (SELECT l.seq, l.agent_id, l.node_id, l.epoch, l.at, l.body, l.covers, l.covers IS NOT NULL AND EXISTS (SELECT 1 FROM log c WHERE c.session_id = $1 AND c.kind = 'checkpoint'
    AND c.hidden_by IS NULL AND c.covers = l.covers AND ($2::text IS NULL OR c.agent_id = $2)) AS summary
  FROM log l WHERE l.session_id = $1 AND l.kind = 'message' AND l.hidden_by IS NULL AND ($2::text IS NULL OR l.agent_id = $2)
    AND (l.seq > $3 AND l.seq < $4 OR l.covers = $3)),
plain AS (SELECT *, row_number() OVER (ORDER BY seq DESC) AS n, sum(octet_length(body)) OVER (ORDER BY seq DESC)::bigint AS bytes
  FROM m WHERE NOT summary AND seq > $3 AND seq < $4 ORDER BY seq DESC LIMIT $5 + 1)
SELECT seq, agent_id, node_id, epoch, at, body, false AS summary, n > 1 AND (n > $5 OR bytes > $6) AS over FROM plain
UNION ALL
SELECT seq, agent_id, node_id, epoch, at, body, true, false FROM m WHERE summary AND covers = $3
ORDER BY summary, seq DESC";

struct Segment {
    team: TeamId,
    after: Seq,
    earlier: bool,
}

pub async fn messages(
    database: &Database,
    session: &SessionId,
    agent: Option<&AgentId>,
    before: Option<Seq>,
    limit: Option<u32>,
) -> Result<Messages, StoreError> {
    let before = before.unwrap_or(Seq::MAX);
    let segment = segment(database, session, agent, before).await?;
    let statement = sqlx::query(PAGE)
        .bind(session.as_str())
        .bind(agent.map(AgentId::as_str))
        .bind(segment.after)
        .bind(before)
        .bind(i64::from(limit.unwrap_or(LOG_ROWS).clamp(1, LOG_ROWS)))
        .bind(MAX_BYTES);
    let rows = database.all(statement).await?;
    let (mut messages, mut summaries, mut part) = (Vec::new(), Vec::new(), None);
    for row in &rows {
        let row = reader(row);
        match (row.get("summary")?, row.get("over")?) {
            (true, _) => summaries.push(row.message(session, &segment.team)?),
            (false, false) if part.is_none() => {
                messages.push((row.number("seq")?, row.message(session, &segment.team)?))
            }
            (false, _) => part = part.or(messages.last().map(|(seq, _)| *seq)),
        }
    }
    Ok(page(segment, messages, summaries, part))
}

/// Builds a page. If the page does not contain the whole segment, its `before` is the number of its
/// oldest message. Only the page with the oldest messages includes the summary.
fn page(
    segment: Segment,
    messages: Vec<(Seq, Box<RawValue>)>,
    summaries: Vec<Box<RawValue>>,
    part: Option<Seq>,
) -> Messages {
    let newest_first = messages.into_iter().map(|(_, message)| message);
    if part.is_some() {
        return Messages {
            messages: newest_first.rev().collect(),
            before: part,
        };
    }
    let messages = summaries
        .into_iter()
        .rev()
        .chain(newest_first.rev())
        .collect();
    Messages {
        messages,
        before: segment.earlier.then_some(segment.after + 1),
    }
}

async fn segment(
    database: &Database,
    session: &SessionId,
    agent: Option<&AgentId>,
    before: Seq,
) -> Result<Segment, StoreError> {
    let statement = sqlx::query(SEGMENT)
        .bind(session.as_str())
        .bind(agent.map(AgentId::as_str))
        .bind(before);
    let row = database
        .optional(statement)
        .await?
        .ok_or_else(|| refusal::no_session(session))?;
    let row = reader(&row);
    Ok(Segment {
        team: row.parse("team_id")?,
        after: row.get("after")?,
        earlier: row.get("earlier")?,
    })
}
