//! The task of the queue. It gathers saves and releases into statements, sends them, and answers
//! each.

use std::{collections::HashMap, sync::Arc, time::Duration};

use planck_common::{AgentId, NodeId, Seq, SessionId, usage::Usage};
use tokio::sync::mpsc;

use super::{
    AppendError, KnownFailures, QueueRequest, QueuedRelease, QueuedSave, SaveFailure, SaveWriter,
    WrittenRows,
};
use crate::{Appended, Batch, BatchOutcome, LeaseRelease, Leases, Log, StoreError};

/// The numbers of batches (and of releases), rows and bytes of rows at which a statement is full.
/// The last save that was added may exceed them.
const MAX_BATCHES: usize = 256;
const MAX_ROWS: usize = 2_000;
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// The first and the maximum pause between attempts while the store is unavailable. Each pause is
/// multiplied by a random factor between 0.75 and 1.25.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The content of one statement: a batch for each agent, made of the saves that were waiting, and
/// the releases that follow it.
#[derive(Default)]
struct AppendStatement {
    batches: Vec<Batch>,
    /// The writers of each batch's saves.
    writers: Vec<Vec<SaveWriter>>,
    releases: Vec<QueuedRelease>,
    rows: usize,
    bytes: usize,
}

impl AppendStatement {
    fn is_full(&self) -> bool {
        let most = self.batches.len().max(self.releases.len());
        most >= MAX_BATCHES || self.rows >= MAX_ROWS || self.bytes >= MAX_BYTES
    }

    fn has(&self, agent: &AgentId) -> bool {
        self.batches.iter().any(|batch| batch.agent == *agent)
    }

    /// Adds a save to the batch of its agent. If the agent has no batch yet, begins one that
    /// follows the row `prev`. Returns the save as the error if the batch has another epoch,
    /// because the save then has to wait for the next statement.
    fn add(&mut self, queued: QueuedSave, prev: Seq) -> Result<(), QueuedSave> {
        let mut batches = self.batches.iter_mut().zip(&mut self.writers);
        let batch = batches.find(|(batch, _)| batch.agent == queued.agent);
        if matches!(&batch, Some((batch, _)) if batch.epoch != queued.epoch) {
            return Err(queued);
        }
        let QueuedSave {
            agent,
            epoch,
            save,
            writer,
        } = queued;
        self.rows += save.entries.len();
        for entry in &save.entries {
            self.bytes += entry.body.len();
        }
        match batch {
            Some((batch, writers)) => {
                batch.saves.push(save);
                writers.push(writer);
            }
            None => {
                let saves = vec![save];
                self.batches.push(Batch {
                    agent,
                    epoch,
                    prev,
                    saves,
                });
                self.writers.push(vec![writer]);
            }
        }
        Ok(())
    }
}

/// The state of an enrolled agent.
#[derive(Default)]
pub struct EnrolledAgent {
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
    pub store: Arc<S>,
    pub session: SessionId,
    pub node: NodeId,
    pub requests: mpsc::Receiver<QueueRequest>,
    /// A request that did not fit into the last statement and begins the next one.
    pub carried: Option<QueueRequest>,
    pub agents: HashMap<AgentId, EnrolledAgent>,
    pub failures: Arc<KnownFailures>,
    /// The number of the latest failure, or 0 if there was none.
    pub failed: u64,
}

impl<S: Log + Leases + ?Sized> QueueWorker<S> {
    pub async fn run(mut self) {
        while let Some(request) = self.next().await {
            let AppendStatement {
                batches,
                writers,
                releases,
                ..
            } = self.gather(request);
            if !batches.is_empty() {
                self.write(batches, writers).await;
            }
            if !releases.is_empty() {
                self.release(releases).await;
            }
        }
    }

    async fn next(&mut self) -> Option<QueueRequest> {
        match self.carried.take() {
            Some(request) => Some(request),
            None => self.requests.recv().await,
        }
    }

    /// Releases leases with one statement, and answers each release.
    async fn release(&self, queued: Vec<QueuedRelease>) {
        let (releases, replies): (Vec<LeaseRelease>, Vec<_>) = queued
            .into_iter()
            .map(|one| (one.release, one.reply))
            .unzip();
        let results = self.store.release_all(&self.session, &releases).await;
        let results = results.unwrap_or_else(|error| vec![Err(error); releases.len()]);
        for (reply, result) in replies.into_iter().zip(results) {
            let _ = reply.send(result);
        }
    }

    /// Builds a statement from `first` and the waiting requests that fit into it.
    fn gather(&mut self, first: QueueRequest) -> AppendStatement {
        let mut statement = AppendStatement::default();
        let mut request = Some(first);
        while let Some(next) = request {
            self.carried = self.admit(&mut statement, next);
            if self.carried.is_some() || statement.is_full() {
                break;
            }
            request = self.requests.try_recv().ok();
        }
        statement
    }

    /// Registers an agent, adds a save or a release to the statement, or answers a save that must
    /// not be sent.
    /// Returns the request if it has to wait for the next statement.
    fn admit(
        &mut self,
        statement: &mut AppendStatement,
        request: QueueRequest,
    ) -> Option<QueueRequest> {
        match request {
            QueueRequest::Enroll { agent, last_seq } if !statement.has(&agent) => {
                self.failures.forget(&agent);
                let enrolled = EnrolledAgent {
                    last_seq,
                    ..EnrolledAgent::default()
                };
                self.agents.insert(agent, enrolled);
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

    fn admit_save(
        &mut self,
        statement: &mut AppendStatement,
        queued: QueuedSave,
    ) -> Option<QueuedSave> {
        let Some(agent) = self.agents.get(&queued.agent) else {
            let error = AppendError::NotEnrolled(queued.agent);
            let _ = queued
                .writer
                .reply
                .send(Err(SaveFailure { number: 0, error }));
            return None;
        };
        match agent.refusal(queued.epoch, queued.writer.knows) {
            Some(failure) => {
                self.refuse(&queued.agent, queued.writer, failure);
                None
            }
            None => statement.add(queued, agent.last_seq).err(),
        }
    }

    /// Sends one statement and answers its saves. If the store refuses the inputs or the data of a
    /// batch with several saves, sends these saves one by one.
    async fn write(&mut self, batches: Vec<Batch>, writers: Vec<Vec<SaveWriter>>) {
        let answer = self.send(&batches).await;
        for ((batch, writers), (outcome, totals)) in batches.into_iter().zip(writers).zip(answer) {
            match outcome {
                Err(AppendError::InputsGone(_) | AppendError::Refused(_)) if writers.len() > 1 => {
                    self.write_alone(batch, writers).await;
                }
                outcome => self.settle(&batch, writers, outcome, totals),
            }
        }
    }

    /// Writes each save of a batch with its own statement.
    async fn write_alone(&mut self, batch: Batch, writers: Vec<SaveWriter>) {
        for (save, writer) in batch.saves.into_iter().zip(writers) {
            let Some(agent) = self.agents.get(&batch.agent) else {
                continue;
            };
            if let Some(failure) = agent.refusal(batch.epoch, writer.knows) {
                self.refuse(&batch.agent, writer, failure);
                continue;
            }
            let alone = Batch {
                agent: batch.agent.clone(),
                epoch: batch.epoch,
                prev: agent.last_seq,
                saves: vec![save],
            };
            let answer = self.send(std::slice::from_ref(&alone)).await.pop();
            let (outcome, totals) =
                answer.unwrap_or_else(|| (Err(too_few_answers()), Usage::default()));
            self.settle(&alone, vec![writer], outcome, totals);
        }
    }

    /// Sends batches repeatedly until their outcome is known. Returns, for each batch, its outcome
    /// and the session's totals.
    async fn send(&self, batches: &[Batch]) -> Vec<(Result<Vec<Seq>, AppendError>, Usage)> {
        let Appended {
            batches: outcomes,
            session,
        } = match self.send_until_known(batches).await {
            Ok(appended) => appended,
            Err(error) => return vec![(Err(error), Usage::default()); batches.len()],
        };
        let mut outcomes = outcomes.into_iter();
        let answer = |batch: &Batch| match outcomes.next() {
            Some(BatchOutcome::Written(seqs)) if seqs.len() == batch.rows() => Ok(seqs),
            Some(BatchOutcome::Written(_)) | None => Err(too_few_answers()),
            Some(BatchOutcome::StaleEpoch) => Err(AppendError::StaleEpoch),
            Some(BatchOutcome::InputsGone(inputs)) => Err(AppendError::InputsGone(inputs)),
            Some(BatchOutcome::Refused(why)) => Err(AppendError::Refused(why)),
        };
        batches
            .iter()
            .map(answer)
            .map(|outcome| (outcome, session))
            .collect()
    }

    async fn send_until_known(&self, batches: &[Batch]) -> Result<Appended, AppendError> {
        let mut pause = FIRST_PAUSE;
        let mut tries = 0_u32;
        loop {
            match self.store.append(&self.session, &self.node, batches).await {
                Ok(appended) => {
                    if tries > 0 {
                        tracing::info!(session = %self.session, tries, "saved after several attempts");
                    }
                    return Ok(appended);
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
                Err(error) => return Err(AppendError::Broken(error.to_string())),
            }
            tokio::time::sleep(pause.mul_f64(fastrand::f64() / 2.0 + 0.75)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Answers the writers of a batch's saves.
    fn settle(
        &mut self,
        batch: &Batch,
        writers: Vec<SaveWriter>,
        outcome: Result<Vec<Seq>, AppendError>,
        session_totals: Usage,
    ) {
        let seqs = match outcome {
            Ok(seqs) => seqs,
            Err(error) => return self.fail(batch, writers, error),
        };
        let Some(known) = self.agents.get_mut(&batch.agent) else {
            return;
        };
        let mut rest = seqs.as_slice();
        for (save, writer) in batch.saves.iter().zip(writers) {
            let (mine, others) = rest.split_at(save.entries.len().min(rest.len()));
            rest = others;
            let written = WrittenRows {
                seqs: mine.to_vec(),
                prev: known.last_seq,
                session_totals,
            };
            known.last_seq = mine.last().copied().unwrap_or(known.last_seq);
            // Sending fails only if the writer dropped its receipt. The rows are written
            // nevertheless.
            let _ = writer.reply.send(Ok(written));
        }
    }

    fn fail(&mut self, batch: &Batch, writers: Vec<SaveWriter>, error: AppendError) {
        self.failed += 1;
        let failure = SaveFailure {
            number: self.failed,
            error,
        };
        if let Some(known) = self.agents.get_mut(&batch.agent) {
            let failed = Some((failure.clone(), batch.epoch));
            match failure.error {
                AppendError::StaleEpoch
                    if known
                        .fenced
                        .as_ref()
                        .is_none_or(|(_, fenced)| *fenced < batch.epoch) =>
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
        for writer in writers {
            self.refuse(&batch.agent, writer, failure.clone());
        }
    }

    /// Answers a save. A failure whose receipt was dropped counts as known, because no later save
    /// was built on the failed one.
    fn refuse(&self, agent: &AgentId, writer: SaveWriter, failure: SaveFailure) {
        if let Err(Err(failure)) = writer.reply.send(Err(failure)) {
            self.failures.add(agent, failure.number);
        }
    }
}

fn too_few_answers() -> AppendError {
    AppendError::Broken("the store answered for fewer rows than it was given".into())
}
