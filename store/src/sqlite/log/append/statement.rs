//! Builds the statement that appends batches. It inserts one row into the view `append`, whose
//! trigger writes the batches. The statement's text is always the same, so SQLite compiles it once
//! for each open file.

use planck_common::{AgentId, NodeId, Seq, event::json, usage::Usage};
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::query;

use crate::{
    Batch, NewInput,
    append::{MarkRow, covers, mark_rows},
    sqlite::db::SqliteStatement,
};
use planck_agent::Entry;

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

pub fn statement(node: &NodeId, batches: &[&Batch]) -> SqliteStatement<'static> {
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
    json!({
        "id": put.id,
        "agent": put.agent,
        "kind": put.kind.name(),
        "mode": put.mode.name(),
        "sender": put.sender.as_ref().map(|sender| &sender.id),
        "sender_name": put.sender_name(),
        "reply_to": put.reply_to,
        "content": put.content,
        "fresh": u8::from(put.fresh),
        "at": put.at.millis(),
    })
}
