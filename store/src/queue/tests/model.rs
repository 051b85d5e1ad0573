//! A log in memory that applies the rules of the store: it checks the epoch and the last row,
//! writes batches completely or not at all, and recognises repeated batches.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard},
};

use async_trait::async_trait;
use planck_common::{AgentId, NodeId, Seq, SessionId, usage::Usage};
use tokio::sync::watch;

use super::fake::QueueStore;
use crate::{Appended, Batch, BatchOutcome, LeaseRelease, StoreError};

/// A fault that the log applies to a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The statement is carried out, but its answer is lost.
    DropAnswer,
    /// The statement is not carried out.
    Away,
}

struct Row {
    agent: AgentId,
    epoch: i64,
    prev: Seq,
    body: String,
}

#[derive(Default)]
struct State {
    log: Vec<Row>,
    agents: HashMap<AgentId, (i64, Seq)>,
    totals: Usage,
    faults: VecDeque<Fault>,
    statements: usize,
    /// The number of releases of each statement that released leases.
    releases: Vec<usize>,
    /// The text of the last statement if the queue does not know its outcome. The next statement
    /// must have the same text.
    unsettled: Option<String>,
}

pub struct Model {
    state: Mutex<State>,
    /// How many statements reached the closed gate, or `None` while the gate is open.
    gate: watch::Sender<Option<usize>>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            gate: watch::Sender::new(None),
        }
    }
}

pub struct Gate(watch::Receiver<Option<usize>>);

impl Gate {
    pub async fn reached(mut self) {
        self.0
            .wait_for(|count| count.is_some_and(|count| count > 0))
            .await
            .unwrap();
    }
}

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn hold(&self, agent: &AgentId, epoch: i64) {
        self.state().agents.entry(agent.clone()).or_default().0 = epoch;
    }

    pub fn close(&self) -> Gate {
        self.gate.send_replace(Some(0));
        Gate(self.gate.subscribe())
    }

    pub fn open(&self) {
        self.gate.send_replace(None);
    }

    async fn pass_gate(&self) {
        self.gate
            .send_modify(|count| *count = count.map(|count| count + 1));
        self.gate
            .subscribe()
            .wait_for(Option::is_none)
            .await
            .unwrap();
    }

    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.extend(faults);
    }

    pub fn statements(&self) -> usize {
        self.state().statements
    }

    pub fn releases(&self) -> Vec<usize> {
        self.state().releases.clone()
    }

    pub fn bodies(&self) -> Vec<String> {
        self.state()
            .log
            .iter()
            .map(|row| row.body.clone())
            .collect()
    }
}

#[async_trait]
impl QueueStore for Model {
    async fn send(
        &self,
        _: &SessionId,
        _: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError> {
        self.pass_gate().await;
        self.state().statement(batches)
    }

    async fn send_releases(
        &self,
        _: &SessionId,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        self.pass_gate().await;
        self.state().release(releases)
    }
}

impl State {
    fn statement(&mut self, batches: &[Batch]) -> Result<Appended, StoreError> {
        self.statements += 1;
        let text = format!("{batches:?}");
        let before = self.unsettled.get_or_insert_with(|| text.clone());
        assert_eq!(*before, text, "a statement of unknown outcome was changed");
        let fault = self.faults.pop_front().unwrap_or(Fault::None);
        if fault == Fault::Away {
            return Err(StoreError::Away("told so".into()));
        }
        let outcomes = batches.iter().map(|batch| self.write(batch)).collect();
        if fault == Fault::DropAnswer {
            return Err(StoreError::Away("the answer was lost".into()));
        }
        self.unsettled = None;
        Ok(Appended {
            batches: outcomes,
            session: self.totals,
        })
    }

    fn release(
        &mut self,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        self.releases.push(releases.len());
        if self.faults.pop_front() == Some(Fault::Away) {
            return Err(StoreError::Away("told so".into()));
        }
        let release = |one: &LeaseRelease| {
            let (epoch, _) = self.agents.get_mut(&one.agent).unwrap();
            if *epoch != one.epoch {
                return Err(StoreError::StaleEpoch(one.agent.to_string()));
            }
            *epoch += 1;
            Ok(())
        };
        Ok(releases.iter().map(release).collect())
    }

    fn write(&mut self, batch: &Batch) -> BatchOutcome {
        let (epoch, last_seq) = self.agents[&batch.agent];
        if (epoch, last_seq) != (batch.epoch, batch.prev) {
            return self.known(batch);
        }
        if let Some(mark) = batch.marks().find(|mark| mark.input.as_str() == "gone") {
            return BatchOutcome::InputsGone(vec![mark.input.clone()]);
        }
        if batch.entries().any(|entry| entry.body.contains('\0')) {
            return BatchOutcome::Refused("a NUL byte".into());
        }
        let seqs: Vec<Seq> = batch
            .entries()
            .map(|entry| self.insert(batch, &entry.body))
            .collect();
        if !seqs.is_empty() {
            self.totals += batch.usage();
        }
        BatchOutcome::Written(seqs)
    }

    fn insert(&mut self, batch: &Batch, body: &str) -> Seq {
        let seq = self.log.len() as Seq + 1;
        let last_seq = &mut self.agents.get_mut(&batch.agent).unwrap().1;
        let prev = std::mem::replace(last_seq, seq);
        self.log.push(Row {
            agent: batch.agent.clone(),
            epoch: batch.epoch,
            prev,
            body: body.to_owned(),
        });
        seq
    }

    fn known(&self, batch: &Batch) -> BatchOutcome {
        let rows = (1..).zip(&self.log).filter(|(seq, row)| {
            *seq > batch.prev
                && row.agent == batch.agent
                && row.epoch == batch.epoch
                && row.prev >= batch.prev
        });
        let seqs: Vec<Seq> = rows.map(|(seq, _)| seq).take(batch.rows()).collect();
        let is_mine = seqs.len() == batch.rows() && !seqs.is_empty();
        if is_mine {
            BatchOutcome::Written(seqs)
        } else {
            BatchOutcome::StaleEpoch
        }
    }
}
