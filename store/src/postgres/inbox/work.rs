//! Reads the inputs that a prompt may have caused, in Postgres.

use planck_common::{InputId, SessionId, command::SessionState};

use crate::{
    InputReader, StoreError, WorkInput, WorkRows,
    postgres::{
        database::Database,
        rows::{Columns, outcome},
    },
    stored,
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
    let Some(first) = rows.first().map(Columns) else {
        return Ok(None);
    };
    let is_closed = first.named("state", stored::session_state)? == SessionState::Closed;
    let mut work = WorkRows {
        root: None,
        rest: Vec::with_capacity(rows.len()),
        is_cut: rows.len() > MOST_INPUTS,
        head: first.get("log_head")?,
        is_shut: is_closed && !first.get::<bool>("held")?,
    };
    for row in rows.iter().take(MOST_INPUTS) {
        let columns = Columns(row);
        if columns.get::<Option<&str>>("id")?.is_none() {
            continue;
        }
        match columns.get("is_root")? {
            true => work.root = Some(read(&columns)?),
            false => work.rest.push(read(&columns)?),
        }
    }
    Ok(Some(work).filter(|work| input.is_none() || work.root.is_some()))
}

fn read(row: &Columns<'_>) -> Result<WorkInput, StoreError> {
    let (outcome, number) = (outcome(row, "outcome")?, |column| {
        row.get::<i64>(column).map(i64::unsigned_abs)
    });
    let turn = |column| {
        let turn: Option<i32> = row.get(column)?;
        Ok::<_, StoreError>(turn.and_then(|turn| u32::try_from(turn).ok()))
    };
    let reader = match &outcome {
        None => Some(InputReader {
            state: row.named("agent_state", stored::agent_state)?,
            open_waits: number("open_waits")?,
            answers: number("answers")?,
            calls: number("calls")?,
        }),
        Some(_) => None,
    };
    Ok(WorkInput {
        id: row.parse("id")?,
        agent: row.parse("agent_id")?,
        sender: row.parse_optional("sender")?,
        cause: turn("cause")?,
        is_later: row.get("is_later")?,
        head: row.get("head")?,
        turn: turn("turn")?,
        outcome,
        waiting: row.get("waiting")?,
        reader,
    })
}
