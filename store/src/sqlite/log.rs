//! The logs of sessions, in SQLite.

mod append;
mod messages;
mod rewind;

use async_trait::async_trait;
use planck_common::{
    AgentId, NodeId, Seq, SessionId,
    command::{Events, Messages},
};
use sqlx::query;

use super::{SqliteStore, files::InUse};
use crate::{
    Appended, Batch, Log, LogRow, RewindOutcome, StoreError,
    page::{LOG_BYTES, LOG_ROWS},
    refusal,
};

/// The query for the rows of an agent from its latest checkpoint on, or from the start of the open
/// turn if that is earlier.
const LOAD: &str = "WITH
    covered AS (SELECT coalesce(max(l.covers), 0) AS seq FROM log l
      WHERE l.agent_id = ?1 AND l.covers IS NOT NULL AND l.hidden_by IS NULL),
    opened AS (SELECT seq FROM log WHERE agent_id = ?1 AND kind = 'turn_start' AND hidden_by IS NULL ORDER BY seq DESC LIMIT 1),
    unfinished AS (SELECT seq FROM opened WHERE NOT EXISTS (
      SELECT 1 FROM log l WHERE l.agent_id = ?1 AND l.seq > opened.seq AND l.kind IN ('turn_end', 'error') AND l.hidden_by IS NULL))
    SELECT seq, kind, turn, request, at, body FROM log
    WHERE agent_id = ?1 AND hidden_by IS NULL
      AND seq >= min((SELECT seq + 1 FROM covered), coalesce((SELECT seq FROM unfinished), (SELECT seq + 1 FROM covered)))
    ORDER BY seq";

#[async_trait]
impl Log for SqliteStore {
    async fn append(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError> {
        append::append(self, session, node, batches).await
    }

    async fn load(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<LogRow>, StoreError> {
        let file = self.file(session).await?;
        let rows = file.db.rows(query(LOAD).bind(agent.as_str())).await?;
        let rows: Result<Vec<_>, _> = rows.iter().map(|row| file.reader(row).log_row()).collect();
        Ok(rows?.into_iter().flatten().collect())
    }

    async fn head(&self, session: &SessionId) -> Result<Seq, StoreError> {
        head(&self.file(session).await?).await
    }

    /// Returns a page of the log. Reads the head first, because the rows up to the head no longer
    /// change except for `hidden_by`.
    async fn events(
        &self,
        session: &SessionId,
        from: Seq,
        limit: u32,
        agent: Option<&AgentId>,
    ) -> Result<Events, StoreError> {
        const ALL: &str = "SELECT * FROM log WHERE seq >= ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3";
        const OF_AGENT: &str = "SELECT * FROM log WHERE agent_id = ?4 AND seq >= ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3";
        let file = self.file(session).await?;
        let head = head(&file).await?;
        let limit = limit.clamp(1, LOG_ROWS);
        let mut page = Events {
            events: vec![],
            next: head + 1,
            head,
        };
        let (mut bytes, mut at, mut left) = (0, from, limit);
        while left > 0 && at <= head {
            let part = chunk(left);
            let statement = query(if agent.is_some() { OF_AGENT } else { ALL })
                .bind(at)
                .bind(head)
                .bind(part);
            let statement = agent.into_iter().fold(statement, |statement, agent| {
                statement.bind(agent.to_string())
            });
            let rows = file.db.rows(statement).await?;
            for row in &rows {
                let row = file.reader(row);
                let (seq, event) = (row.number("seq")?, row.envelope(&file.id, &file.team)?);
                bytes += event.get().len();
                if bytes > LOG_BYTES && !page.events.is_empty() {
                    page.next = seq;
                    return Ok(page);
                }
                page.events.push(event);
                at = seq + 1;
            }
            left -= part;
            if rows.len() < usize::try_from(part).unwrap_or(usize::MAX) {
                return Ok(page);
            }
        }
        page.next = at.min(head + 1);
        Ok(page)
    }

    async fn turn_end(
        &self,
        session: &SessionId,
        agent: &AgentId,
        turn: u32,
        after: Seq,
    ) -> Result<Option<LogRow>, StoreError> {
        const END: &str = "SELECT seq, kind, turn, request, at, body FROM log WHERE agent_id = ?1 AND turn = ?2 AND seq > ?3
            AND kind IN ('turn_end', 'error') AND hidden_by IS NULL ORDER BY seq LIMIT 1";
        let file = self.file(session).await?;
        let end = query(END).bind(agent.as_str()).bind(turn).bind(after);
        let row = file.db.row(end).await?;
        Ok(row
            .map(|row| file.reader(&row).log_row())
            .transpose()?
            .flatten())
    }

    async fn messages(
        &self,
        session: &SessionId,
        agent: Option<&AgentId>,
        before: Option<Seq>,
        limit: Option<u32>,
    ) -> Result<Messages, StoreError> {
        messages::messages(&self.file(session).await?, agent, before, limit).await
    }

    async fn rewind(
        &self,
        session: &SessionId,
        lead_epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<RewindOutcome, StoreError> {
        rewind::rewind(&self.file(session).await?, lead_epoch, to, by).await
    }
}

/// Returns how many rows to read at once when `left` are still to be read. The number is small
/// because a row can be large.
fn chunk(left: u32) -> u32 {
    left.min(64)
}

async fn head(file: &InUse) -> Result<Seq, StoreError> {
    let row = file
        .db
        .row(query("SELECT next_seq - 1 AS head FROM sessions"))
        .await?;
    let row = row.ok_or_else(|| refusal::no_session(&file.id))?;
    file.reader(&row).number("head")
}
