//! The task of the queue. It gathers saves and releases into statements, sends them, and answers
//! each.

use std::{collections::HashMap, sync::Arc, time::Duration};

use planck_common::{AgentId, NodeId, Seq, SessionId, usage::Usage};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    AppendError, QueueRequest, QueueStore, Queued, QueuedRelease, WrittenRows,
    failures::{Failures, SaveFailure},
    statement::{AppendStatement, BatchedSave, split},
};
use crate::{Appended, Batch, BatchOutcome, LeaseRelease, StoreError};

/// The first and the maximum pause between attempts while the store is unavailable. Each pause is
/// multiplied by a random factor between 0.75 and 1.25.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The error after the queue was stopped. The worker then sends no more statements and answers no
/// more saves.
struct Stopped;

/// The state of an enrolled agent.
struct EnrolledAgent {
    last_seq: Seq,
    /// The latest failure other than `StaleEpoch`, and the epoch of the save that failed.
    failed: Option<(SaveFailure, i64)>,
    /// The failure of the save with the highest epoch that the store refused as stale, and that
    /// epoch.
    fenced: Option<(SaveFailure, i64)>,
}

impl EnrolledAgent {
    /// Returns the failure with which to answer a save that must not be sent, because its lease is
    /// known to be lost or because it was built on a failed save. Returns `None` if the save can be
    /// sent.
    fn refusal(&self, epoch: i64, knows: u64) -> Option<SaveFailure> {
        let of_epoch = |failure: &&(SaveFailure, i64)| epoch <= failure.1;
        let built_upon = self
            .failed
            .as_ref()
            .filter(of_epoch)
            .filter(|(failure, _)| knows < failure.number);
        self.fenced
            .as_ref()
            .filter(of_epoch)
            .or(built_upon)
            .map(|(failure, _)| failure.clone())
    }
}

pub struct QueueWorker<S: ?Sized> {
    store: Arc<S>,
    session: SessionId,
    node: NodeId,
    orders: mpsc::Receiver<QueueRequest>,
    /// A request that did not fit into the last statement and begins the next one.
    carried: Option<QueueRequest>,
    agents: HashMap<AgentId, EnrolledAgent>,
    failures: Arc<Failures>,
    /// The number of the latest failure, or 0 if there was none.
    failed: u64,
    stop: CancellationToken,
}

impl<S: QueueStore + ?Sized> QueueWorker<S> {
    pub fn new(
        store: Arc<S>,
        session: SessionId,
        node: NodeId,
        orders: mpsc::Receiver<QueueRequest>,
        failures: Arc<Failures>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store,
            session,
            node,
            orders,
            carried: None,
            agents: HashMap::new(),
            failures,
            failed: 0,
            stop,
        }
    }

    pub async fn run(mut self) {
        while let Some(order) = self.next().await {
            let mut statement = self.gather(order);
            let releases = std::mem::take(&mut statement.releases);
            if !statement.is_empty() && self.write(statement).await.is_err() {
                return;
            }
            if !releases.is_empty() && self.release(releases).await.is_err() {
                return;
            }
        }
    }

    /// Releases leases with one statement, and answers each release.
    async fn release(&self, queued: Vec<QueuedRelease>) -> Result<(), Stopped> {
        let (releases, replies): (Vec<LeaseRelease>, Vec<_>) = queued
            .into_iter()
            .map(|one| (one.release, one.reply))
            .unzip();
        let sent = self
            .unless_stopped(self.store.send_releases(&self.session, &releases))
            .await?;
        let results = sent.unwrap_or_else(|error| vec![Err(error); releases.len()]);
        for (reply, result) in replies.into_iter().zip(results) {
            let _ = reply.send(result);
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<QueueRequest> {
        if let Some(order) = self.carried.take() {
            return Some(order);
        }
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            order = self.orders.recv() => order,
        }
    }

    /// Builds a statement from `first` and the waiting requests that fit into it.
    fn gather(&mut self, first: QueueRequest) -> AppendStatement {
        let mut statement = AppendStatement::default();
        let mut order = Some(first);
        while let Some(next) = order {
            self.carried = self.admit(&mut statement, next);
            if self.carried.is_some() || statement.is_full() {
                break;
            }
            order = self.orders.try_recv().ok();
        }
        statement
    }

    /// Registers an agent, adds a save or a release to the statement, or answers a save that must
    /// not be sent.
    /// Returns the request if it has to wait for the next statement.
    fn admit(
        &mut self,
        statement: &mut AppendStatement,
        order: QueueRequest,
    ) -> Option<QueueRequest> {
        match order {
            QueueRequest::Enroll { agent, last_seq } if !statement.has(&agent) => {
                self.failures.forget(&agent);
                self.agents.insert(
                    agent,
                    EnrolledAgent {
                        last_seq,
                        failed: None,
                        fenced: None,
                    },
                );
                None
            }
            waits @ QueueRequest::Enroll { .. } => Some(waits),
            QueueRequest::Release(queued) => {
                statement.releases.push(queued);
                None
            }
            QueueRequest::Append(queued) => {
                self.admit_save(statement, queued).map(QueueRequest::Append)
            }
        }
    }

    fn admit_save(&mut self, statement: &mut AppendStatement, queued: Queued) -> Option<Queued> {
        let Some(agent) = self.agents.get(&queued.pending.agent) else {
            let error = AppendError::NotEnrolled(queued.pending.agent.clone());
            let _ = queued.reply.send(Err(SaveFailure { number: 0, error }));
            return None;
        };
        match agent.refusal(queued.pending.epoch, queued.knows) {
            Some(failure) => {
                self.answer(&queued.pending.agent, queued.reply, Err(failure));
                None
            }
            None => statement
                .add(queued, agent.last_seq)
                .err()
                .map(|waits| *waits),
        }
    }

    /// Sends one statement and answers its saves. If the store refuses the inputs or the data of a
    /// batch with several saves, sends these saves one by one.
    async fn write(&mut self, statement: AppendStatement) -> Result<(), Stopped> {
        let AppendStatement { batches, parts, .. } = statement;
        let answer = self.send(&batches).await?;
        for ((batch, parts), (outcome, totals)) in batches.into_iter().zip(parts).zip(answer) {
            match outcome {
                Err(AppendError::InputsGone(_) | AppendError::Refused(_)) if parts.len() > 1 => {
                    self.write_alone(batch, parts).await?
                }
                outcome => self.settle(&batch.agent, batch.epoch, parts, outcome, totals),
            }
        }
        Ok(())
    }

    async fn write_alone(&mut self, batch: Batch, parts: Vec<BatchedSave>) -> Result<(), Stopped> {
        for (mut batch, part) in split(batch, parts) {
            let Some(agent) = self.agents.get(&batch.agent) else {
                continue;
            };
            batch.prev = agent.last_seq;
            if let Some(failure) = agent.refusal(batch.epoch, part.knows) {
                self.answer(&batch.agent, part.reply, Err(failure));
                continue;
            }
            let answer = self.send(std::slice::from_ref(&batch)).await?.pop();
            let (outcome, totals) =
                answer.unwrap_or_else(|| (Err(too_few_answers()), Usage::default()));
            self.settle(&batch.agent, batch.epoch, vec![part], outcome, totals);
        }
        Ok(())
    }

    /// Sends batches repeatedly until their outcome is known. Returns, for each batch, its outcome
    /// and the session's totals.
    async fn send(
        &self,
        batches: &[Batch],
    ) -> Result<Vec<(Result<Vec<Seq>, AppendError>, Usage)>, Stopped> {
        let sent = self.send_until_known(batches).await?;
        let Appended {
            batches: outcomes,
            session,
        } = match sent {
            Ok(appended) => appended,
            Err(error) => {
                return Ok(batches
                    .iter()
                    .map(|_| (Err(error.clone()), Usage::default()))
                    .collect());
            }
        };
        let mut outcomes = outcomes.into_iter();
        let answer = |batch: &Batch| match outcomes.next() {
            Some(BatchOutcome::Written(seqs)) if seqs.len() == batch.entries.len() => Ok(seqs),
            Some(BatchOutcome::Written(_)) | None => Err(too_few_answers()),
            Some(BatchOutcome::StaleEpoch) => Err(AppendError::StaleEpoch),
            Some(BatchOutcome::InputsGone(inputs)) => Err(AppendError::InputsGone(inputs)),
            Some(BatchOutcome::Refused(why)) => Err(AppendError::Refused(why)),
        };
        Ok(batches
            .iter()
            .map(answer)
            .map(|outcome| (outcome, session))
            .collect())
    }

    async fn send_until_known(
        &self,
        batches: &[Batch],
    ) -> Result<Result<Appended, AppendError>, Stopped> {
        let mut pause = FIRST_PAUSE;
        let mut tries = 0_u32;
        loop {
            let sent = self
                .unless_stopped(self.store.send(&self.session, &self.node, batches))
                .await?;
            match sent {
                Ok(appended) => {
                    if tries > 0 {
                        tracing::info!(session = %self.session, tries, "saved after several attempts");
                    }
                    return Ok(Ok(appended));
                }
                Err(StoreError::Away(why) | StoreError::Busy(why)) => {
                    if tries == 0 {
                        tracing::warn!(session = %self.session, %why, "cannot save; trying again until the outcome is known");
                    }
                    tries += 1;
                }
                Err(StoreError::Full(why)) => {
                    if tries == 0 {
                        tracing::error!(session = %self.session, "{why}; trying again until it is saved");
                    }
                    tries += 1;
                }
                Err(error) => return Ok(Err(AppendError::Broken(error.to_string()))),
            }
            self.unless_stopped(tokio::time::sleep(
                pause.mul_f64(fastrand::f64() / 2.0 + 0.75),
            ))
            .await?;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, Stopped> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Stopped),
            done = work => Ok(done),
        }
    }

    fn settle(
        &mut self,
        agent: &AgentId,
        epoch: i64,
        parts: Vec<BatchedSave>,
        outcome: Result<Vec<Seq>, AppendError>,
        totals: Usage,
    ) {
        match outcome {
            Ok(seqs) => self.hand_out(agent, parts, &seqs, totals),
            Err(error) => self.fail(agent, epoch, parts, error),
        }
    }

    fn hand_out(
        &mut self,
        agent: &AgentId,
        parts: Vec<BatchedSave>,
        seqs: &[Seq],
        session_totals: Usage,
    ) {
        let Some(known) = self.agents.get_mut(agent) else {
            return;
        };
        let mut rest = seqs;
        for part in parts {
            let (mine, others) = rest.split_at(part.entries.min(rest.len()));
            rest = others;
            let written = WrittenRows {
                seqs: mine.to_vec(),
                prev: known.last_seq,
                session_totals,
            };
            known.last_seq = mine.last().copied().unwrap_or(known.last_seq);
            // Sending fails only if the writer dropped its receipt. The rows are written
            // nevertheless.
            let _ = part.reply.send(Ok(written));
        }
    }

    fn fail(&mut self, agent: &AgentId, epoch: i64, parts: Vec<BatchedSave>, error: AppendError) {
        self.failed += 1;
        let failure = SaveFailure {
            number: self.failed,
            error,
        };
        if let Some(known) = self.agents.get_mut(agent) {
            let failed = Some((failure.clone(), epoch));
            match failure.error {
                AppendError::StaleEpoch
                    if known
                        .fenced
                        .as_ref()
                        .is_none_or(|(_, fenced)| *fenced < epoch) =>
                {
                    known.fenced = failed
                }
                AppendError::StaleEpoch => {}
                AppendError::InputsGone(_) | AppendError::Refused(_) | AppendError::Broken(_) => {
                    known.failed = failed
                }
                AppendError::NotEnrolled(_) | AppendError::Closed => {}
            }
        }
        for part in parts {
            self.answer(agent, part.reply, Err(failure.clone()));
        }
    }

    /// Answers a save. A failure whose receipt was dropped counts as known, because no later save
    /// was built on the failed one.
    fn answer(
        &self,
        agent: &AgentId,
        reply: tokio::sync::oneshot::Sender<Result<WrittenRows, SaveFailure>>,
        answer: Result<WrittenRows, SaveFailure>,
    ) {
        if let Err(Err(failure)) = reply.send(answer) {
            self.failures.is_known(agent, failure.number);
        }
    }
}

fn too_few_answers() -> AppendError {
    AppendError::Broken("the store answered for fewer rows than it was given".into())
}
