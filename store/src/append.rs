//! Prepares batches for both stores: merges the marks of each input, checks the data, and finds out
//! which messages a checkpoint replaces.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use planck_agent::{Entry, Mark, effect::Change, storable};
use planck_common::{
    Seq,
    event::{Checkpoint, EventKind},
    message::Custom,
};

use super::{Batch, BatchOutcome, StoreError};

/// The marks of one batch on one input, which is consumed, ended, or both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MarkRow {
    pub id: String,
    pub turn: Option<u32>,
    pub outcome: Option<String>,
    pub answer: Option<String>,
}

/// Merges the marks into one row for each input, in the order in which the inputs first occur.
pub fn mark_rows<'a>(marks: impl Iterator<Item = &'a Mark>) -> Vec<MarkRow> {
    let mut rows: Vec<MarkRow> = Vec::new();
    for mark in marks {
        let at = rows.iter().position(|row| row.id == mark.input.as_str());
        let mut row = match at {
            Some(at) => rows.remove(at),
            None => MarkRow {
                id: mark.input.to_string(),
                turn: None,
                outcome: None,
                answer: None,
            },
        };
        match &mark.change {
            Change::Consumed { turn } => row.turn = Some(*turn),
            // The column `answer` holds plain text, so NUL has to be replaced. Bodies and contents
            // are JSON, which escapes NUL.
            Change::Ended { outcome, answer } => {
                (row.outcome, row.answer) = (
                    Some(outcome.name().into()),
                    answer.clone().map(storable::text),
                );
            }
        }
        rows.insert(at.unwrap_or(rows.len()), row);
    }
    rows
}

/// The maximum number of rows in one batch, and in one statement of the SQLite store.
pub const MOST_ROWS: usize = 1_500;

/// Returns the refusal of a batch that has too many rows or contains a NUL byte, which Postgres
/// cannot store. Returns `None` for a valid batch.
pub fn refused(batch: &Batch) -> Option<BatchOutcome> {
    let rows = batch.rows();
    if rows > MOST_ROWS {
        let why = format!("{rows} rows are over the {MOST_ROWS} of one batch");
        return Some(BatchOutcome::Refused(why));
    }
    let bodies = batch.entries().map(|entry| entry.body.as_str());
    let contents = batch.puts().map(|put| put.content.as_str());
    let bad = bodies
        .chain(contents)
        .any(|text| memchr::memchr(0, text.as_bytes()).is_some());
    bad.then(|| BatchOutcome::Refused(format!("a text of agent {} holds a NUL byte", batch.agent)))
}

/// Returns an error if two batches belong to the same agent. They cannot share a statement, because
/// the `prev` of the second is known only once the first is written.
pub fn one_batch_each(batches: &[Batch]) -> Result<(), StoreError> {
    let agents: BTreeSet<_> = batches.iter().map(|batch| &batch.agent).collect();
    if agents.len() == batches.len() {
        Ok(())
    } else {
        Err(StoreError::BadRequest(
            "two batches of one agent in one append".into(),
        ))
    }
}

/// Returns the number of the last message that a checkpoint or a summary replaces, or `None` for
/// other rows.
pub fn covers(entry: &Entry) -> Option<Seq> {
    #[derive(Deserialize)]
    struct Summary {
        custom: Option<Custom>,
        #[serde(default)]
        metadata: Covers,
    }
    #[derive(Deserialize, Default)]
    struct Covers {
        covers: Option<Seq>,
    }
    if entry.kind == EventKind::Checkpoint {
        return serde_json::from_str::<Checkpoint>(&entry.body)
            .ok()
            .map(|data| data.covers);
    }
    if entry.kind != EventKind::Message || !entry.body.contains(r#""covers""#) {
        return None;
    }
    let summary: Summary = serde_json::from_str(&entry.body).ok()?;
    summary
        .metadata
        .covers
        .filter(|_| summary.custom == Some(Custom::Summary))
}
