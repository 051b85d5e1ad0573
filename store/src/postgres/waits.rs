//! The waits of agents, in Postgres.

use async_trait::async_trait;
use planck_common::{
    AgentId, CallId, SessionId,
    command::{ListWaits, WaitRow, Waits as WaitPage},
    event::json,
    wait::{WaitAnswer, WaitState},
};
use sqlx::postgres::PgRow;

use super::{
    PostgresStore,
    database::{Database, reader},
};
use crate::{
    AnswerOutcome, SessionRule, StoreError, Waits,
    page::{self, LOG_BYTES, WaitCursor},
    waits::{EXPIRE_MOST, WaitAndAnswer, session_rule},
};

/// An estimate of the bytes that a wait has besides the body of its event and its answer.
const AROUND: i64 = 400;
const MAX_BYTES: i64 = LOG_BYTES as i64;

/// Builds a query for waits from its `WHERE` clause.
macro_rules! waits {
    ($which:literal) => {
        concat!(
            "SELECT w.session_id, w.id, w.agent_id, w.seq, w.state, w.opened_at, w.answer, l.body, a.state = 'stopped' AS stopped
            FROM waits w JOIN log l ON l.session_id = w.session_id AND l.seq = w.seq
            JOIN agents a ON a.session_id = w.session_id AND a.id = w.agent_id ",
            $which
        )
    };
}

/// Builds the statement that reads a page, and whether more waits follow. The waits come after a
/// position in the order that the arguments name.
macro_rules! page {
    ($after:literal, $order:literal) => {
        concat!(
            "SELECT * FROM (SELECT p.*, count(*) OVER () AS found, row_number() OVER in_order AS n,
              sum(octet_length(body) + coalesce(octet_length(answer), 0) + $7) OVER in_order::bigint AS bytes FROM (",
            waits!(
                "WHERE w.state = $1 AND ($2::text IS NULL OR w.kind = $2) AND ($3::text IS NULL OR w.session_id = $3)
                  AND starts_with(w.id, $9) AND (w.state NOT IN ('open', 'answered') OR a.state <> 'stopped')
                  AND (w.opened_at, w.id) "
            ),
            $after,
            " ($4, $5) ORDER BY w.opened_at ",
            $order,
            ", w.id ",
            $order,
            " LIMIT $6 + 1) p WINDOW in_order AS (ORDER BY opened_at ",
            $order,
            ", id ",
            $order,
            ")) counted WHERE n = 1 OR n <= $6 AND bytes <= $8 ORDER BY n"
        )
    };
}

const OLDEST: &str = page!(">", "ASC");
const NEWEST: &str = page!("<", "DESC");

const WAIT: &str = waits!("WHERE w.session_id = $1 AND w.id = $2");

const ANSWER: &str = "
UPDATE waits w SET state = 'answered', answer = $4 FROM agents a
WHERE w.session_id = $1 AND w.id = $2 AND w.digest = $3 AND w.state = 'open'
  AND (w.expires_at IS NULL OR w.expires_at > extract(epoch FROM clock_timestamp()) * 1000)
  AND a.session_id = w.session_id AND a.id = w.agent_id AND a.state <> 'stopped'
RETURNING w.agent_id, a.node_id";

const ANSWERS: &str = "SELECT session_id, id, answer, opened_at, expires_at FROM waits
WHERE session_id = $1 AND agent_id = $2 AND state IN ('open', 'answered') AND state = 'answered' ORDER BY seq";

/// The query for the waits that may have added a rule. It searches the answers as text, so that it
/// reads few of them.
const RULES: &str = waits!(
    r#"WHERE w.session_id = $1 AND w.state IN ('answered', 'closed') AND strpos(w.answer, '"scope":"session"') > 0
      AND l.hidden_by IS NULL ORDER BY w.seq"#
);

/// The statement locks only waits that no other statement has locked, so that it cannot deadlock.
const EXPIRE: &str = r#"
WITH late AS MATERIALIZED (SELECT session_id, id FROM waits
  WHERE state = 'open' AND expires_at <= extract(epoch FROM clock_timestamp()) * 1000 ORDER BY opened_at LIMIT $1 FOR UPDATE SKIP LOCKED),
done AS (UPDATE waits w SET state = 'answered', answer = json_build_object('decision', 'expired', 'reason', 'nobody answered in time',
    'at', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))::text
  FROM late WHERE w.session_id = late.session_id AND w.id = late.id RETURNING 1)
SELECT count(*) AS expired FROM done"#;

#[async_trait]
impl Waits for PostgresStore {
    async fn waits(
        &self,
        session: Option<&SessionId>,
        filter: &ListWaits,
    ) -> Result<WaitPage, StoreError> {
        let after = filter.after.as_deref().map(WaitCursor::parse);
        let after = after.transpose()?;
        let (text, first) = match filter.newest {
            true => (NEWEST, i64::MAX),
            false => (OLDEST, i64::MIN),
        };
        let statement = sqlx::query(text)
            .bind(filter.state.unwrap_or(WaitState::Open).name())
            .bind(filter.kind.map(|kind| kind.name()))
            .bind(session.map(SessionId::as_str))
            .bind(
                after
                    .as_ref()
                    .map_or(first, |after| after.opened_at.millis()),
            )
            .bind(after.as_ref().map_or("", |after| after.id.as_str()))
            .bind(i64::from(page::waits(filter.limit)))
            .bind(AROUND)
            .bind(MAX_BYTES)
            .bind(filter.id.as_deref().unwrap_or_default());
        let rows = self.database.all(statement).await?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok(WaitPage {
                waits: Vec::new(),
                next: None,
            });
        };
        let found = usize::try_from(reader(first).get::<i64>("found")?).unwrap_or(usize::MAX);
        let next = (found > rows.len()).then(|| cursor(last)).transpose()?;
        let mut waits = Vec::with_capacity(rows.len());
        for row in &rows {
            match wait(row) {
                Ok((row, _)) => waits.push(row),
                Err(error) if session.is_none() => {
                    tracing::warn!(%error, "left a wait out of the list: it cannot be read")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(WaitPage { waits, next })
    }

    async fn wait(&self, session: &SessionId, id: &CallId) -> Result<Option<WaitRow>, StoreError> {
        let found = find(&self.database, session, id).await?;
        let row = found.as_ref().map(wait).transpose()?;
        Ok(row.map(|(row, _)| row))
    }

    async fn answer(
        &self,
        session: &SessionId,
        id: &CallId,
        digest: &str,
        answer: &WaitAnswer,
    ) -> Result<AnswerOutcome, StoreError> {
        let statement = sqlx::query(ANSWER)
            .bind(session.as_str())
            .bind(id.as_str())
            .bind(digest)
            .bind(json(answer));
        if let Some(row) = self.database.optional(statement).await? {
            let row = reader(&row);
            return Ok(AnswerOutcome::Answered {
                agent: row.parse("agent_id")?,
                node: row.parse_optional("node_id")?,
            });
        }
        let Some(found) = find(&self.database, session, id).await? else {
            return Ok(AnswerOutcome::NotFound);
        };
        if reader(&found).get("stopped")? {
            return Ok(AnswerOutcome::NotFound);
        }
        let (row, answer) = wait(&found)?;
        Ok(AnswerOutcome::Refused {
            row: Box::new(row),
            answer: answer.map(Box::new),
        })
    }

    async fn answers(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<(CallId, WaitAnswer)>, StoreError> {
        let statement = sqlx::query(ANSWERS)
            .bind(session.as_str())
            .bind(agent.as_str());
        let rows = self.database.all(statement).await?;
        rows.iter().map(|row| reader(row).answer()).collect()
    }

    async fn session_rules(&self, session: &SessionId) -> Result<Vec<SessionRule>, StoreError> {
        let statement = sqlx::query(RULES).bind(session.as_str());
        let rows = self.database.all(statement).await?;
        let waits: Vec<WaitAndAnswer> = rows.iter().map(wait).collect::<Result<_, _>>()?;
        Ok(waits.into_iter().filter_map(session_rule).collect())
    }

    async fn expire_waits(&self) -> Result<u64, StoreError> {
        let statement = sqlx::query(EXPIRE).bind(i64::from(EXPIRE_MOST));
        let row = self.database.one(statement).await?;
        let count = reader(&row).get::<i64>("expired")?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

async fn find(
    database: &Database,
    session: &SessionId,
    id: &CallId,
) -> Result<Option<PgRow>, StoreError> {
    let statement = sqlx::query(WAIT).bind(session.as_str()).bind(id.as_str());
    database.optional(statement).await
}

fn wait(row: &PgRow) -> Result<WaitAndAnswer, StoreError> {
    let row = reader(row);
    row.wait(&row.parse("session_id")?)
}

fn cursor(row: &PgRow) -> Result<String, StoreError> {
    let row = reader(row);
    let cursor = WaitCursor {
        opened_at: row.timestamp("opened_at")?,
        id: row.parse("id")?,
    };
    Ok(cursor.to_string())
}
