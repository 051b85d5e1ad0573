//! The inboxes of agents, in SQLite.

use async_trait::async_trait;
use sqlx::query;

use planck_common::{AgentId, InputId, NodeId, SessionId, Timestamp};

use super::{
    SqliteStore,
    db::{SqliteRowReader, SqliteStatement},
    files::InUse,
};
use crate::{
    AskOutcome, Inbox, InboxBounds, NewInput, PutResult, StoreError, StoredInput, TaskRecord,
    WorkRows,
    inbox::{MOST_INPUTS, UnreadAmount, check_content, check_same},
    no_sender,
};

/// Builds the query that counts the unread inputs of an agent and of its session. The query finds
/// the inputs by the index of open inputs, so its cost does not grow with the history.
macro_rules! unread {
    ($agent:literal) => {
        concat!(
            "SELECT coalesce(sum(size) FILTER (WHERE agent_id = ",
            $agent,
            "), 0) AS agent_bytes, count(*) FILTER (WHERE agent_id = ",
            $agent,
            ") AS agent_inputs, coalesce(sum(size), 0) AS session_bytes FROM (
              SELECT agent_id, octet_length(content) + coalesce(octet_length(output), 0) AS size
              FROM inputs INDEXED BY inputs_open WHERE outcome IS NULL AND turn IS NULL)"
        )
    };
}

const UNREAD: &str = unread!("?1");

/// The statement that puts an input unless the agent does not exist or is stopped, an inbox is
/// full, or the id is taken. Counting and putting are one statement, and a file has one writer at a
/// time, so concurrent puts count each other.
const PUT: &str = concat!(
    "INSERT INTO inputs (id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, output, at, head)
    SELECT ?1, t.id, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, s.next_seq - 1 FROM agents t, sessions s, (",
    unread!("?2"),
    ") u WHERE t.id = ?2 AND t.state <> 'stopped' AND u.agent_bytes + octet_length(?8) + coalesce(octet_length(?10), 0) <= ?12
      AND u.agent_inputs < ?13 AND u.session_bytes + octet_length(?8) + coalesce(octet_length(?10), 0) <= ?14 ON CONFLICT DO NOTHING
    RETURNING head, (SELECT node_id FROM agents WHERE id = ?2) AS node_id, (SELECT epoch FROM agents WHERE id = ?2) AS epoch"
);

/// The statement that puts a question. It puts nothing if the target is stopped, the asker's lease
/// has another epoch, the id is taken, the question would be nested too deeply, or the target
/// already waits, directly or indirectly, for the asker.
const ASK: &str =
    "INSERT INTO inputs (id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, output, at, head, waiting)
    SELECT ?1, t.id, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, s.next_seq - 1, 1
    FROM sessions s, agents t, agents f
    WHERE t.id = ?2 AND t.state <> 'stopped' AND f.id = ?5 AND f.epoch = ?12
      AND NOT EXISTS (WITH RECURSIVE p(a) AS (
          SELECT ?2 UNION SELECT i.agent_id FROM p JOIN inputs i ON i.sender = p.a AND i.waiting)
        SELECT 1 FROM p WHERE a = ?5)
      AND ?13 >= (WITH RECURSIVE u(a, n) AS (
          SELECT ?5, 1 UNION SELECT i.sender, u.n + 1 FROM u JOIN inputs i ON i.agent_id = u.a AND i.waiting AND u.n <= ?13)
        SELECT max(n) FROM u)
    ON CONFLICT DO NOTHING RETURNING (SELECT node_id FROM agents WHERE id = ?2) AS node_id";

/// The statement that records that the asker of an existing question waits, unless the question has
/// an outcome, would close a cycle or would be nested too deeply.
const WAIT_AGAIN: &str = "UPDATE inputs SET waiting = 1 WHERE id = ?1 AND outcome IS NULL
      AND NOT EXISTS (WITH RECURSIVE p(a) AS (
          SELECT ?2 UNION SELECT i.agent_id FROM p JOIN inputs i ON i.sender = p.a AND i.waiting)
        SELECT 1 FROM p WHERE a = ?3)
      AND ?4 >= (WITH RECURSIVE u(a, n) AS (
          SELECT ?3, 1 UNION SELECT i.sender, u.n + 1 FROM u JOIN inputs i ON i.agent_id = u.a AND i.waiting AND u.n <= ?4)
        SELECT max(n) FROM u)";

/// The statement that explains why a question was refused. It finds the path of waiting agents from
/// the target to the asker, and the depth of the asker's question.
const WHY_NOT: &str = "SELECT
    (WITH RECURSIVE p(a, path) AS (
        SELECT ?1, json_array(?1) UNION ALL
        SELECT i.agent_id, json_insert(p.path, '$[#]', i.agent_id) FROM p JOIN inputs i ON i.sender = p.a AND i.waiting
          WHERE NOT EXISTS (SELECT 1 FROM json_each(p.path) WHERE value = i.agent_id))
      SELECT path FROM p WHERE a = ?2 LIMIT 1) AS path,
    (WITH RECURSIVE u(a, n) AS (
        SELECT ?2, 1 UNION SELECT i.sender, u.n + 1 FROM u JOIN inputs i ON i.agent_id = u.a AND i.waiting AND u.n <= ?3)
      SELECT max(n) FROM u) AS depth";

/// The maximum number of attempts to put an input or a question. An attempt is repeated if the
/// statement put nothing, but the reason for that no longer applies when it is looked up.
const TRIES: u32 = 5;

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

#[async_trait]
impl Inbox for SqliteStore {
    async fn put(&self, session: &SessionId, input: NewInput) -> Result<PutResult, StoreError> {
        let file = self.file(session).await?;
        check_content(&input)?;
        for _ in 0..TRIES {
            if let Some(row) = file.db.row(put(&input, &self.inbox)).await? {
                let row = file.reader(&row);
                let node = row.parse_optional::<NodeId>("node_id")?;
                self.announce(session, &input, node.as_ref()).await?;
                return Ok(PutResult::Put {
                    head: row.get("head")?,
                    node,
                    epoch: row.get("epoch")?,
                });
            }
            if let Some(known) = known(&file, &input).await? {
                if known.is_unread() {
                    self.announce(session, &input, None).await?;
                }
                return Ok(PutResult::Known(Box::new(known)));
            }
            let target = file.agent(&input.agent).await?;
            if target.is_none_or(|target| !target.is_there()) {
                return Ok(PutResult::NotFound);
            }
            unread(&file, &input.agent)
                .await?
                .check(input.size(), &self.inbox)?;
        }
        Err(StoreError::Away(format!(
            "input {} was refused for reasons that went away",
            input.id
        )))
    }

    async fn ask(
        &self,
        session: &SessionId,
        question: NewInput,
        asker_epoch: i64,
        max_depth: u32,
    ) -> Result<AskOutcome, StoreError> {
        let file = self.file(session).await?;
        check_content(&question)?;
        let asker = question.sender.as_ref().map(|sender| sender.id.clone());
        let asker = asker.ok_or_else(no_sender)?;
        for _ in 0..TRIES {
            let asked = file
                .db
                .row(bind(ASK, &question).bind(asker_epoch).bind(max_depth))
                .await?;
            if let Some(row) = asked {
                let node = file.reader(&row).parse_optional::<NodeId>("node_id")?;
                self.announce(session, &question, node.as_ref()).await?;
                return Ok(AskOutcome::Asked { node });
            }
            if let Some(refused) = why_not(&file, &question, &asker, asker_epoch, max_depth).await?
            {
                if let AskOutcome::Known { outcome: None } = refused {
                    self.announce(session, &question, None).await?;
                }
                return Ok(refused);
            }
        }
        Err(StoreError::Away(format!(
            "question {} was refused for reasons that went away",
            question.id
        )))
    }

    async fn withdraw(&self, session: &SessionId, question: &InputId) -> Result<bool, StoreError> {
        const WITHDRAW: &str = "UPDATE inputs SET waiting = 0,
            outcome = CASE WHEN turn IS NULL AND outcome IS NULL THEN 'withdrawn' ELSE outcome END
            WHERE id = ?1 RETURNING coalesce(outcome = 'withdrawn', 0) AS left";
        let file = self.file(session).await?;
        let Some(row) = file.db.row(query(WITHDRAW).bind(question.as_str())).await? else {
            return Ok(false);
        };
        let left = file.reader(&row).get("left")?;
        if left {
            self.settled(session, &[question]).await;
        }
        Ok(left)
    }

    async fn input(
        &self,
        session: &SessionId,
        id: &InputId,
    ) -> Result<Option<StoredInput>, StoreError> {
        find_input(&self.file(session).await?, id).await
    }

    async fn open_inputs(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<StoredInput>, StoreError> {
        let file = self.file(session).await?;
        let open = query("SELECT * FROM inputs WHERE agent_id = ?1 AND outcome IS NULL ORDER BY n")
            .bind(agent.as_str());
        let rows = file.db.rows(open).await?;
        rows.iter().map(|row| file.reader(row).input()).collect()
    }

    async fn tasks(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<TaskRecord>, StoreError> {
        const TASKS: &str = "SELECT i.id, i.sender, i.sender_name, i.turn IS NOT NULL AS consumed,
            EXISTS (SELECT 1 FROM inputs r WHERE r.reply_to = i.id AND r.kind = 'response' AND r.sender = i.agent_id
              AND coalesce(r.outcome, '') <> 'rewound') AS responded
            FROM inputs i WHERE i.agent_id = ?1 AND i.kind = 'task'
              AND coalesce(i.outcome, '') NOT IN ('rewound', 'withdrawn') ORDER BY i.n";
        let file = self.file(session).await?;
        let rows = file.db.rows(query(TASKS).bind(agent.as_str())).await?;
        rows.iter().map(|row| file.reader(row).task()).collect()
    }

    async fn work(
        &self,
        session: &SessionId,
        input: Option<&InputId>,
    ) -> Result<Option<WorkRows>, StoreError> {
        work(&self.file(session).await?, input).await
    }
}

impl SqliteStore {
    /// Makes sweeps find an unread input, before the put is acknowledged. If this node holds the
    /// agent's lease, only its own sweeps need to look: if it died, those of other nodes would find
    /// the session by that lease.
    async fn announce(
        &self,
        session: &SessionId,
        input: &NewInput,
        holder: Option<&NodeId>,
    ) -> Result<(), StoreError> {
        if holder == Some(&self.node) {
            self.to_sweep().insert(session.clone());
            return Ok(());
        }
        self.index
            .pending(session, &[(&input.id, &input.agent)], Timestamp::now())
            .await
    }

    /// Removes inputs from the index. If the removal fails, a later sweep removes them.
    pub(super) async fn settled(&self, session: &SessionId, inputs: &[&InputId]) {
        if inputs.is_empty() {
            return;
        }
        if let Err(error) = self.index.consumed(session, inputs).await {
            tracing::debug!(%session, %error, "cannot remove consumed inputs from the index; the next sweep tries again");
        }
    }
}

async fn unread(file: &InUse, agent: &AgentId) -> Result<UnreadAmount, StoreError> {
    let Some(row) = file.db.row(query(UNREAD).bind(agent.to_string())).await? else {
        return Ok(UnreadAmount::default());
    };
    file.reader(&row).unread()
}

/// Returns the existing input with the id of a new one. Fails if the existing input belongs to
/// another agent or asker.
async fn known(file: &InUse, input: &NewInput) -> Result<Option<StoredInput>, StoreError> {
    let known = find_input(file, &input.id).await?;
    if let Some(known) = &known {
        check_same(known, input)?;
    }
    Ok(known)
}

async fn why_not(
    file: &InUse,
    question: &NewInput,
    asker: &AgentId,
    epoch: i64,
    max_depth: u32,
) -> Result<Option<AskOutcome>, StoreError> {
    if file
        .agent(asker)
        .await?
        .is_none_or(|asker| asker.epoch != epoch)
    {
        return Ok(Some(AskOutcome::StaleEpoch));
    }
    if let Some(known) = known(file, question).await? {
        let is_settled = known.waiting || known.outcome.is_some();
        if is_settled || wait_again(file, question, asker, max_depth).await? {
            return Ok(Some(AskOutcome::Known {
                outcome: known.outcome,
            }));
        }
    }
    let target = file.agent(&question.agent).await?;
    if target.is_none_or(|target| target.state == planck_common::command::AgentState::Stopped) {
        return Ok(Some(AskOutcome::NotFound));
    }
    let why = query(WHY_NOT)
        .bind(question.agent.as_str())
        .bind(asker.as_str())
        .bind(max_depth);
    let Some(row) = file.db.row(why).await? else {
        return Ok(None);
    };
    let row = file.reader(&row);
    if let Some(path) = row.get::<Option<&str>>("path")? {
        let path: Vec<AgentId> = serde_json::from_str(path).unwrap_or_default();
        return Ok(Some(AskOutcome::Cycle(
            std::iter::once(asker.clone()).chain(path).collect(),
        )));
    }
    let depth: u32 = row.get("depth")?;
    Ok((depth > max_depth).then_some(AskOutcome::TooDeep(depth)))
}

/// Records again that the asker of an existing question waits. Returns `false` if the question has
/// an outcome, would close a cycle or would be nested too deeply.
async fn wait_again(
    file: &InUse,
    question: &NewInput,
    asker: &AgentId,
    max_depth: u32,
) -> Result<bool, StoreError> {
    let statement = query(WAIT_AGAIN)
        .bind(question.id.as_str())
        .bind(question.agent.as_str())
        .bind(asker.as_str())
        .bind(max_depth);
    Ok(file.db.execute(statement).await? > 0)
}

async fn find_input(file: &InUse, id: &InputId) -> Result<Option<StoredInput>, StoreError> {
    let row = file
        .db
        .row(query("SELECT * FROM inputs WHERE id = ?1").bind(id.as_str()))
        .await?;
    row.map(|row| file.reader(&row).input()).transpose()
}

/// Returns the statement that puts an input without checking the bounds.
pub fn insert(input: &NewInput) -> SqliteStatement<'static> {
    put(input, &InboxBounds::NONE)
}

fn put(input: &NewInput, bounds: &InboxBounds) -> SqliteStatement<'static> {
    bind(PUT, input)
        .bind(bounds.agent_bytes)
        .bind(bounds.agent_inputs)
        .bind(bounds.session_bytes)
}

fn bind(sql: &'static str, input: &NewInput) -> SqliteStatement<'static> {
    query(sql)
        .bind(input.id.to_string())
        .bind(input.agent.to_string())
        .bind(input.kind.name())
        .bind(input.mode.name())
        .bind(input.sender.as_ref().map(|sender| sender.id.to_string()))
        .bind(input.sender_name().map(str::to_owned))
        .bind(input.reply_to.as_ref().map(ToString::to_string))
        .bind(input.content.clone())
        .bind(input.fresh)
        .bind(input.output_json())
        .bind(input.at.millis())
}

async fn work(file: &InUse, input: Option<&InputId>) -> Result<Option<WorkRows>, StoreError> {
    let most = i64::try_from(MOST_INPUTS).unwrap_or(i64::MAX);
    let statement = query(WORK).bind(input.map(InputId::as_str)).bind(most + 1);
    let rows = file.db.rows(statement).await?;
    let rows: Vec<SqliteRowReader<'_>> = rows.iter().map(|row| file.reader(row)).collect();
    SqliteRowReader::work(&rows, input.is_some())
}
