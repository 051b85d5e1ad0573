//! Reading the log: events in dense pages, messages in segments between checkpoints, what an agent
//! loads.

use planck_common::{
    AgentId, NodeId, Seq, SessionId,
    command::{Events, Messages},
    envelope::{Row, Writer},
};
use serde_json::value::RawValue;
use sqlx::query;

use super::{SqliteStore, decode::Reader, fault, files::InUse};
use crate::store::{LogRow, StoreError};

/// Rows of a page at most, and bytes of what is in it but for its first row.
const PAGE: u32 = 500;
const PAGE_BYTES: usize = 512 * 1024;

/// From the latest checkpoint on, or from the open turn's start if that is earlier.
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

impl SqliteStore {
    pub(super) async fn load_rows(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<LogRow>, StoreError> {
        let file = self.file(session).await?;
        let rows = file.db.rows(query(LOAD).bind(agent.as_str())).await?;
        let rows: Result<Vec<_>, _> = rows
            .iter()
            .map(|row| {
                Reader {
                    row,
                    path: file.db.path(),
                }
                .log_row()
            })
            .collect();
        Ok(rows?.into_iter().flatten().collect())
    }

    pub(super) async fn last_seq(&self, session: &SessionId) -> Result<Seq, StoreError> {
        last_seq_in(&self.file(session).await?).await
    }

    /// The head is read first: what is in the log up to it stays as it is, but for `hidden_by`.
    pub(super) async fn page_of_events(
        &self,
        session: &SessionId,
        from: Seq,
        limit: u32,
        agent: Option<&AgentId>,
    ) -> Result<Events, StoreError> {
        const ALL: &str = "SELECT * FROM log WHERE seq >= ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3";
        const OF_AGENT: &str = "SELECT * FROM log WHERE agent_id = ?4 AND seq >= ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3";
        let file = self.file(session).await?;
        let head = last_seq_in(&file).await?;
        let limit = limit.clamp(1, PAGE);
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
                let row = Reader {
                    row,
                    path: file.db.path(),
                };
                let (seq, event) = (row.number("seq")?, envelope(&file, row)?);
                bytes += event.get().len();
                if bytes > PAGE_BYTES && !page.events.is_empty() {
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

    pub(super) async fn page_of_messages(
        &self,
        session: &SessionId,
        agent: Option<&AgentId>,
        before: Option<Seq>,
        limit: Option<u32>,
    ) -> Result<Messages, StoreError> {
        let file = self.file(session).await?;
        let before = before.unwrap_or(Seq::MAX);
        let covers = covers_before(&file, agent, before).await?;
        let limit = limit.unwrap_or(PAGE).clamp(1, PAGE);
        let (mut messages, whole) = newest(&file, agent, covers, before, limit).await?;
        if !whole {
            let before = messages.last().map(|(seq, _)| *seq);
            return Ok(Messages {
                messages: messages.into_iter().rev().map(|(_, text)| text).collect(),
                before,
            });
        }
        messages.extend(summaries(&file, agent, covers).await?.into_iter().rev());
        let before = is_any_before(&file, agent, covers)
            .await?
            .then_some(covers + 1);
        Ok(Messages {
            messages: messages.into_iter().rev().map(|(_, text)| text).collect(),
            before,
        })
    }
}

/// How many rows are read at once: few, for one can be large.
fn chunk(left: u32) -> u32 {
    left.min(64)
}

async fn last_seq_in(file: &InUse) -> Result<Seq, StoreError> {
    let row = file
        .db
        .row(query("SELECT next_seq - 1 AS head FROM sessions"))
        .await?;
    let row =
        row.ok_or_else(|| StoreError::NotFound(format!("there is no session {}", file.id)))?;
    Reader {
        row: &row,
        path: file.db.path(),
    }
    .number("head")
}

fn envelope(file: &InUse, row: Reader<'_>) -> Result<Box<RawValue>, StoreError> {
    let writer = writer(file, row)?;
    let (place, body) = (row.place()?, row.get::<&str>("body")?);
    let at = Row {
        seq: row.number("seq")?,
        prev: row.number("prev")?,
        hidden_by: row.get("hidden_by")?,
    };
    raw(file, writer.stored(row.get("kind")?, place, at, body))
}

fn writer(file: &InUse, row: Reader<'_>) -> Result<Writer, StoreError> {
    Ok(Writer {
        agent_id: row.agent_id("agent_id")?,
        session_id: file.id.clone(),
        team_id: file.team.clone(),
        node_id: row.parse("node_id", NodeId::parse)?,
        epoch: row.number("epoch")?,
    })
}

fn raw(file: &InUse, text: String) -> Result<Box<RawValue>, StoreError> {
    RawValue::from_string(text)
        .map_err(|error| fault::damaged(file.db.path(), format!("malformed body: {error}")).into())
}

type Found = Vec<(Seq, Box<RawValue>)>;

/// The highest checkpoint that leaves a segment before `before`.
async fn covers_before(
    file: &InUse,
    agent: Option<&AgentId>,
    before: Seq,
) -> Result<Seq, StoreError> {
    const COVERS: &str = "SELECT coalesce(max(covers), 0) AS covers FROM log
        WHERE covers IS NOT NULL AND covers < ?1 - 1 AND (?2 IS NULL OR agent_id = ?2) AND hidden_by IS NULL";
    let row = file
        .db
        .row(
            query(COVERS)
                .bind(before)
                .bind(agent.map(ToString::to_string)),
        )
        .await?;
    row.map_or(Ok(0), |row| {
        Reader {
            row: &row,
            path: file.db.path(),
        }
        .number("covers")
    })
}

/// The messages of a segment, newest first, and whether all of it is there.
async fn newest(
    file: &InUse,
    agent: Option<&AgentId>,
    covers: Seq,
    before: Seq,
    limit: u32,
) -> Result<(Found, bool), StoreError> {
    const ALL: &str =
        "SELECT * FROM log WHERE seq > ?1 AND seq < ?2 AND kind = 'message' AND covers IS NULL AND hidden_by IS NULL
        ORDER BY seq DESC LIMIT ?3";
    const OF_AGENT: &str =
        "SELECT * FROM log WHERE agent_id = ?4 AND seq > ?1 AND seq < ?2 AND kind = 'message' AND covers IS NULL
        AND hidden_by IS NULL ORDER BY seq DESC LIMIT ?3";
    let (mut found, mut bytes, mut before): (Found, usize, Seq) = (vec![], 0, before);
    loop {
        let left = limit - u32::try_from(found.len()).unwrap_or(limit);
        // One more than fits shows that there is more.
        let part = chunk(left + 1);
        let statement = query(if agent.is_some() { OF_AGENT } else { ALL })
            .bind(covers)
            .bind(before)
            .bind(part);
        let statement = agent.into_iter().fold(statement, |statement, agent| {
            statement.bind(agent.to_string())
        });
        let rows = file.db.rows(statement).await?;
        for row in &rows {
            let (seq, message) = message(
                file,
                Reader {
                    row,
                    path: file.db.path(),
                },
            )?;
            bytes += message.get().len();
            if found.len() >= usize::try_from(limit).unwrap_or(usize::MAX)
                || (bytes > PAGE_BYTES && !found.is_empty())
            {
                return Ok((found, false));
            }
            found.push((seq, message));
            before = seq;
        }
        if rows.len() < usize::try_from(part).unwrap_or(usize::MAX) {
            return Ok((found, true));
        }
    }
}

fn message(file: &InUse, row: Reader<'_>) -> Result<(Seq, Box<RawValue>), StoreError> {
    let seq = row.number("seq")?;
    let text = writer(file, row)?.message(seq, row.timestamp("at")?, row.get("body")?);
    Ok((seq, raw(file, text)?))
}

/// The summaries of the checkpoint that a segment begins with.
async fn summaries(
    file: &InUse,
    agent: Option<&AgentId>,
    covers: Seq,
) -> Result<Found, StoreError> {
    const SUMMARIES: &str =
        "SELECT * FROM log WHERE covers = ?1 AND (?2 IS NULL OR agent_id = ?2) AND kind = 'message'
        AND hidden_by IS NULL ORDER BY seq";
    let rows = file
        .db
        .rows(
            query(SUMMARIES)
                .bind(covers)
                .bind(agent.map(ToString::to_string)),
        )
        .await?;
    rows.iter()
        .map(|row| {
            message(
                file,
                Reader {
                    row,
                    path: file.db.path(),
                },
            )
        })
        .collect()
}

/// Whether a message, or the summary of an earlier checkpoint, comes before the segment that begins
/// after `covers`.
async fn is_any_before(
    file: &InUse,
    agent: Option<&AgentId>,
    covers: Seq,
) -> Result<bool, StoreError> {
    const ANY: &str = "SELECT 1 FROM log WHERE kind = 'message' AND hidden_by IS NULL AND (?2 IS NULL OR agent_id = ?2)
        AND (covers IS NULL AND seq <= ?1 OR covers < ?1) LIMIT 1";
    let statement = query(ANY).bind(covers).bind(agent.map(ToString::to_string));
    Ok(covers > 0 && file.db.row(statement).await?.is_some())
}
