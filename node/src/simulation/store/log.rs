//! The logs of the simulated store.

use std::collections::{BTreeMap, BTreeSet};

use planck_common::{
    AgentId, CallId, InputId, Seq,
    command::AgentState,
    event::{Event, EventKind, TurnOutcome},
};

use super::data::SimSession;
use crate::agent::{Entry, Mark, effect::Change};
use planck_store::{AgentRecord, Appended, Batch, BatchOutcome, LogRow, StoredInput};

/// A row of a log.
pub(crate) struct SimRow {
    pub agent: AgentId,
    pub epoch: i64,
    pub prev: Seq,
    pub row: LogRow,
}

impl SimRow {
    /// Returns the call of a row `tool_start` or `tool_end`.
    fn call(&self) -> Option<CallId> {
        let body: serde_json::Value = serde_json::from_str(&self.row.body).ok()?;
        CallId::parse(body["call_id"].as_str()?).ok()
    }
}

impl SimSession {
    pub fn head(&self) -> Seq {
        Seq::try_from(self.log.len()).unwrap()
    }

    /// Returns all rows of an agent, because the simulated agents summarise nothing.
    pub fn load(&self, agent: &AgentId) -> Vec<LogRow> {
        let rows = self.log.iter().filter(|row| row.agent == *agent);
        rows.map(|row| row.row.clone()).collect()
    }

    pub fn append(&mut self, batches: &[Batch]) -> Appended {
        let written = batches.iter().map(|batch| self.write(batch)).collect();
        Appended {
            batches: written,
            session: self.used(planck_common::usage::Usage::default()),
        }
    }

    fn write(&mut self, batch: &Batch) -> BatchOutcome {
        if let Some(seqs) = self.written_before(batch) {
            return BatchOutcome::Written(seqs);
        }
        let holds = |agent: &planck_store::AgentRecord| {
            agent.epoch == batch.epoch && agent.last_seq == batch.prev
        };
        if !self.agent(&batch.agent).is_some_and(holds) {
            return BatchOutcome::StaleEpoch;
        }
        if batch.rows() == 0 && batch.marks().all(|mark| self.is_made(mark)) {
            return BatchOutcome::Written(Vec::new());
        }
        let gone: Vec<InputId> = batch
            .marks()
            .filter_map(|mark| self.gone(batch, mark))
            .collect();
        if !gone.is_empty() {
            return BatchOutcome::InputsGone(gone);
        }
        for mark in batch.marks() {
            self.mark(mark);
        }
        let mut prev = batch.prev;
        let mut seqs = Vec::with_capacity(batch.rows());
        for entry in batch.entries() {
            prev = self.add(batch, prev, entry);
            seqs.push(prev);
        }
        for put in batch.puts() {
            self.put(put.clone());
        }
        self.used(batch.usage());
        if let Ok(agent) = self.agent_mut(&batch.agent) {
            agent.last_seq = prev;
            agent.state = batch.state();
        }
        if batch.state() == AgentState::Stopped {
            self.stopped(&batch.agent);
        }
        BatchOutcome::Written(seqs)
    }

    fn add(&mut self, batch: &Batch, prev: Seq, entry: &Entry) -> Seq {
        let seq = self.head() + 1;
        self.wait_row(&batch.agent, seq, entry);
        self.log.push(SimRow {
            agent: batch.agent.clone(),
            epoch: batch.epoch,
            prev,
            row: LogRow {
                seq,
                kind: entry.kind,
                place: entry.place,
                body: entry.body.clone(),
            },
        });
        seq
    }

    /// Returns the numbers of the batch's rows if an earlier append wrote them.
    fn written_before(&self, batch: &Batch) -> Option<Vec<Seq>> {
        let of_agent = |row: &&SimRow| {
            row.agent == batch.agent && row.epoch == batch.epoch && row.row.seq > batch.prev
        };
        let rows = self.log.iter().filter(of_agent).take(batch.rows());
        let mut prev = batch.prev;
        let mut seqs = Vec::new();
        for (row, entry) in rows.zip(batch.entries()) {
            let is_same =
                row.prev == prev && row.row.kind == entry.kind && row.row.body == entry.body;
            if !is_same {
                return None;
            }
            prev = row.row.seq;
            seqs.push(prev);
        }
        (!seqs.is_empty() && seqs.len() == batch.rows()).then_some(seqs)
    }

    fn row(&self, input: &InputId) -> Option<&StoredInput> {
        self.inputs.iter().find(|row| row.input.id == *input)
    }

    fn is_made(&self, mark: &Mark) -> bool {
        self.row(&mark.input).is_some_and(|row| match &mark.change {
            Change::Consumed { turn } => row.turn == Some(*turn),
            Change::Ended { outcome, .. } => row.outcome.as_ref() == Some(outcome),
        })
    }

    /// Returns the input of a mark if it can no longer be marked. An input that the same batch
    /// consumes and ends is not consumed yet.
    fn gone(&self, batch: &Batch, mark: &Mark) -> Option<InputId> {
        let is_there = self.row(&mark.input).is_some_and(|row| {
            let is_unread = row.turn.is_none() || !matches!(mark.change, Change::Consumed { .. });
            row.input.agent == batch.agent && row.outcome.is_none() && is_unread
        });
        (!is_there).then(|| mark.input.clone())
    }

    fn mark(&mut self, mark: &Mark) {
        let Some(row) = self
            .inputs
            .iter_mut()
            .find(|row| row.input.id == mark.input)
        else {
            return;
        };
        match &mark.change {
            Change::Consumed { turn } => row.turn = Some(*turn),
            Change::Ended { outcome, answer } => {
                row.outcome = Some(outcome.clone());
                row.answer.clone_from(answer);
            }
        }
    }

    /// Returns whether the log says that a call began.
    pub fn has_begun(&self, call: &CallId) -> bool {
        let mut rows = self.log.iter().rev();
        rows.any(|row| row.row.kind == EventKind::ToolStart && row.call().as_ref() == Some(call))
    }

    /// Returns the open turn of an agent.
    pub fn open_turn(&self, agent: &AgentId) -> Option<u32> {
        let mut rows = self.log.iter().rev().filter(|row| row.agent == *agent);
        let last =
            rows.find(|row| row.row.kind == EventKind::TurnStart || row.row.kind.is_terminal());
        let open = last.filter(|row| row.row.kind == EventKind::TurnStart);
        open.map(|row| row.row.place.turn)
    }

    /// Returns what is wrong with the order of the rows, or with calls that never ended.
    pub fn disorder(&self) -> Option<String> {
        let mut open_turns = BTreeSet::new();
        let (mut open_calls, mut ended_calls) = (BTreeSet::new(), BTreeSet::new());
        for row in &self.log {
            let wrong = match row.row.kind {
                EventKind::TurnStart => (!open_turns.insert(&row.agent)).then_some("a turn began"),
                kind if kind.is_terminal() => {
                    let was_open = open_turns.remove(&row.agent);
                    (!was_open).then_some("a turn ended again")
                }
                EventKind::ToolStart => {
                    open_calls.insert(row.call());
                    (!open_turns.contains(&row.agent)).then_some("a call began outside of a turn")
                }
                EventKind::ToolEnd => {
                    open_calls.remove(&row.call());
                    (!ended_calls.insert(row.call())).then_some("a call ended again")
                }
                _ => None,
            };
            if let Some(wrong) = wrong {
                return Some(format!("row {} of {}: {wrong}", row.row.seq, row.agent));
            }
        }
        (!open_calls.is_empty()).then(|| format!("{open_calls:?} have no end"))
    }
    /// Returns the number of turns that ended with an answer in a shape, or what is wrong with one.
    /// The turn that reads one of the `shaped` prompts has its shape. Such a turn ends with the
    /// object, with an error, or leaves the shape to the turn that reads the responses to its tasks.
    pub fn check_shapes(&self, shaped: &BTreeSet<InputId>) -> Result<u64, String> {
        let mut count = 0;
        let mut with_shape = BTreeSet::new();
        let mut due = BTreeMap::new();
        for row in &self.log {
            let turn = (&row.agent, row.row.place.turn);
            match Event::parse(row.row.kind, &row.row.body).ok() {
                Some(Event::TurnStart(start)) if start.output.is_some() => {
                    with_shape.insert(turn);
                    due.remove(&row.agent);
                }
                Some(Event::TurnEnd(end)) => {
                    let is_object = end.output.as_ref().map(|answer| {
                        let answer: serde_json::Value = serde_json::from_str(answer.get()).unwrap();
                        answer["n"].is_i64() && with_shape.contains(&turn)
                    });
                    let is_answered = is_object.unwrap_or_else(|| {
                        end.outcome != TurnOutcome::Completed
                            || end.output_due.is_some()
                            || !with_shape.contains(&turn)
                    });
                    if !is_answered {
                        return Err(format!("{turn:?} ended without its shape"));
                    }
                    due.extend(end.output_due.map(|due| (&row.agent, due.tasks)));
                    count += u64::from(is_object.is_some());
                }
                // The tasks may have ended with the agent's session.
                Some(Event::AgentStopped(_)) => drop(due.remove(&row.agent)),
                _ => {}
            }
        }
        let mut read = self
            .inputs
            .iter()
            .filter(|row| shaped.contains(&row.input.id));
        let lost = read.find(|row| {
            let turn = row.turn.map(|turn| (&row.input.agent, turn));
            turn.is_some_and(|turn| !with_shape.contains(&turn))
        });
        if let Some(row) = lost {
            return Err(format!("{} was read without its shape", row.input.id));
        }
        let lives = |id: &AgentId| self.agent(id).is_some_and(AgentRecord::is_there);
        let is_kept = |task: &InputId| self.row(task).is_some_and(|row| lives(&row.input.agent));
        let mut due = due.iter();
        match due.find(|(agent, tasks)| lives(agent) && tasks.iter().all(is_kept)) {
            Some((agent, _)) => Err(format!("the shape that {agent} left was not used")),
            None => Ok(count),
        }
    }
}
