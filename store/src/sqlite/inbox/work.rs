//! Reads the inputs that a prompt may have caused, in SQLite.

use planck_common::InputId;
use sqlx::query;

use crate::{
    StoreError, WorkRows,
    sqlite::{db::RowReader, files::InUse},
    work::MOST_INPUTS,
};

/// The query for the rows. Every row of the log has the number of its agent's turn, so the sender's
/// last row at the time tells the turn in which an input was put. The running calls are those of the
/// latest answer, which is the agent's last message until they have ended.
const WORK: &str = "
SELECT i.id, i.agent_id, i.sender, i.head, i.turn, i.outcome, i.waiting, coalesce(i.n = p.n, 0) AS is_root, coalesce(i.n > p.n, 0) AS is_later,
  s.next_seq - 1 AS log_head,
  s.state, EXISTS (SELECT 1 FROM agents WHERE node_id IS NOT NULL) AS held,
  (SELECT l.turn FROM log l WHERE l.agent_id = i.sender AND l.seq <= i.head ORDER BY l.seq DESC LIMIT 1) AS cause,
  a.state AS agent_state,
  CASE WHEN i.outcome IS NULL THEN (SELECT count(*) FROM waits w WHERE w.agent_id = i.agent_id AND w.state = 'open')
    ELSE 0 END AS open_waits,
  CASE WHEN i.outcome IS NULL THEN (SELECT count(*) FROM waits w WHERE w.agent_id = i.agent_id AND w.state = 'answered')
    ELSE 0 END AS answers,
  CASE WHEN i.outcome IS NULL AND a.state = 'executing_tools' THEN (SELECT count(*) FROM log c
      WHERE c.agent_id = i.agent_id AND c.kind = 'tool_start' AND c.seq > (SELECT m.seq FROM log m
        WHERE m.agent_id = i.agent_id AND m.kind = 'message' AND m.hidden_by IS NULL ORDER BY m.seq DESC LIMIT 1)
      AND NOT EXISTS (SELECT 1 FROM log d WHERE d.agent_id = c.agent_id AND d.seq > c.seq AND d.kind = 'tool_end'
        AND d.body->>'call_id' = c.body->>'call_id'))
    ELSE 0 END AS calls
FROM sessions s LEFT JOIN inputs p ON p.id = ?1 LEFT JOIN inputs i ON i.n >= p.n OR i.outcome IS NULL
  LEFT JOIN agents a ON a.id = i.agent_id
ORDER BY is_root DESC, i.outcome IS NULL DESC, i.n DESC LIMIT ?2";

pub async fn find(file: &InUse, input: Option<&InputId>) -> Result<Option<WorkRows>, StoreError> {
    let most = i64::try_from(MOST_INPUTS).unwrap_or(i64::MAX);
    let statement = query(WORK).bind(input.map(InputId::as_str)).bind(most + 1);
    let rows = file.db.rows(statement).await?;
    let rows: Vec<RowReader<'_>> = rows.iter().map(|row| file.reader(row)).collect();
    RowReader::work(&rows, input.is_some())
}
