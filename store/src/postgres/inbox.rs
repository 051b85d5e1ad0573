//! The inboxes of agents, in Postgres.

use async_trait::async_trait;

use planck_common::{AgentId, InputId, SessionId};

use super::{
    PostgresStore,
    database::{Database, PgRowReader, PgStatement, reader, unknown_verdict},
    log::head,
};
use crate::{
    AskOutcome, Inbox, InboxBounds, NewInput, PutResult, StoreError, StoredInput, TaskRecord,
    WorkRows,
    inbox::{MOST_INPUTS, UnreadAmount, check_content, check_same},
    input_taken, no_sender,
};

const PUT: &str =
    "SELECT * FROM planck_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";

/// Builds a query for inputs from its `WHERE` clause. The query lists the columns, because a
/// prepared statement with `*` fails once a newer node adds a column.
macro_rules! inputs {
    ($which:literal) => {
        concat!(
            "SELECT id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, output, head, at, turn, outcome, answer, waiting ",
            "FROM inputs ",
            $which
        )
    };
}

const INPUT: &str = inputs!("WHERE session_id = $1 AND id = $2");
const OPEN_INPUTS: &str =
    inputs!("WHERE session_id = $1 AND agent_id = $2 AND outcome IS NULL ORDER BY accepted");

const ASK: &str = "SELECT * FROM planck_ask($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

const WITHDRAW: &str = "
UPDATE inputs SET waiting = false, outcome = CASE WHEN turn IS NULL AND outcome IS NULL THEN 'withdrawn' ELSE outcome END
WHERE session_id = $1 AND id = $2 RETURNING outcome IS NOT DISTINCT FROM 'withdrawn' AS withdrawn";

const TASKS: &str = "
SELECT t.id, t.sender, t.sender_name, t.turn IS NOT NULL AS consumed,
  EXISTS (SELECT 1 FROM inputs r WHERE r.session_id = $1 AND r.reply_to = t.id AND r.kind = 'response' AND r.sender = $2
    AND r.outcome IS DISTINCT FROM 'rewound') AS responded
FROM inputs t WHERE t.session_id = $1 AND t.agent_id = $2 AND t.kind = 'task'
  AND (t.outcome IS NULL OR t.outcome NOT IN ('withdrawn', 'rewound')) ORDER BY t.accepted";

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

#[async_trait]
impl Inbox for PostgresStore {
    async fn put(&self, session: &SessionId, input: NewInput) -> Result<PutResult, StoreError> {
        check_content(&input)?;
        let statement = bind(PUT, session, &input)
            .bind(self.inbox.agent_bytes)
            .bind(self.inbox.agent_inputs)
            .bind(self.inbox.session_bytes);
        let turn = self.database.turn(session).await?;
        let row = self.database.one(statement).await;
        drop(turn);
        let row = row?;
        let row = reader(&row);
        match row.get::<&str>("verdict")? {
            "put" => Ok(PutResult::Put {
                head: row.number("head")?,
                node: row.parse_optional("node_id")?,
                epoch: row.number("epoch")?,
            }),
            "full" => match known(&self.database, session, &input).await? {
                PutResult::NotFound => Err(full(row.unread()?, &input, &self.inbox)),
                known @ (PutResult::Known(_) | PutResult::Put { .. }) => Ok(known),
            },
            "known" | "gone" => known(&self.database, session, &input).await,
            other => Err(unknown_verdict(other)),
        }
    }

    async fn ask(
        &self,
        session: &SessionId,
        question: NewInput,
        asker_epoch: i64,
        max_depth: u32,
    ) -> Result<AskOutcome, StoreError> {
        check_content(&question)?;
        let Some(asker) = &question.sender else {
            return Err(no_sender());
        };
        let statement = sqlx::query(ASK)
            .bind(session.as_str())
            .bind(question.id.as_str())
            .bind(asker.id.as_str())
            .bind(asker_epoch)
            .bind(question.agent.as_str())
            .bind(asker.name.as_str())
            .bind(question.mode.name())
            .bind(question.content.as_str())
            .bind(question.fresh)
            .bind(question.output_json())
            .bind(question.at.millis())
            .bind(i32::try_from(max_depth).unwrap_or(i32::MAX));
        let turn = self.database.turn(session).await?;
        let row = self.database.one(statement).await;
        drop(turn);
        let row = row?;
        asked(&question, reader(&row))
    }

    async fn withdraw(&self, session: &SessionId, question: &InputId) -> Result<bool, StoreError> {
        let row = self
            .database
            .optional(
                sqlx::query(WITHDRAW)
                    .bind(session.as_str())
                    .bind(question.as_str()),
            )
            .await?;
        row.map_or(Ok(false), |row| reader(&row).get("withdrawn"))
    }

    async fn input(
        &self,
        session: &SessionId,
        id: &InputId,
    ) -> Result<Option<StoredInput>, StoreError> {
        input(&self.database, session, id).await
    }

    async fn open_inputs(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<StoredInput>, StoreError> {
        let found = self
            .database
            .all(
                sqlx::query(OPEN_INPUTS)
                    .bind(session.as_str())
                    .bind(agent.as_str()),
            )
            .await?;
        found.iter().map(|row| reader(row).input()).collect()
    }

    async fn tasks(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<TaskRecord>, StoreError> {
        let found = self
            .database
            .all(
                sqlx::query(TASKS)
                    .bind(session.as_str())
                    .bind(agent.as_str()),
            )
            .await?;
        found.iter().map(|row| reader(row).task()).collect()
    }

    async fn work(
        &self,
        session: &SessionId,
        input: Option<&InputId>,
    ) -> Result<Option<WorkRows>, StoreError> {
        work(&self.database, session, input).await
    }
}

fn full(unread: UnreadAmount, input: &NewInput, bounds: &InboxBounds) -> StoreError {
    match unread.check(input.size(), bounds) {
        Err(full) => full,
        Ok(()) => StoreError::Broken("the database calls an inbox full that is not".into()),
    }
}

fn bind<'q>(sql: &'static str, session: &'q SessionId, input: &'q NewInput) -> PgStatement<'q> {
    sqlx::query(sql)
        .bind(session.as_str())
        .bind(input.id.as_str())
        .bind(input.agent.as_str())
        .bind(input.kind.name())
        .bind(input.mode.name())
        .bind(input.sender.as_ref().map(|sender| sender.id.as_str()))
        .bind(input.sender_name())
        .bind(input.reply_to.as_ref().map(|to| to.as_str()))
        .bind(input.content.as_str())
        .bind(input.fresh)
        .bind(input.output_json())
        .bind(input.at.millis())
}

/// Returns the existing input with the id of a new one, whose agent may be stopped by now. If there
/// is no such input, returns `NotFound`, or an error if the session does not exist.
async fn known(
    database: &Database,
    session: &SessionId,
    input: &NewInput,
) -> Result<PutResult, StoreError> {
    match self::input(database, session, &input.id).await? {
        Some(known) => {
            check_same(&known, input)?;
            Ok(PutResult::Known(Box::new(known)))
        }
        None => head(database, session).await.map(|_| PutResult::NotFound),
    }
}

fn asked(question: &NewInput, row: PgRowReader<'_>) -> Result<AskOutcome, StoreError> {
    Ok(match row.get::<&str>("verdict")? {
        "asked" => AskOutcome::Asked {
            node: row.parse_optional("node")?,
        },
        "known" => AskOutcome::Known {
            outcome: row.outcome("detail")?,
        },
        "taken" => return Err(input_taken(&question.id)),
        "not_found" => AskOutcome::NotFound,
        "cycle" => AskOutcome::Cycle(path(row)?),
        "too_deep" => AskOutcome::TooDeep(row.small("depth")?),
        "stale_epoch" => AskOutcome::StaleEpoch,
        other => {
            return Err(unknown_verdict(other));
        }
    })
}

fn path(row: PgRowReader<'_>) -> Result<Vec<AgentId>, StoreError> {
    let ids: Vec<String> = row.get::<Option<_>>("path")?.unwrap_or_default();
    Ok(ids
        .iter()
        .filter_map(|id| AgentId::parse(id).ok())
        .collect())
}

async fn input(
    database: &Database,
    session: &SessionId,
    id: &InputId,
) -> Result<Option<StoredInput>, StoreError> {
    let statement = sqlx::query(INPUT).bind(session.as_str()).bind(id.as_str());
    database
        .optional(statement)
        .await?
        .map(|row| reader(&row).input())
        .transpose()
}

async fn work(
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
    let rows: Vec<PgRowReader<'_>> = rows.iter().map(reader).collect();
    PgRowReader::work(&rows, input.is_some())
}
