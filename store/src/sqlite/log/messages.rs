//! Reads messages in segments between checkpoints.

use planck_common::{AgentId, Seq, command::Messages};
use serde_json::value::RawValue;
use sqlx::query;

use super::chunk;
use crate::{
    StoreError,
    page::{LOG_BYTES, LOG_ROWS},
    sqlite::{db::RowReader, files::InUse},
};

pub async fn messages(
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

fn message(file: &InUse, row: RowReader<'_>) -> Result<(Seq, Box<RawValue>), StoreError> {
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
