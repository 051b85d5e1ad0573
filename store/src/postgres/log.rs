//! The logs of sessions, in Postgres.

pub mod append;

use async_trait::async_trait;
use serde_json::value::RawValue;
use sqlx::postgres::PgRow;

use planck_common::{
    AgentId, NodeId, Seq, SessionId, TeamId, Timestamp,
    command::{Events, Messages},
};

use super::{
    PostgresStore,
    database::{Database, reader, unknown_verdict},
};
use crate::{
    Appended, Batch, Log, LogRow, RewindOutcome, StoreError, no_message, no_session,
    page::{LOG_BYTES, LOG_ROWS},
    stale_lead,
};

/// [`LOG_BYTES`] as an SQL parameter.
const MAX_BYTES: i64 = LOG_BYTES as i64;
/// An estimate of the bytes that an envelope adds to the body of an event.
const ENVELOPE: i64 = 400;

/// The statement that reads a page. Each row contains the head of the log and the team. An empty
/// page is one row that contains nothing else.
const EVENTS: &str = "
SELECT s.team_id, s.next_seq - 1 AS head, page.* FROM sessions s LEFT JOIN (
  SELECT * FROM (
    SELECT l.*, count(*) OVER () AS found, row_number() OVER (ORDER BY seq) AS n,
      sum(octet_length(body) + $5) OVER (ORDER BY seq)::bigint AS bytes
    FROM (SELECT seq, agent_id, node_id, epoch, prev, kind, turn, request, at, hidden_by, body FROM log
      WHERE session_id = $1 AND seq >= $2 AND ($3::text IS NULL OR agent_id = $3) ORDER BY seq LIMIT $4 + 1) l
  ) counted WHERE n = 1 OR n <= $4 AND bytes <= $6
) page ON true WHERE s.id = $1 ORDER BY page.seq";

const LOAD: &str = "
SELECT seq, kind, turn, request, at, body FROM log WHERE session_id = $1 AND agent_id = $2 AND hidden_by IS NULL AND seq >= least(
  coalesce((SELECT covers + 1 FROM log WHERE session_id = $1 AND agent_id = $2 AND hidden_by IS NULL AND kind = 'checkpoint'
    ORDER BY seq DESC LIMIT 1), 0),
  (SELECT t.seq FROM (SELECT seq, kind FROM log WHERE session_id = $1 AND agent_id = $2 AND hidden_by IS NULL
    AND kind IN ('turn_start', 'turn_end', 'error') ORDER BY seq DESC LIMIT 1) t WHERE t.kind = 'turn_start'))
ORDER BY seq";

#[async_trait]
impl Log for PostgresStore {
    async fn append(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError> {
        append::append(&self.database, session, node, batches).await
    }

    async fn load(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<LogRow>, StoreError> {
        let found = self
            .database
            .all(
                sqlx::query(LOAD)
                    .bind(session.as_str())
                    .bind(agent.as_str()),
            )
            .await?;
        let rows: Vec<Option<LogRow>> = found
            .iter()
            .map(|row| reader(row).log_row())
            .collect::<Result<_, _>>()?;
        Ok(rows.into_iter().flatten().collect())
    }

    async fn head(&self, session: &SessionId) -> Result<Seq, StoreError> {
        head(&self.database, session).await
    }

    async fn events(
        &self,
        session: &SessionId,
        from: Seq,
        limit: u32,
        agent: Option<&AgentId>,
    ) -> Result<Events, StoreError> {
        let statement = sqlx::query(EVENTS)
            .bind(session.as_str())
            .bind(from)
            .bind(agent.map(AgentId::as_str))
            .bind(i64::from(limit.clamp(1, LOG_ROWS)))
            .bind(ENVELOPE)
            .bind(MAX_BYTES);
        let rows = self.database.all(statement).await?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Err(no_session(session));
        };
        let head: Seq = reader(first).number("head")?;
        let Some(last_seq) = reader(last).get::<Option<Seq>>("seq")? else {
            return Ok(Events {
                events: Vec::new(),
                next: head + 1,
                head,
            });
        };
        let found = usize::try_from(reader(first).get::<i64>("found")?).unwrap_or(usize::MAX);
        let next = if found > rows.len() {
            last_seq + 1
        } else {
            head + 1
        };
        let team = reader(first).parse("team_id")?;
        let events = rows
            .iter()
            .map(|row| reader(row).envelope(session, &team))
            .collect::<Result<_, _>>()?;
        Ok(Events { events, next, head })
    }

    async fn turn_end(
        &self,
        session: &SessionId,
        agent: &AgentId,
        turn: u32,
        after: Seq,
    ) -> Result<Option<LogRow>, StoreError> {
        const END: &str = "SELECT seq, kind, turn, request, at, body FROM log WHERE session_id = $1 AND agent_id = $2 AND seq > $4
            AND kind IN ('turn_start', 'turn_end', 'error') AND kind <> 'turn_start' AND turn = $3 AND hidden_by IS NULL
            ORDER BY seq LIMIT 1";
        let end = sqlx::query(END)
            .bind(session.as_str())
            .bind(agent.as_str())
            .bind(i64::from(turn))
            .bind(after);
        let row = self.database.optional(end).await?;
        row.map_or(Ok(None), |row| reader(&row).log_row())
    }

    async fn messages(
        &self,
        session: &SessionId,
        agent: Option<&AgentId>,
        before: Option<Seq>,
        limit: Option<u32>,
    ) -> Result<Messages, StoreError> {
        messages(&self.database, session, agent, before, limit).await
    }

    async fn rewind(
        &self,
        session: &SessionId,
        lead_epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<RewindOutcome, StoreError> {
        let statement = sqlx::query("SELECT * FROM planck_rewind($1, $2, $3, $4, $5)");
        let statement = statement
            .bind(session.as_str())
            .bind(lead_epoch)
            .bind(to)
            .bind(by)
            .bind(Timestamp::now().millis());
        let rows = self.database.all(statement).await?;
        let Some(first) = rows.first() else {
            return Err(no_session(session));
        };
        match reader(first).get::<&str>("verdict")? {
            "rewound" => rewound(&rows, reader(first).number("head")?),
            "stale_epoch" => Err(stale_lead(session)),
            "no_message" => Err(no_message(to, session)),
            other => Err(unknown_verdict(other)),
        }
    }
}

pub(super) async fn head(database: &Database, session: &SessionId) -> Result<Seq, StoreError> {
    let head = "SELECT next_seq - 1 AS head FROM sessions WHERE id = $1";
    let row = database
        .optional(sqlx::query(head).bind(session.as_str()))
        .await?;
    reader(&row.ok_or_else(|| no_session(session))?).number("head")
}

fn rewound(rows: &[PgRow], head: Seq) -> Result<RewindOutcome, StoreError> {
    let mut rewound = RewindOutcome {
        head,
        agents: Vec::with_capacity(rows.len()),
        stopped: Vec::new(),
    };
    for row in rows {
        let row = reader(row);
        let agent: AgentId = row.parse("agent")?;
        if row.get("unborn")? {
            rewound.stopped.push(agent.clone());
        }
        rewound.agents.push((agent, row.number("new_epoch")?));
    }
    Ok(rewound)
}

// Reads messages in segments between checkpoints.
//
// `before` names the segment that ends just before that number. The first message of a segment is
// never used as `before`, so a `before` that equals a checkpoint's `covers + 1` always means a
// whole segment.

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

struct MessageSegment {
    team: TeamId,
    after: Seq,
    earlier: bool,
}

async fn messages(
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
    segment: MessageSegment,
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
) -> Result<MessageSegment, StoreError> {
    let statement = sqlx::query(SEGMENT)
        .bind(session.as_str())
        .bind(agent.map(AgentId::as_str))
        .bind(before);
    let row = database
        .optional(statement)
        .await?
        .ok_or_else(|| no_session(session))?;
    let row = reader(&row);
    Ok(MessageSegment {
        team: row.parse("team_id")?,
        after: row.get("after")?,
        earlier: row.get("earlier")?,
    })
}
