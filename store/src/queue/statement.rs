//! The content of one statement: one batch for each agent, made of the saves that were waiting.
//! This module does no I/O.

use planck_common::{AgentId, Seq, command::AgentState, usage::Usage};
use tokio::sync::oneshot;

use super::{PendingSave, Queued, QueuedRelease, SaveFailure, WrittenRows};
use crate::Batch;

/// The numbers of batches (and of releases), rows and bytes of rows at which a statement is full.
/// The last save that was added may exceed them.
const MAX_BATCHES: usize = 256;
const MAX_ROWS: usize = 2_000;
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// One save within a batch.
pub struct BatchedSave {
    pub entries: usize,
    marks: usize,
    puts: usize,
    usage: Usage,
    state: AgentState,
    pub reply: oneshot::Sender<Result<WrittenRows, SaveFailure>>,
    pub knows: u64,
}

/// The batches of a statement, each with the saves of which it is made, and the releases that
/// follow the statement.
#[derive(Default)]
pub struct AppendStatement {
    pub batches: Vec<Batch>,
    pub parts: Vec<Vec<BatchedSave>>,
    pub releases: Vec<QueuedRelease>,
    rows: usize,
    bytes: usize,
}

impl AppendStatement {
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub fn is_full(&self) -> bool {
        let most = self.batches.len().max(self.releases.len());
        most >= MAX_BATCHES || self.rows >= MAX_ROWS || self.bytes >= MAX_BYTES
    }

    pub fn has(&self, agent: &AgentId) -> bool {
        self.batches.iter().any(|batch| batch.agent == *agent)
    }

    /// Adds a save to the batch of its agent. If the agent has no batch yet, begins one that
    /// follows the row `prev`. Returns the save as the error if the batch has another epoch,
    /// because the save then has to wait for the next statement.
    pub fn add(&mut self, queued: Queued, prev: Seq) -> Result<(), Box<Queued>> {
        let there = self
            .batches
            .iter()
            .position(|batch| batch.agent == queued.pending.agent);
        let size: usize = queued
            .pending
            .entries
            .iter()
            .map(|entry| entry.body.len())
            .sum();
        let rows = queued.pending.entries.len();
        match there.and_then(|at| self.batches.get_mut(at).zip(self.parts.get_mut(at))) {
            Some((batch, _)) if batch.epoch != queued.pending.epoch => {
                return Err(Box::new(queued));
            }
            Some((batch, parts)) => parts.push(join(batch, queued)),
            None => {
                let (batch, part) = open(queued, prev);
                self.batches.push(batch);
                self.parts.push(vec![part]);
            }
        }
        self.rows += rows;
        self.bytes += size;
        Ok(())
    }
}

fn open(queued: Queued, prev: Seq) -> (Batch, BatchedSave) {
    let Queued {
        pending:
            PendingSave {
                agent,
                epoch,
                entries,
                marks,
                puts,
                usage,
                state,
            },
        reply,
        knows,
    } = queued;
    let part = BatchedSave {
        entries: entries.len(),
        marks: marks.len(),
        puts: puts.len(),
        usage,
        state,
        reply,
        knows,
    };
    (
        Batch {
            agent,
            epoch,
            prev,
            entries,
            marks,
            puts,
            usage,
            state,
        },
        part,
    )
}

fn join(batch: &mut Batch, queued: Queued) -> BatchedSave {
    let (more, part) = open(queued, batch.prev);
    batch.entries.extend(more.entries);
    batch.marks.extend(more.marks);
    batch.puts.extend(more.puts);
    batch.usage += more.usage;
    batch.state = more.state;
    part
}

/// Splits a batch into one batch for each save, in order. The caller sets the `prev` of each batch
/// before it sends the batch.
pub fn split(mut batch: Batch, parts: Vec<BatchedSave>) -> Vec<(Batch, BatchedSave)> {
    let alone = |part: BatchedSave| {
        let (entries, marks, puts) = (
            take(&mut batch.entries, part.entries),
            take(&mut batch.marks, part.marks),
            take(&mut batch.puts, part.puts),
        );
        let of_part = Batch {
            agent: batch.agent.clone(),
            entries,
            marks,
            puts,
            usage: part.usage,
            state: part.state,
            ..batch
        };
        (of_part, part)
    };
    parts.into_iter().map(alone).collect()
}

fn take<T>(from: &mut Vec<T>, count: usize) -> Vec<T> {
    from.drain(..count.min(from.len())).collect()
}
