//! The running work of an agent: model calls, tool calls, compactions and timers. Each is a task
//! with the ticket of the effect that it answers.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use tokio::{
    sync::mpsc,
    task::{AbortHandle, Id, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::{Input, Ticket, input::CompactionResult},
    model::{Failure, FailureKind},
};
use planck_toolbox::ToolOutcome;

/// The maximum number of queued intermediate answers. While the queue is full, tasks wait, and
/// tools drop their progress reports.
const ANSWERS: usize = 32;

/// How long a cancelled tool may take to return a partial result. This is longer than the time that
/// the tool's runner gives its processes to end.
const GRACE: Duration = Duration::from_secs(8);

/// The channel for intermediate answers. The answers are boxed because the channel reserves space
/// for 32 of them.
pub type Answers = mpsc::Sender<Box<Input>>;

pub struct ActorWork {
    tasks: JoinSet<FinishedWork>,
    running: BTreeMap<Ticket, RunningWork>,
    tickets: HashMap<Id, Ticket>,
    /// Each task whose work would be lost or repeated if the agent moved to another node holds a
    /// clone of this value.
    bound: Arc<()>,
    /// The channel for intermediate answers, created on first use.
    pieces: Option<(Answers, mpsc::Receiver<Box<Input>>)>,
}

/// The last answer of a task. `_bound` keeps the agent on this node until the answer is read.
pub struct FinishedWork {
    input: Input,
    _bound: Option<Arc<()>>,
}

impl FinishedWork {
    pub fn of(input: Input, bound: Option<Arc<()>>) -> Self {
        Self {
            input,
            _bound: bound,
        }
    }
}

impl From<Input> for FinishedWork {
    fn from(input: Input) -> Self {
        Self::of(input, None)
    }
}

struct RunningWork {
    kind: WorkKind,
    task: AbortHandle,
    cancel: CancellationToken,
    since: Instant,
    /// The task that answers in place of a cancelled tool.
    stand_in: Option<AbortHandle>,
}

impl RunningWork {
    fn abort(&self) {
        self.task.abort();
        if let Some(stand_in) = &self.stand_in {
            stand_in.abort();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    Model,
    Tool,
    Compaction,
    Timer,
}

impl Default for ActorWork {
    fn default() -> Self {
        Self {
            tasks: JoinSet::new(),
            running: BTreeMap::new(),
            tickets: HashMap::new(),
            bound: Arc::new(()),
            pieces: None,
        }
    }
}

impl ActorWork {
    /// Starts a task whose return value is its last answer. `cancel` is cancelled when the answer
    /// is no longer needed.
    pub fn start<D: Into<FinishedWork>>(
        &mut self,
        ticket: Ticket,
        kind: WorkKind,
        cancel: CancellationToken,
        task: impl Future<Output = D> + Send + 'static,
    ) {
        let task = self.tasks.spawn(async move { task.await.into() });
        self.tickets.insert(task.id(), ticket);
        self.running.insert(
            ticket,
            RunningWork {
                kind,
                task,
                cancel,
                since: Instant::now(),
                stand_in: None,
            },
        );
    }

    /// Returns the channel for intermediate answers. The last answer of a task is its return value.
    pub fn answers(&mut self) -> Answers {
        self.pieces
            .get_or_insert_with(|| mpsc::channel(ANSWERS))
            .0
            .clone()
    }

    /// Returns a handle for work that must not be interrupted. While an upgraded handle exists, the
    /// agent stays on this node.
    pub fn binding(&self) -> Weak<()> {
        Arc::downgrade(&self.bound)
    }

    pub fn is_bound(&self) -> bool {
        Arc::strong_count(&self.bound) > 1
    }

    /// Cancels a task. A tool still answers with its partial result, once all processes that it
    /// started have ended. If the tool does not answer within [`GRACE`], an empty result replaces
    /// its answer. Other tasks do not answer.
    pub fn cancel(&mut self, ticket: Ticket) {
        let Some(running) = self.running.get(&ticket) else {
            return;
        };
        running.cancel.cancel();
        match running.kind {
            WorkKind::Tool => self.give_up_on(ticket, running.since),
            WorkKind::Model | WorkKind::Compaction | WorkKind::Timer => {
                running.task.abort();
                self.running.remove(&ticket);
            }
        }
    }

    /// Cancels all tasks, and waits for at most [`GRACE`] until they have ended, including the
    /// processes of tools.
    pub async fn wind_up(&mut self) {
        for running in self.running.values() {
            running.cancel.cancel();
            match (running.kind, &running.stand_in) {
                (WorkKind::Tool, None) => {}
                (WorkKind::Tool, Some(stand_in)) => stand_in.abort(),
                (WorkKind::Model | WorkKind::Compaction | WorkKind::Timer, _) => running.abort(),
            }
        }
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        let _late = tokio::time::timeout(GRACE, ended).await;
    }

    /// Schedules the answer of a cancelled tool in case it does not answer within [`GRACE`].
    fn give_up_on(&mut self, ticket: Ticket, since: Instant) {
        let answer = self.tasks.spawn(async move {
            tokio::time::sleep(GRACE).await;
            Input::ToolDone {
                ticket,
                outcome: ToolOutcome::stopped(""),
                elapsed: since.elapsed(),
            }
            .into()
        });
        self.tickets.insert(answer.id(), ticket);
        if let Some(running) = self.running.get_mut(&ticket) {
            running.stand_in = Some(answer);
        }
    }

    /// Returns the next answer of any task. All intermediate answers of a task come before its last
    /// one.
    pub async fn next(&mut self) -> Input {
        loop {
            let pieces = &mut self.pieces;
            tokio::select! {
                biased;
                Some(input) = async { pieces.as_mut()?.1.recv().await } => return *input,
                Some(ended) = self.tasks.join_next_with_id() => {
                    if let Some(input) = self.ended(ended) {
                        return input;
                    }
                }
                else => std::future::pending().await,
            }
        }
    }

    fn ended(&mut self, ended: Result<(Id, FinishedWork), JoinError>) -> Option<Input> {
        match ended {
            Ok((id, done)) => {
                let ticket = self.tickets.remove(&id)?;
                self.running.remove(&ticket)?.abort();
                Some(done.input)
            }
            Err(error) => {
                let ticket = self.tickets.remove(&error.id())?;
                let running = self.running.remove(&ticket)?;
                error
                    .is_panic()
                    .then(|| running.kind.panicked(ticket, running.since.elapsed()))
            }
        }
    }

    /// Returns whether no work is running.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }
}

impl WorkKind {
    /// Returns the answer of a task that panicked.
    fn panicked(self, ticket: Ticket, elapsed: Duration) -> Input {
        let panicked = "it failed by a bug in its code (a panic); the node's log has it";
        match self {
            Self::Model => Input::Answered {
                ticket,
                chunks: Vec::new(),
                result: Err(Failure::new(
                    FailureKind::Refused,
                    format!("the model call: {panicked}"),
                )),
                jitter: 0.0,
            },
            Self::Tool => Input::ToolDone {
                ticket,
                outcome: ToolOutcome::error(format!("the tool: {panicked}")),
                elapsed,
            },
            Self::Compaction => Input::Compacted {
                ticket,
                result: CompactionResult::Failed(format!("the compactor: {panicked}")),
            },
            Self::Timer => Input::TimerEnded(ticket),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_finished_task_binds_the_agent_until_its_answer_is_read() {
        let mut work = ActorWork::default();
        let bound = work.binding().upgrade();
        let task = async move { FinishedWork::of(Input::TimerEnded(Ticket(1)), bound) };
        work.start(Ticket(1), WorkKind::Timer, CancellationToken::new(), task);
        while !work.running[&Ticket(1)].task.is_finished() {
            tokio::task::yield_now().await;
        }
        assert!(work.is_bound());
        assert!(matches!(work.next().await, Input::TimerEnded(Ticket(1))));
        assert!(!work.is_bound());
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_tool_that_has_answered_delays_no_end() {
        let mut work = ActorWork::default();
        for ticket in [Ticket(1), Ticket(2)] {
            let cancel = CancellationToken::new();
            let task = cancel.clone().cancelled_owned();
            let task = async move {
                task.await;
                Input::TimerEnded(ticket)
            };
            work.start(ticket, WorkKind::Tool, cancel, task);
            work.cancel(ticket);
        }
        work.next().await;
        let began = tokio::time::Instant::now();
        work.wind_up().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
