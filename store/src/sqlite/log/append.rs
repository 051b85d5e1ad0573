//! Appends the batches of a session with as few statements as possible. If the file refuses a
//! statement, each of its batches gets its own statement.

use serde::Serialize;
use serde_json::Value;
use sqlx::{query, sqlite::SqliteRow};

use planck_agent::Entry;
use planck_common::{
    AgentId, InputId, NodeId, Seq, SessionId, Timestamp, event::json, usage::Usage,
};

use crate::{
    Appended, Batch, BatchOutcome, NewInput, StoreError,
    append::{MOST_ROWS, MarkRow, covers, mark_rows, one_batch_each, refused},
    sqlite::{
        SqliteStore, db::SqliteStatement, fault::SqliteFault, files::InUse, waits::announce_waits,
    },
};

pub async fn append(
    store: &SqliteStore,
    session: &SessionId,
    node: &NodeId,
    batches: &[Batch],
) -> Result<Appended, StoreError> {
    one_batch_each(batches)?;
    let file = store.file(session).await?;
    announce_puts(store, session, batches).await?;
    announce_waits(store, session, batches).await?;
    let mut outcomes: Vec<Option<BatchOutcome>> = batches.iter().map(refused).collect();
    let mut totals = None;
    for (start, count) in statements(batches, &outcomes) {
        let part: Vec<&Batch> = batches.iter().skip(start).take(count).collect();
        let (done, session) = write(&file, node, &part).await?;
        totals = session;
        for (slot, outcome) in outcomes.iter_mut().skip(start).zip(done) {
            *slot = Some(outcome);
        }
    }
    let totals = match totals {
        Some(totals) => totals,
        None => session_totals(&file).await?,
    };
    let outcomes: Vec<BatchOutcome> = outcomes.into_iter().flatten().collect();
    store
        .settled(
            session,
            &store.index.announced_here(&settled(batches, &outcomes)),
        )
        .await;
    Ok(Appended {
        batches: outcomes,
        session: totals,
    })
}

async fn announce_puts(
    store: &SqliteStore,
    session: &SessionId,
    batches: &[Batch],
) -> Result<(), StoreError> {
    let puts: Vec<(&InputId, &AgentId)> = batches
        .iter()
        .flat_map(Batch::puts)
        .map(|put| (&put.id, &put.agent))
        .collect();
    if puts.is_empty() {
        return Ok(());
    }
    store.index.pending(session, &puts, Timestamp::now()).await
}

/// Groups consecutive batches that are not refused into statements. Returns the index of the first
/// batch of each statement, and the number of its batches.
fn statements(batches: &[Batch], refused: &[Option<BatchOutcome>]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = vec![];
    let (mut rows, mut open) = (0, false);
    for (n, (batch, refused)) in batches.iter().zip(refused).enumerate() {
        let more = batch.rows().max(1);
        if refused.is_some() {
            open = false;
            continue;
        }
        match runs.last_mut().filter(|_| open && rows + more <= MOST_ROWS) {
            Some((_, count)) => (*count, rows) = (*count + 1, rows + more),
            None => {
                runs.push((n, 1));
                (rows, open) = (more, true);
            }
        }
    }
    runs
}

/// Returns the inputs that the written batches consumed or ended, which therefore need no entry in
/// the index.
fn settled<'a>(batches: &'a [Batch], outcomes: &[BatchOutcome]) -> Vec<&'a InputId> {
    let written = batches
        .iter()
        .zip(outcomes)
        .filter(|(_, outcome)| matches!(outcome, BatchOutcome::Written(_)));
    written
        .flat_map(|(batch, _)| batch.marks())
        .map(|mark| &mark.input)
        .collect()
}

/// Writes batches with one statement, or with one each if the file refuses that statement. Returns
/// their outcomes, and the session's totals if the one statement was carried out.
async fn write(
    file: &InUse,
    node: &NodeId,
    batches: &[&Batch],
) -> Result<(Vec<BatchOutcome>, Option<Usage>), StoreError> {
    match file.db.rows(statement(node, batches)).await {
        Ok(rows) => written(file, batches, &rows),
        Err(SqliteFault::Store(error)) => Err(error),
        Err(fault @ (SqliteFault::Missing(_) | SqliteFault::Damaged(_))) => Err(fault.into()),
        Err(fault @ (SqliteFault::Aborted(_) | SqliteFault::Refused(_))) => match batches {
            [batch] => Ok((vec![why_not(file, batch, fault).await?], None)),
            _several => {
                let mut outcomes = Vec::with_capacity(batches.len());
                for batch in batches {
                    let (one, _) = Box::pin(write(file, node, std::slice::from_ref(batch))).await?;
                    outcomes.extend(one);
                }
                Ok((outcomes, None))
            }
        },
    }
}

/// Returns the outcomes of batches that one statement wrote, and the session's totals.
fn written(
    file: &InUse,
    batches: &[&Batch],
    rows: &[SqliteRow],
) -> Result<(Vec<BatchOutcome>, Option<Usage>), StoreError> {
    let row = rows
        .first()
        .ok_or_else(|| StoreError::Broken("an append returned no row".into()))?;
    let row = file.reader(row);
    let count: usize = batches.iter().map(|batch| batch.rows()).sum();
    let mut next = row.number("head")? + 1 - Seq::try_from(count).unwrap_or(Seq::MAX);
    let mut outcomes = Vec::with_capacity(batches.len());
    for batch in batches {
        let first = next;
        next += Seq::try_from(batch.rows()).unwrap_or(Seq::MAX);
        outcomes.push(BatchOutcome::Written((first..next).collect()));
    }
    Ok((outcomes, Some(row.usage()?)))
}

async fn session_totals(file: &InUse) -> Result<Usage, StoreError> {
    let row = file.db.row(query("SELECT * FROM sessions")).await?;
    row.map_or(Ok(Usage::default()), |row| file.reader(&row).usage())
}

/// Returns the outcome of a batch whose statement the file refused. The rows or marks of the batch
/// may already be written, its epoch or `prev` may be stale, an input may be gone, or its data may
/// be invalid.
async fn why_not(
    file: &InUse,
    batch: &Batch,
    fault: SqliteFault,
) -> Result<BatchOutcome, StoreError> {
    if let Some(seqs) = in_the_log(file, batch).await? {
        return Ok(BatchOutcome::Written(seqs));
    }
    if !holds(file, batch).await? {
        return Ok(BatchOutcome::StaleEpoch);
    }
    let marks = mark_rows(batch.marks());
    if batch.rows() == 0 && !marks.is_empty() && already_marked(file, batch, &marks).await? {
        return Ok(BatchOutcome::Written(vec![]));
    }
    let gone = gone(file, batch, &marks).await?;
    if !gone.is_empty() {
        return Ok(BatchOutcome::InputsGone(gone));
    }
    match fault {
        SqliteFault::Refused(why) => Ok(BatchOutcome::Refused(why)),
        SqliteFault::Aborted(_)
        | SqliteFault::Missing(_)
        | SqliteFault::Damaged(_)
        | SqliteFault::Store(_) => Err(StoreError::Away(format!(
            "a batch of {} was refused for reasons that went away",
            batch.agent
        ))),
    }
}

/// Returns the row numbers of a batch if the log already has the same rows, written under the same
/// epoch and after the same row.
async fn in_the_log(file: &InUse, batch: &Batch) -> Result<Option<Vec<Seq>>, StoreError> {
    const WRITTEN: &str = "SELECT seq, prev, kind, body FROM log WHERE agent_id = ?1 AND epoch = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4";
    let count = batch.rows();
    if count == 0 {
        return Ok(None);
    }
    let written = query(WRITTEN)
        .bind(batch.agent.as_str())
        .bind(batch.epoch)
        .bind(batch.prev)
        .bind(i64::try_from(count).unwrap_or(i64::MAX));
    let rows = file.db.rows(written).await?;
    let (mut seqs, mut prev) = (Vec::with_capacity(count), batch.prev);
    for (row, entry) in rows.iter().zip(batch.entries()) {
        let row = file.reader(row);
        let same = row.get::<Seq>("prev")? == prev
            && row.get::<&str>("kind")? == entry.kind.name()
            && row.get::<&str>("body")? == entry.body;
        if !same {
            return Ok(None);
        }
        prev = row.number("seq")?;
        seqs.push(prev);
    }
    Ok((seqs.len() == count).then_some(seqs))
}

async fn holds(file: &InUse, batch: &Batch) -> Result<bool, StoreError> {
    let lease = query("SELECT 1 FROM agents WHERE id = ?1 AND epoch = ?2 AND last_seq = ?3");
    Ok(file
        .db
        .row(
            lease
                .bind(batch.agent.as_str())
                .bind(batch.epoch)
                .bind(batch.prev),
        )
        .await?
        .is_some())
}

async fn gone(file: &InUse, batch: &Batch, marks: &[MarkRow]) -> Result<Vec<InputId>, StoreError> {
    const GONE: &str = "SELECT m.value->>'id' AS id FROM json_each(?1) m LEFT JOIN inputs i
        ON i.id = m.value->>'id' AND i.agent_id = ?2 AND i.outcome IS NULL AND (m.value->>'turn' IS NULL OR i.turn IS NULL)
        WHERE i.id IS NULL ORDER BY m.key";
    let rows = file
        .db
        .rows(query(GONE).bind(json(&marks)).bind(batch.agent.as_str()))
        .await?;
    rows.iter()
        .map(|row| file.reader(row).parse::<InputId>("id"))
        .collect()
}

/// Returns whether all marks of a batch without rows were already made.
async fn already_marked(
    file: &InUse,
    batch: &Batch,
    marks: &[MarkRow],
) -> Result<bool, StoreError> {
    const OTHERS: &str = "SELECT 1 FROM json_each(?1) m LEFT JOIN inputs i ON i.id = m.value->>'id' AND i.agent_id = ?2
        AND (m.value->>'turn' IS NULL OR i.turn = m.value->>'turn')
        AND i.outcome IS m.value->>'outcome' AND i.answer IS m.value->>'answer'
        WHERE i.id IS NULL";
    Ok(file
        .db
        .row(query(OTHERS).bind(json(&marks)).bind(batch.agent.as_str()))
        .await?
        .is_none())
}

// Builds the statement that appends batches. It inserts one row into the view `append`, whose
// trigger writes the batches. The statement's text is always the same, so SQLite compiles it once
// for each open file.

/// The subqueries refer to the inserted row. Otherwise SQLite would compute them before the trigger
/// runs.
const APPEND: &str = "INSERT INTO append (batches, rows, bodies, marks, puts, node_id, count, at,
      input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
    RETURNING (SELECT next_seq - 1 FROM sessions WHERE append.count IS NOT NULL) AS head,
      (SELECT input_tokens FROM sessions WHERE append.count IS NOT NULL) AS input_tokens,
      (SELECT output_tokens FROM sessions WHERE append.count IS NOT NULL) AS output_tokens,
      (SELECT cache_read_tokens FROM sessions WHERE append.count IS NOT NULL) AS cache_read_tokens,
      (SELECT cache_write_tokens FROM sessions WHERE append.count IS NOT NULL) AS cache_write_tokens,
      (SELECT cost_usd FROM sessions WHERE append.count IS NOT NULL) AS cost_usd";

/// A batch, in the order in which the trigger reads its fields.
#[derive(Serialize)]
struct BatchFields<'a>(
    &'a AgentId,
    /// The epoch of the agent's lease.
    i64,
    /// The agent's last row before the batch.
    Seq,
    /// The index of the batch's last row among all rows, if it has rows.
    Option<usize>,
    /// The agent's new state.
    &'static str,
    /// Input, output, cache read and cache write tokens.
    i64,
    i64,
    i64,
    i64,
    /// The cost in US dollars.
    f64,
);

/// A row of the log, in the order in which the trigger reads its fields.
#[derive(Serialize)]
struct RowFields<'a>(
    &'a AgentId,
    /// Whether this is the first row of its batch.
    bool,
    &'static str,
    u32,
    u32,
    i64,
    /// The last message that the row replaces, if it is a checkpoint or a summary.
    Option<Seq>,
    /// The offset of the body in `bodies`, from 1, and its length in bytes.
    usize,
    usize,
);

#[derive(Serialize)]
struct AgentMark<'a> {
    agent: &'a AgentId,
    #[serde(flatten)]
    mark: MarkRow,
}

fn statement(node: &NodeId, batches: &[&Batch]) -> SqliteStatement<'static> {
    let (mut rows, mut bodies, mut usage) = (Vec::new(), Vec::new(), Usage::default());
    let mut fields = Vec::with_capacity(batches.len());
    for batch in batches {
        for (n, entry) in batch.entries().enumerate() {
            rows.push(row(batch, entry, n == 0, bodies.len() + 1));
            bodies.extend_from_slice(entry.body.as_bytes());
        }
        let used = batch.usage();
        usage += used;
        let last = (batch.rows() > 0).then(|| rows.len() - 1);
        fields.push(batch_fields(batch, last, used));
    }
    let marks: Vec<AgentMark<'_>> = batches.iter().flat_map(|batch| marks(batch)).collect();
    let puts = batches.iter().flat_map(|batch| batch.puts()).map(put_row);
    let puts: Vec<Value> = puts.collect();
    let times = batches.iter().flat_map(|batch| batch.entries());
    let latest = times.map(|entry| entry.place.at.millis()).max();
    query(APPEND)
        .bind(json(&fields))
        .bind(json(&rows))
        .bind(bodies)
        .bind((!marks.is_empty()).then(|| json(&marks)))
        .bind((!puts.is_empty()).then(|| json(&puts)))
        .bind(node.to_string())
        .bind(i64::try_from(rows.len()).unwrap_or(i64::MAX))
        .bind(latest)
        .bind(tokens(usage.input_tokens))
        .bind(tokens(usage.output_tokens))
        .bind(tokens(usage.cache_read_tokens))
        .bind(tokens(usage.cache_write_tokens))
        .bind(usage.cost_usd)
}

fn batch_fields(batch: &Batch, last: Option<usize>, used: Usage) -> BatchFields<'_> {
    BatchFields(
        &batch.agent,
        batch.epoch,
        batch.prev,
        last,
        batch.state().name(),
        tokens(used.input_tokens),
        tokens(used.output_tokens),
        tokens(used.cache_read_tokens),
        tokens(used.cache_write_tokens),
        used.cost_usd,
    )
}

fn row<'a>(batch: &'a Batch, entry: &Entry, first: bool, offset: usize) -> RowFields<'a> {
    RowFields(
        &batch.agent,
        first,
        entry.kind.name(),
        entry.place.turn,
        entry.place.request,
        entry.place.at.millis(),
        covers(entry),
        offset,
        entry.body.len(),
    )
}

fn marks(batch: &Batch) -> impl Iterator<Item = AgentMark<'_>> {
    let agent = &batch.agent;
    mark_rows(batch.marks())
        .into_iter()
        .map(move |mark| AgentMark { agent, mark })
}

fn tokens(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns an input as the JSON value that the trigger reads.
fn put_row(put: &NewInput) -> Value {
    serde_json::json!({
        "id": put.id,
        "agent": put.agent,
        "kind": put.kind.name(),
        "mode": put.mode.name(),
        "sender": put.sender.as_ref().map(|sender| &sender.id),
        "sender_name": put.sender_name(),
        "reply_to": put.reply_to,
        "content": put.content,
        "fresh": u8::from(put.fresh),
        "output": put.output_json(),
        "at": put.at.millis(),
    })
}
