//! Appends batches of several agents with one statement. Each batch is written completely or not at
//! all.

use planck_agent::Entry;
use planck_common::{AgentId, InputId, NodeId, Seq, SessionId, usage::Usage};

use crate::{
    Appended, Batch, BatchOutcome, NewInput, StoreError,
    append::{MarkRow, covers, mark_rows, one_batch_each, refused},
    no_session,
    postgres::database::{Database, PgRowReader, PgStatement, reader},
};

/// The statement that appends batches. It always takes locks in the same order, so that appends do
/// not deadlock: first the agents that write or receive inputs, by id, then the inputs, by id, and
/// then the session. A batch without rows leaves nothing in the log, so the part `mine` accepts its
/// marks again if they were already made.
const APPEND: &str = "
WITH w AS (SELECT * FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],
    $11::bigint[], $12::float8[]) WITH ORDINALITY
    AS w(agent, epoch, prev, state, entries, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd, n)),
r AS (SELECT * FROM unnest($13::text[], $14::text[], $15::int[], $16::int[], $17::bigint[], $18::bigint[], $19::text[]) WITH ORDINALITY
    AS r(agent, kind, turn, request, at, covers, body, n)),
m AS (SELECT * FROM unnest($20::text[], $21::text[], $22::int[], $23::text[], $24::text[]) AS m(agent, input, turn, outcome, answer)),
p AS (SELECT * FROM unnest($25::text[], $26::text[], $27::text[], $28::text[], $29::text[], $30::text[], $31::text[], $32::text[], $33::text[],
    $34::bool[], $35::text[], $36::bigint[]) WITH ORDINALITY
    AS p(writer, id, agent, kind, mode, sender, sender_name, reply_to, content, fresh, output, at, n)),
touched AS MATERIALIZED (SELECT id, epoch, last_seq, state FROM agents
  WHERE session_id = $1 AND id = ANY ($3::text[] || $27::text[]) ORDER BY id FOR NO KEY UPDATE),
held AS MATERIALIZED (SELECT w.* FROM w JOIN touched t ON t.id = w.agent AND t.epoch = w.epoch AND t.last_seq = w.prev),
mine AS MATERIALIZED (SELECT i.id FROM inputs i JOIN m ON i.id = m.input AND i.agent_id = m.agent JOIN held ON held.agent = m.agent
  WHERE i.session_id = $1 AND (i.outcome IS NULL AND (m.turn IS NULL OR i.turn IS NULL)
    OR held.entries = 0 AND i.turn IS NOT DISTINCT FROM coalesce(m.turn, i.turn) AND i.outcome IS NOT DISTINCT FROM m.outcome)
  ORDER BY i.id FOR NO KEY UPDATE OF i),
missing AS MATERIALIZED (SELECT m.agent, array_agg(m.input) AS inputs FROM m
  WHERE NOT EXISTS (SELECT 1 FROM mine WHERE mine.id = m.input) GROUP BY m.agent),
ok AS MATERIALIZED (SELECT h.* FROM held h WHERE NOT EXISTS (SELECT 1 FROM missing WHERE missing.agent = h.agent)),
c AS MATERIALIZED (SELECT count(*) AS writers, coalesce(sum(entries), 0)::bigint AS n, coalesce(sum(input_tokens), 0)::bigint AS input_tokens,
  coalesce(sum(output_tokens), 0)::bigint AS output_tokens, coalesce(sum(cache_read_tokens), 0)::bigint AS cache_read_tokens,
  coalesce(sum(cache_write_tokens), 0)::bigint AS cache_write_tokens, coalesce(sum(cost_usd), 0) AS cost_usd,
  (SELECT max(at) FROM r) AS at FROM ok),
s AS (UPDATE sessions SET next_seq = next_seq + c.n, input_tokens = sessions.input_tokens + c.input_tokens,
    output_tokens = sessions.output_tokens + c.output_tokens, cache_read_tokens = sessions.cache_read_tokens + c.cache_read_tokens,
    cache_write_tokens = sessions.cache_write_tokens + c.cache_write_tokens, cost_usd = sessions.cost_usd + c.cost_usd,
    updated_at = greatest(updated_at, c.at)
  FROM c WHERE id = $1 AND c.writers > 0 RETURNING next_seq, next_seq - c.n AS base, sessions.input_tokens, sessions.output_tokens,
    sessions.cache_read_tokens, sessions.cache_write_tokens, sessions.cost_usd),
x AS MATERIALIZED (SELECT r.*, ok.epoch, ok.prev AS before, s.base - 1 + row_number() OVER (ORDER BY r.n) AS seq
  FROM r JOIN ok ON ok.agent = r.agent, s),
l AS (INSERT INTO log (session_id, seq, agent_id, node_id, epoch, prev, kind, turn, request, at, covers, body)
  SELECT $1, seq, agent, $2, epoch, coalesce(lag(seq) OVER (PARTITION BY agent ORDER BY seq), before), kind, turn, request, at, covers, body
  FROM x),
g AS MATERIALIZED (SELECT agent, max(seq) AS last, array_agg(seq ORDER BY seq) AS seqs FROM x GROUP BY agent),
a AS (UPDATE agents SET last_seq = coalesce(g.last, last_seq), state = ok.state, input_tokens = agents.input_tokens + ok.input_tokens,
    output_tokens = agents.output_tokens + ok.output_tokens, cache_read_tokens = agents.cache_read_tokens + ok.cache_read_tokens,
    cache_write_tokens = agents.cache_write_tokens + ok.cache_write_tokens, cost_usd = agents.cost_usd + ok.cost_usd
  FROM ok LEFT JOIN g ON g.agent = ok.agent WHERE session_id = $1 AND id = ok.agent),
i AS (UPDATE inputs SET turn = coalesce(m.turn, inputs.turn), outcome = m.outcome, answer = m.answer, waiting = waiting AND m.outcome IS NULL
  FROM m JOIN ok ON ok.agent = m.agent WHERE session_id = $1 AND inputs.id = m.input),
q AS (INSERT INTO inputs (session_id, id, agent_id, kind, mode, sender, sender_name, reply_to, content, fresh, output, head, at)
  SELECT $1, p.id, p.agent, p.kind, p.mode, p.sender, p.sender_name, p.reply_to, p.content, p.fresh, p.output, s.next_seq - 1, p.at
  FROM p JOIN ok ON ok.agent = p.writer JOIN touched t ON t.id = p.agent AND t.state <> 'stopped', s ORDER BY p.n ON CONFLICT DO NOTHING)
SELECT ok.agent IS NOT NULL AS written, held.agent IS NOT NULL AS held, coalesce(g.seqs, '{}') AS seqs, missing.inputs AS missing,
  s.input_tokens, s.output_tokens, s.cache_read_tokens, s.cache_write_tokens, s.cost_usd
FROM w LEFT JOIN held USING (n) LEFT JOIN ok USING (n) LEFT JOIN g ON g.agent = w.agent LEFT JOIN missing ON missing.agent = w.agent
LEFT JOIN s ON true ORDER BY w.n";

/// The statement that reads the session's totals and, for each batch that was not written, its rows
/// if they are in the log already. It is separate from the append, which may have taken its
/// snapshot before the earlier write of these rows was committed.
const KNOWN: &str = "
SELECT w.n, known.seqs, s.input_tokens, s.output_tokens, s.cache_read_tokens, s.cache_write_tokens, s.cost_usd
FROM sessions s LEFT JOIN unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY AS w(agent, epoch, prev, entries, n) ON true
LEFT JOIN LATERAL (SELECT array_agg(mine.seq ORDER BY mine.seq) AS seqs, min(mine.prev) AS prev FROM
  (SELECT l.seq, l.prev FROM log l WHERE l.session_id = $1 AND l.agent_id = w.agent AND l.seq > w.prev AND l.epoch = w.epoch
   ORDER BY l.seq LIMIT w.entries) mine
  HAVING count(*) = w.entries AND min(mine.prev) = w.prev) known ON true
WHERE s.id = $1 ORDER BY w.n";

pub async fn append(
    database: &Database,
    session: &SessionId,
    node: &NodeId,
    batches: &[Batch],
) -> Result<Appended, StoreError> {
    one_batch_each(batches)?;
    let bad: Vec<Option<BatchOutcome>> = batches.iter().map(refused).collect();
    let good: Vec<&Batch> = batches
        .iter()
        .zip(&bad)
        .filter(|(_, bad)| bad.is_none())
        .map(|(batch, _)| batch)
        .collect();
    let AppendResult { answers, totals } = write(database, session, node, &good).await?;
    let lost: Vec<&Batch> = good
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| matches!(answer, BatchAnswer::NotHeld))
        .map(|(batch, _)| *batch)
        .collect();
    let (known, totals) = match totals {
        Some(totals) if lost.is_empty() => (Vec::new(), totals),
        _ => find_known(database, session, &lost).await?,
    };
    let (mut answers, mut known) = (answers.into_iter(), known.into_iter());
    let settled = bad
        .into_iter()
        .map(|bad| bad.or_else(|| answers.next()?.settle(&mut known)));
    let batches: Option<Vec<BatchOutcome>> = settled.collect();
    let batches = batches
        .ok_or_else(|| StoreError::Broken("an append has fewer answers than batches".into()))?;
    Ok(Appended {
        batches,
        session: totals,
    })
}

struct AppendResult {
    answers: Vec<BatchAnswer>,
    /// The session's totals, or `None` if no batch was written.
    totals: Option<Usage>,
}

enum BatchAnswer {
    Settled(BatchOutcome),
    /// The epoch or `prev` of the batch does not match. Either the batch is in the log already, or
    /// its epoch is stale.
    NotHeld,
}

impl BatchAnswer {
    fn settle(self, known: &mut impl Iterator<Item = Option<Vec<Seq>>>) -> Option<BatchOutcome> {
        match self {
            Self::Settled(outcome) => Some(outcome),
            Self::NotHeld => Some(
                known
                    .next()?
                    .map_or(BatchOutcome::StaleEpoch, BatchOutcome::Written),
            ),
        }
    }
}

/// Writes all batches with one statement. If the server refuses the data, writes each batch with
/// its own statement, so that only those with bad data fail.
async fn write(
    database: &Database,
    session: &SessionId,
    node: &NodeId,
    batches: &[&Batch],
) -> Result<AppendResult, StoreError> {
    if batches.is_empty() {
        return Ok(AppendResult {
            answers: Vec::new(),
            totals: None,
        });
    }
    match state(database, session, node, batches).await? {
        Ok(written) => Ok(written),
        Err(refusal) if batches.len() == 1 => Ok(AppendResult {
            answers: vec![BatchAnswer::Settled(BatchOutcome::Refused(refusal))],
            totals: None,
        }),
        Err(_) => write_each(database, session, node, batches).await,
    }
}

async fn write_each(
    database: &Database,
    session: &SessionId,
    node: &NodeId,
    batches: &[&Batch],
) -> Result<AppendResult, StoreError> {
    let mut all = AppendResult {
        answers: Vec::with_capacity(batches.len()),
        totals: None,
    };
    for batch in batches {
        match state(database, session, node, &[*batch]).await? {
            Ok(written) => {
                all.answers.extend(written.answers);
                all.totals = written.totals.or(all.totals);
            }
            Err(refusal) => all
                .answers
                .push(BatchAnswer::Settled(BatchOutcome::Refused(refusal))),
        }
    }
    Ok(all)
}

/// Appends batches with one statement. The inner `Err` is the server's message if the server
/// refused the data.
async fn state(
    database: &Database,
    session: &SessionId,
    node: &NodeId,
    batches: &[&Batch],
) -> Result<Result<AppendResult, String>, StoreError> {
    let statement = bind(
        sqlx::query(APPEND)
            .bind(session.as_str())
            .bind(node.as_str()),
        batches,
    );
    let rows = match database.all_or_refused(statement).await? {
        Ok(rows) => rows,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let answers = rows
        .iter()
        .map(|row| answer(reader(row)))
        .collect::<Result<_, _>>()?;
    let totals = rows
        .first()
        .map(|row| totals(reader(row)))
        .transpose()?
        .flatten();
    Ok(Ok(AppendResult { answers, totals }))
}

fn answer(row: PgRowReader<'_>) -> Result<BatchAnswer, StoreError> {
    if row.get("written")? {
        return Ok(BatchAnswer::Settled(BatchOutcome::Written(
            row.get("seqs")?,
        )));
    }
    if !row.get::<bool>("held")? {
        return Ok(BatchAnswer::NotHeld);
    }
    let missing: Option<Vec<String>> = row.get("missing")?;
    let missing = missing
        .unwrap_or_default()
        .iter()
        .filter_map(|id| InputId::parse(id).ok())
        .collect();
    Ok(BatchAnswer::Settled(BatchOutcome::InputsGone(missing)))
}

fn totals(row: PgRowReader<'_>) -> Result<Option<Usage>, StoreError> {
    row.get::<Option<f64>>("cost_usd")?
        .map(|_| row.usage())
        .transpose()
}

/// Returns, for each batch, its row numbers or `None` if it is not in the log, and the session's
/// totals.
async fn find_known(
    database: &Database,
    session: &SessionId,
    batches: &[&Batch],
) -> Result<(Vec<Option<Vec<Seq>>>, Usage), StoreError> {
    let statement = sqlx::query(KNOWN)
        .bind(session.as_str())
        .bind(column(batches, |batch| batch.agent.as_str()))
        .bind(column(batches, |batch| batch.epoch))
        .bind(column(batches, |batch| batch.prev))
        .bind(column(batches, |batch| entries(batch)));
    let rows = database.all(statement).await?;
    let Some(first) = rows.first() else {
        return Err(no_session(session));
    };
    let totals = reader(first).usage()?;
    let known = rows
        .iter()
        .map(|row| reader(row).get("seqs"))
        .collect::<Result<_, _>>()?;
    Ok((known, totals))
}

/// Returns one value for each item, in order.
pub fn column<'a, T, V>(items: &'a [T], value: impl Fn(&'a T) -> V) -> Vec<V> {
    items.iter().map(value).collect()
}

fn entries(batch: &Batch) -> i64 {
    i64::try_from(batch.rows()).unwrap_or(i64::MAX)
}

/// Binds batches as the arrays that the statement unnests: writers, rows, marks and inputs.
fn bind<'q>(statement: PgStatement<'q>, batches: &[&Batch]) -> PgStatement<'q> {
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
        .bind(column(puts, |(_, put)| put.output_json()))
        .bind(column(puts, |(_, put)| put.at.millis()))
}
