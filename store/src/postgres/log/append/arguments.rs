//! Converts batches to the arrays that the statement of an append unnests: writers, rows, marks and
//! inputs.

use planck_common::{AgentId, usage::Usage};

use crate::{
    Batch, NewInput,
    append::{MarkRow, covers, mark_rows},
    postgres::database::PgStatement,
};
use planck_agent::Entry;

/// Returns one value for each item, in order.
pub fn column<'a, T, V>(items: &'a [T], value: impl Fn(&'a T) -> V) -> Vec<V> {
    items.iter().map(value).collect()
}

pub fn entries(batch: &Batch) -> i64 {
    i64::try_from(batch.rows()).unwrap_or(i64::MAX)
}

pub fn bind<'q>(statement: PgStatement<'q>, batches: &[&Batch]) -> PgStatement<'q> {
    let statement = bind_writers(statement, batches);
    let statement = bind_rows(statement, &of_agents(batches, Batch::entries));
    let statement = bind_marks(
        statement,
        &of_agents(batches, |batch| mark_rows(batch.marks())),
    );
    bind_puts(statement, &of_agents(batches, Batch::puts))
}

/// Returns the items of one kind from all batches, each with the agent of its batch.
fn of_agents<'a, T, I: IntoIterator<Item = T>>(
    batches: &[&'a Batch],
    part: impl Fn(&'a Batch) -> I,
) -> Vec<(&'a AgentId, T)> {
    batches
        .iter()
        .flat_map(|batch| part(batch).into_iter().map(|item| (&batch.agent, item)))
        .collect()
}

fn bind_writers<'q>(statement: PgStatement<'q>, batches: &[&Batch]) -> PgStatement<'q> {
    let usage: Vec<Usage> = batches.iter().map(|batch| batch.usage()).collect();
    let tokens = |of: fn(&Usage) -> u64| column(&usage, |usage| clamp(of(usage)));
    statement
        .bind(column(batches, |batch| batch.agent.as_str()))
        .bind(column(batches, |batch| batch.epoch))
        .bind(column(batches, |batch| batch.prev))
        .bind(column(batches, |batch| batch.state().name()))
        .bind(column(batches, |batch| entries(batch)))
        .bind(tokens(|usage| usage.input_tokens))
        .bind(tokens(|usage| usage.output_tokens))
        .bind(tokens(|usage| usage.cache_read_tokens))
        .bind(tokens(|usage| usage.cache_write_tokens))
        .bind(column(&usage, |usage| usage.cost_usd))
}

fn clamp(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

fn number(of: u32) -> i32 {
    i32::try_from(of).unwrap_or(i32::MAX)
}

fn bind_rows<'q>(statement: PgStatement<'q>, rows: &[(&AgentId, &Entry)]) -> PgStatement<'q> {
    statement
        .bind(column(rows, |(agent, _)| agent.as_str()))
        .bind(column(rows, |(_, entry)| entry.kind.name()))
        .bind(column(rows, |(_, entry)| number(entry.place.turn)))
        .bind(column(rows, |(_, entry)| number(entry.place.request)))
        .bind(column(rows, |(_, entry)| entry.place.at.millis()))
        .bind(column(rows, |(_, entry)| covers(entry)))
        .bind(column(rows, |(_, entry)| entry.body.as_str()))
}

fn bind_marks<'q>(statement: PgStatement<'q>, marks: &[(&AgentId, MarkRow)]) -> PgStatement<'q> {
    statement
        .bind(column(marks, |(agent, _)| agent.as_str()))
        .bind(column(marks, |(_, mark)| mark.id.as_str()))
        .bind(column(marks, |(_, mark)| mark.turn.map(number)))
        .bind(column(marks, |(_, mark)| mark.outcome.as_deref()))
        .bind(column(marks, |(_, mark)| mark.answer.as_deref()))
}

fn bind_puts<'q>(statement: PgStatement<'q>, puts: &[(&AgentId, &NewInput)]) -> PgStatement<'q> {
    let statement = statement
        .bind(column(puts, |(writer, _)| writer.as_str()))
        .bind(column(puts, |(_, put)| put.id.as_str()))
        .bind(column(puts, |(_, put)| put.agent.as_str()))
        .bind(column(puts, |(_, put)| put.kind.name()))
        .bind(column(puts, |(_, put)| put.mode.name()))
        .bind(column(puts, |(_, put)| {
            put.sender.as_ref().map(|sender| sender.id.as_str())
        }));
    statement
        .bind(column(puts, |(_, put)| put.sender_name()))
        .bind(column(puts, |(_, put)| {
            put.reply_to.as_ref().map(|to| to.as_str())
        }))
        .bind(column(puts, |(_, put)| put.content.as_str()))
        .bind(column(puts, |(_, put)| put.fresh))
        .bind(column(puts, |(_, put)| put.at.millis()))
}
