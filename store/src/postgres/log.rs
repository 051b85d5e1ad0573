//! The logs of sessions, in Postgres.

pub mod append;
mod messages;

use async_trait::async_trait;
use planck_common::{
    AgentId, NodeId, Seq, SessionId, Timestamp,
    command::{Events, Messages},
};
use sqlx::postgres::PgRow;

use super::{
    PostgresStore,
    database::{Database, reader, unknown_verdict},
};
use crate::{
    Appended, Batch, Log, LogRow, RewindOutcome, StoreError,
    page::{LOG_BYTES, LOG_ROWS},
    refusal,
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
            return Err(refusal::no_session(session));
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
        messages::messages(&self.database, session, agent, before, limit).await
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
            return Err(refusal::no_session(session));
        };
        match reader(first).get::<&str>("verdict")? {
            "rewound" => rewound(&rows, reader(first).number("head")?),
            "stale_epoch" => Err(refusal::stale_lead(session)),
            "no_message" => Err(refusal::no_message(to, session)),
            other => Err(unknown_verdict(other)),
        }
    }
}

pub(super) async fn head(database: &Database, session: &SessionId) -> Result<Seq, StoreError> {
    let head = "SELECT next_seq - 1 AS head FROM sessions WHERE id = $1";
    let row = database
        .optional(sqlx::query(head).bind(session.as_str()))
        .await?;
    reader(&row.ok_or_else(|| refusal::no_session(session))?).number("head")
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
