//! Reads the inputs that a prompt may have caused, in Postgres.

use planck_common::{InputId, SessionId};

use crate::{
    StoreError, WorkRows,
    postgres::database::{Database, RowReader, reader},
    work::MOST_INPUTS,
};

/// The query for the rows, with the numbers of an agent's open and answered waits. Every row of the
/// log has the number of its agent's turn, so the sender's last row at the time tells the turn in
/// which an input was put. The running calls are those of the latest answer, which is the agent's
/// last message until they have ended. Escapes are dropped from the bodies for the reason that the
/// trigger of the waits names.
const WORK: &str = r"
SELECT i.id, i.agent_id, i.sender, i.head, i.turn, i.outcome, i.waiting, coalesce(i.accepted = p.accepted, false) AS is_root,
  coalesce(i.accepted > p.accepted, false) AS is_later, s.next_seq - 1 AS log_head, s.state,
  EXISTS (SELECT 1 FROM agents h WHERE h.session_id = $1 AND h.node_id IS NOT NULL) AS held,
  (SELECT l.turn FROM log l WHERE l.session_id = $1 AND l.agent_id = i.sender AND l.seq <= i.head ORDER BY l.seq DESC LIMIT 1) AS cause,
  a.state AS agent_state,
  CASE WHEN i.outcome IS NULL THEN (SELECT count(*) FROM waits w WHERE w.session_id = $1 AND w.agent_id = i.agent_id
    AND w.state = 'open') ELSE 0 END AS open_waits,
  CASE WHEN i.outcome IS NULL THEN (SELECT count(*) FROM waits w WHERE w.session_id = $1 AND w.agent_id = i.agent_id
    AND w.state = 'answered') ELSE 0 END AS answers,
  CASE WHEN i.outcome IS NULL AND a.state = 'executing_tools' THEN (
      WITH r AS MATERIALIZED (SELECT l.seq, l.kind, regexp_replace(l.body, '(\\[^u])|\\u[0-9A-Fa-f]{4}', '\1', 'g')::json ->> 'call_id' AS call
        FROM log l WHERE l.session_id = $1 AND l.agent_id = i.agent_id AND l.kind IN ('tool_start', 'tool_end') AND l.seq > (
          SELECT m.seq FROM log m WHERE m.session_id = $1 AND m.agent_id = i.agent_id AND m.kind = 'message' AND m.hidden_by IS NULL
          ORDER BY m.seq DESC LIMIT 1))
      SELECT count(*) FROM r c WHERE c.kind = 'tool_start'
        AND NOT EXISTS (SELECT 1 FROM r d WHERE d.seq > c.seq AND d.kind = 'tool_end' AND d.call = c.call))
    ELSE 0 END AS calls
FROM sessions s LEFT JOIN inputs p ON p.session_id = $1 AND p.id = $2
  LEFT JOIN inputs i ON i.session_id = $1 AND (i.accepted >= p.accepted OR i.outcome IS NULL)
  LEFT JOIN agents a ON a.session_id = $1 AND a.id = i.agent_id
WHERE s.id = $1
ORDER BY is_root DESC, i.outcome IS NULL DESC, i.accepted DESC LIMIT $3";

pub async fn find(
    database: &Database,
    session: &SessionId,
    input: Option<&InputId>,
) -> Result<Option<WorkRows>, StoreError> {
    let most = i64::try_from(MOST_INPUTS).unwrap_or(i64::MAX);
    let query = sqlx::query(WORK)
        .bind(session.as_str())
        .bind(input.map(InputId::as_str))
        .bind(most + 1);
    let rows = database.all(query).await?;
    let rows: Vec<RowReader<'_>> = rows.iter().map(reader).collect();
    RowReader::work(&rows, input.is_some())
}
