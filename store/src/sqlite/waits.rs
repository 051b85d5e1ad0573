//! The waits of agents, in SQLite.

pub mod hints;
mod listing;

use async_trait::async_trait;
use planck_common::{
    AgentId, CallId, SessionId, Timestamp,
    command::{ListWaits, WaitRow, Waits as WaitPage},
    event::json,
    wait::WaitAnswer,
};
use sqlx::query;

use super::{SqliteStore, db::RowReader, files::InUse, index::WaitHint};
use crate::{
    AnswerOutcome, SessionRule, StoreError, Waits,
    waits::{WaitAndAnswer, session_rule},
};

/// Builds a query for waits from its `WHERE` clause.
macro_rules! waits {
    ($which:literal) => {
        concat!(
            "SELECT w.id, w.agent_id, w.seq, w.state, w.opened_at, w.answer, l.body, a.state = 'stopped' AS stopped
            FROM waits w JOIN log l ON l.seq = w.seq JOIN agents a ON a.id = w.agent_id ",
            $which
        )
    };
}

const WAIT: &str = waits!("WHERE w.id = ?1");

/// The query for the waits that may have added a rule. It searches the answers as text, so that it
/// reads few of them.
const RULES: &str = waits!(
    r#"WHERE w.state IN ('answered', 'closed') AND instr(w.answer, '"scope":"session"') AND l.hidden_by IS NULL ORDER BY w.seq"#
);

const ANSWER: &str = "UPDATE waits SET state = 'answered', answer = ?3 WHERE id = ?1 AND digest = ?2 AND state = 'open'
      AND (expires_at IS NULL OR expires_at > CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER))
      AND EXISTS (SELECT 1 FROM agents a WHERE a.id = waits.agent_id AND a.state <> 'stopped')
    RETURNING agent_id, (SELECT a.node_id FROM agents a WHERE a.id = waits.agent_id) AS node_id";

#[async_trait]
impl Waits for SqliteStore {
    async fn waits(
        &self,
        session: Option<&SessionId>,
        filter: &ListWaits,
    ) -> Result<WaitPage, StoreError> {
        listing::waits(self, session, filter).await
    }

    async fn wait(&self, session: &SessionId, id: &CallId) -> Result<Option<WaitRow>, StoreError> {
        let Some(file) = self.file_if_any(session).await? else {
            return Ok(None);
        };
        Ok(find(&file, id).await?.map(|found| found.wait.0))
    }

    /// Stores an answer. The index is told first, so that a sweep finds the answer even if the
    /// process ends right after the file has it.
    async fn answer(
        &self,
        session: &SessionId,
        id: &CallId,
        digest: &str,
        answer: &WaitAnswer,
    ) -> Result<AnswerOutcome, StoreError> {
        const OPEN: &str = "SELECT opened_at FROM waits WHERE id = ?1 AND state = 'open'";
        let Some(file) = self.file_if_any(session).await? else {
            return Ok(AnswerOutcome::NotFound);
        };
        if let Some(row) = file.db.row(query(OPEN).bind(id.as_str())).await? {
            let hint = WaitHint {
                id: id.clone(),
                opened_at: file.reader(&row).timestamp("opened_at")?,
                due: Some(0),
            };
            self.index
                .announce_waits(session, &[hint], Timestamp::now())
                .await?;
            let statement = query(ANSWER)
                .bind(id.as_str())
                .bind(digest)
                .bind(json(answer));
            if let Some(row) = file.db.row(statement).await? {
                let row = file.reader(&row);
                return Ok(AnswerOutcome::Answered {
                    agent: row.parse("agent_id")?,
                    node: row.parse_optional("node_id")?,
                });
            }
        }
        let found = find(&file, id).await?.filter(|found| !found.is_stopped);
        Ok(found.map_or(AnswerOutcome::NotFound, |found| {
            let (row, answer) = found.wait;
            AnswerOutcome::Refused {
                row: Box::new(row),
                answer: answer.map(Box::new),
            }
        }))
    }

    async fn answers(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<(CallId, WaitAnswer)>, StoreError> {
        const ANSWERS: &str = "SELECT id, answer, opened_at, expires_at FROM waits
            WHERE agent_id = ?1 AND state IN ('open', 'answered') AND state = 'answered' ORDER BY seq";
        let Some(file) = self.file_if_any(session).await? else {
            return Ok(vec![]);
        };
        let rows = file.db.rows(query(ANSWERS).bind(agent.as_str())).await?;
        rows.iter().map(|row| file.reader(row).answer()).collect()
    }

    async fn session_rules(&self, session: &SessionId) -> Result<Vec<SessionRule>, StoreError> {
        let Some(file) = self.file_if_any(session).await? else {
            return Ok(vec![]);
        };
        let rows = file.db.rows(query(RULES)).await?;
        let found: Vec<FoundWait> = rows
            .iter()
            .map(|row| found(&file, file.reader(row)))
            .collect::<Result<_, _>>()?;
        let rules = found.into_iter().map(|found| session_rule(found.wait));
        Ok(rules.flatten().collect())
    }

    async fn expire_waits(&self) -> Result<u64, StoreError> {
        hints::expire(self).await
    }
}

/// A wait in a session's file.
struct FoundWait {
    wait: WaitAndAnswer,
    is_stopped: bool,
    /// The bytes of the body and the answer.
    size: usize,
}

async fn find(file: &InUse, id: &CallId) -> Result<Option<FoundWait>, StoreError> {
    let row = file.db.row(query(WAIT).bind(id.as_str())).await?;
    row.map(|row| found(file, file.reader(&row))).transpose()
}

fn found(file: &InUse, row: RowReader<'_>) -> Result<FoundWait, StoreError> {
    let (body, answer): (&str, Option<&str>) = (row.get("body")?, row.get("answer")?);
    Ok(FoundWait {
        wait: row.wait(&file.id)?,
        is_stopped: row.get("stopped")?,
        size: body.len() + answer.map_or(0, str::len),
    })
}
