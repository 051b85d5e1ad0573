//! The logs of sessions, in SQLite.

mod append;

use async_trait::async_trait;
use serde_json::value::RawValue;
use sqlx::query;

use planck_common::{
    AgentId, NodeId, Seq, SessionId, Timestamp,
    command::{Events, Messages},
    event::{self, json},
};
use planck_migrations::SQLITE_REWIND;

use super::{SqliteStore, files::InUse};
use crate::{
    Appended, Batch, Log, LogRow, RewindOutcome, StoreError, no_message, no_session,
    page::{LOG_BYTES, LOG_ROWS},
    sqlite::{
        db::SqliteRowReader,
        fault::{Abort, SqliteFault},
    },
    stale_lead,
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
        messages(&self.file(session).await?, agent, before, limit).await
    }

    async fn rewind(
        &self,
        session: &SessionId,
        lead_epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<RewindOutcome, StoreError> {
        rewind(&self.file(session).await?, lead_epoch, to, by).await
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
    let row = row.ok_or_else(|| no_session(&file.id))?;
    file.reader(&row).number("head")
}

// Reads messages in segments between checkpoints.

async fn messages(
    file: &InUse,
    agent: Option<&AgentId>,
    before: Option<Seq>,
    limit: Option<u32>,
) -> Result<Messages, StoreError> {
    let before = before.unwrap_or(Seq::MAX);
    let covers = covers_before(file, agent, before).await?;
    let limit = limit.unwrap_or(LOG_ROWS).clamp(1, LOG_ROWS);
    let (mut messages, whole) = newest(file, agent, covers, before, limit).await?;
    if !whole {
        let before = messages.last().map(|(seq, _)| *seq);
        return Ok(Messages {
            messages: messages.into_iter().rev().map(|(_, text)| text).collect(),
            before,
        });
    }
    messages.extend(summaries(file, agent, covers).await?.into_iter().rev());
    let before = is_any_before(file, agent, covers)
        .await?
        .then_some(covers + 1);
    Ok(Messages {
        messages: messages.into_iter().rev().map(|(_, text)| text).collect(),
        before,
    })
}

type FoundMessages = Vec<(Seq, Box<RawValue>)>;

/// Returns the `covers` of the highest checkpoint that begins a segment before `before`, or 0 if
/// there is none.
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
    row.map_or(Ok(0), |row| file.reader(&row).number("covers"))
}

/// Returns the newest messages of a segment that fit into a page, newest first, and whether these
/// are all of its messages.
async fn newest(
    file: &InUse,
    agent: Option<&AgentId>,
    covers: Seq,
    before: Seq,
    limit: u32,
) -> Result<(FoundMessages, bool), StoreError> {
    const ALL: &str =
        "SELECT * FROM log WHERE seq > ?1 AND seq < ?2 AND kind = 'message' AND covers IS NULL AND hidden_by IS NULL
        ORDER BY seq DESC LIMIT ?3";
    const OF_AGENT: &str =
        "SELECT * FROM log WHERE agent_id = ?4 AND seq > ?1 AND seq < ?2 AND kind = 'message' AND covers IS NULL
        AND hidden_by IS NULL ORDER BY seq DESC LIMIT ?3";
    let (mut found, mut bytes, mut before): (FoundMessages, usize, Seq) = (vec![], 0, before);
    loop {
        let left = limit - u32::try_from(found.len()).unwrap_or(limit);
        // The query reads one row more than fits, to find out whether there are more messages.
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
            let (seq, message) = message(file, file.reader(row))?;
            bytes += message.get().len();
            if found.len() >= usize::try_from(limit).unwrap_or(usize::MAX)
                || (bytes > LOG_BYTES && !found.is_empty())
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

fn message(file: &InUse, row: SqliteRowReader<'_>) -> Result<(Seq, Box<RawValue>), StoreError> {
    Ok((row.number("seq")?, row.message(&file.id, &file.team)?))
}

/// Returns the summaries of the checkpoint with which a segment begins.
async fn summaries(
    file: &InUse,
    agent: Option<&AgentId>,
    covers: Seq,
) -> Result<FoundMessages, StoreError> {
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
        .map(|row| message(file, file.reader(row)))
        .collect()
}

/// Returns whether there is a message, or the summary of an earlier checkpoint, before the segment
/// that begins after `covers`.
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

// Rewinds a session with one statement.

const REWIND: &str = "INSERT INTO rewind (epoch, first, at, body) VALUES (?1, ?2, ?3, ?4)";

async fn rewind(file: &InUse, epoch: i64, to: Seq, by: &str) -> Result<RewindOutcome, StoreError> {
    let body = json(&event::Rewound {
        to,
        by: by.to_owned(),
    });
    let statement = query(REWIND)
        .bind(epoch)
        .bind(to)
        .bind(Timestamp::now().millis())
        .bind(body.as_str());
    let create_trigger = query(SQLITE_REWIND).persistent(false);
    file.db.execute(create_trigger).await?;
    match file.db.execute(statement).await {
        Ok(_) => {}
        Err(SqliteFault::Aborted(Abort::NoMessage)) => {
            return Err(no_message(to, &file.id));
        }
        // The answer to an earlier attempt may have been lost, so the rewind may already be carried
        // out.
        Err(SqliteFault::Aborted(_)) => {}
        Err(fault) => return Err(fault.into()),
    }
    match rewound_at(file, epoch, &body).await? {
        Some(head) => outcome(file, head).await,
        None => Err(stale_lead(&file.id)),
    }
}

/// Returns the row of this rewind if it was carried out and the orchestrator's lease has not
/// changed hands since.
async fn rewound_at(file: &InUse, epoch: i64, body: &str) -> Result<Option<Seq>, StoreError> {
    const FIND: &str = "SELECT l.seq FROM log l JOIN agents a ON a.id = l.agent_id
        WHERE l.agent_id = ?1 AND l.epoch = ?2 + 1 AND a.epoch = ?2 + 1 AND l.kind = 'rewound' AND l.body = ?3";
    let row = file
        .db
        .row(query(FIND).bind(file.lead.as_str()).bind(epoch).bind(body))
        .await?;
    row.map(|row| file.reader(&row).get("seq")).transpose()
}

async fn outcome(file: &InUse, head: Seq) -> Result<RewindOutcome, StoreError> {
    const STOPPED: &str = "SELECT body->>'id' AS id FROM log WHERE hidden_by = ?1 AND kind = 'worker_spawned' ORDER BY seq";
    let agents = file
        .db
        .rows(query("SELECT id, epoch FROM agents ORDER BY n"))
        .await?;
    let stopped = file.db.rows(query(STOPPED).bind(head)).await?;
    let agent = |row| {
        let row = file.reader(row);
        Ok::<_, StoreError>((row.parse("id")?, row.get("epoch")?))
    };
    Ok(RewindOutcome {
        head,
        agents: agents.iter().map(agent).collect::<Result<_, _>>()?,
        stopped: stopped
            .iter()
            .map(|row| file.reader(row).parse("id"))
            .collect::<Result<_, _>>()?,
    })
}
