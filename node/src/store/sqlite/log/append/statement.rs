//! Builds the statement that appends batches.

use std::fmt::Write as _;

use planck_common::{NodeId, event::json, usage::Usage};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, query};

use super::{COLUMNS, KEPT, RETURNING};
use crate::{
    agent::Entry,
    store::{
        Batch, NewInput,
        append::{covers, mark_rows},
        sqlite::db::SqliteStatement,
    },
};

pub fn statement(node: &NodeId, batches: &[&Batch]) -> SqliteStatement<'static> {
    let count: usize = batches.iter().map(|batch| batch.entries.len().max(1)).sum();
    let node: std::sync::Arc<str> = node.as_str().into();
    let mut statement = query(AssertSqlSafe(sql(count))).persistent(count <= KEPT);
    for (n, batch) in batches.iter().enumerate() {
        let last = n + 1 == batches.len();
        let rows = batch.entries.len().max(1);
        for row in 0..rows {
            statement = bind(statement, batch, batch.entries.get(row), row == 0, &node)
                .bind(last && row + 1 == rows);
        }
    }
    statement
}

fn sql(rows: usize) -> String {
    const ROW: &str = "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
    let mut text =
        String::with_capacity(COLUMNS.len() + RETURNING.len() + 80 + rows * (ROW.len() + 1));
    let _ = write!(text, "INSERT INTO append ({COLUMNS}) VALUES {ROW}");
    for _ in 1..rows {
        let _ = write!(text, ",{ROW}");
    }
    let _ = write!(text, " RETURNING {RETURNING}");
    text
}

/// Binds all columns of a row except `last`. Values that belong to the whole batch are in its first
/// row only.
fn bind(
    statement: SqliteStatement<'static>,
    batch: &Batch,
    entry: Option<&Entry>,
    first: bool,
    node: &std::sync::Arc<str>,
) -> SqliteStatement<'static> {
    let usage = if first && entry.is_some() {
        batch.usage
    } else {
        Usage::default()
    };
    let tokens = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let puts: Vec<Value> = batch.puts.iter().map(put_row).collect();
    statement
        .bind(batch.agent.to_string())
        .bind(batch.epoch)
        .bind(first.then_some(batch.prev))
        .bind(entry.map(|entry| entry.kind.name()))
        .bind(entry.map(|entry| entry.place.turn))
        .bind(entry.map(|entry| entry.place.request))
        .bind(entry.map(|entry| entry.place.at.millis()))
        .bind(node.clone())
        .bind(entry.and_then(covers))
        .bind(entry.map(|entry| entry.body.clone()))
        .bind((first && !batch.marks.is_empty()).then(|| json(&mark_rows(&batch.marks))))
        .bind((first && !puts.is_empty()).then(|| json(&puts)))
        .bind(first.then(|| batch.state.name()))
        .bind(tokens(usage.input_tokens))
        .bind(tokens(usage.output_tokens))
        .bind(tokens(usage.cache_read_tokens))
        .bind(tokens(usage.cache_write_tokens))
        .bind(usage.cost_usd)
}

/// Returns an input as the JSON value that the trigger reads.
fn put_row(put: &NewInput) -> Value {
    let sender = put.sender.as_ref();
    json!({
        "id": put.id,
        "agent": put.agent,
        "kind": put.kind.name(),
        "mode": put.mode.name(),
        "sender": sender.map(|sender| &sender.id),
        "sender_name": sender.map(|sender| &sender.name),
        "reply_to": put.reply_to,
        "content": put.content,
        "fresh": u8::from(put.fresh),
        "at": put.at.millis(),
    })
}
