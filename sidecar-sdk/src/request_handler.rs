//! Answers requests, independently of how they arrive. It tracks the running calls, refuses callers
//! with an old epoch, and handles calls that are repeated, are cancelled, run out of time or panic.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use planck_common::{
    AgentId, CallId, PROTOCOL_VERSION,
    sidecar::{
        CompactMessage, CompactReply, CompactRequest, IN_PROGRESS, ToolMessage, ToolReply,
        ToolRequest,
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Compactor, Context, Conversation, Sidecar, Tool, compactor,
    context::{self, until_asked},
    local::{GRACE, LONGEST, LocalEnd, panic_text},
};

/// The number of calls that may wait for each call that may run at once.
const WAITING: usize = 16;

/// The reason why a call has no result.
enum NoResult {
    /// An earlier request with the same call id is still running.
    InProgress,
    Because(String),
}

impl From<String> for NoResult {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

pub struct RequestHandler {
    tools: HashMap<String, Tool>,
    compactors: BTreeMap<String, Box<dyn Compactor>>,
    running: Mutex<HashMap<CallId, CancellationToken>>,
    epochs: Mutex<Epochs>,
    slots: Semaphore,
    most: usize,
}

/// A call that counts as running until this value is dropped, which frees the call's id.
struct RunningCall<'a> {
    handler: &'a RequestHandler,
    call_id: CallId,
    cancel: CancellationToken,
}

impl RequestHandler {
    pub fn of(sidecar: Sidecar) -> Self {
        let at_once = sidecar.bounds.at_once.min(Semaphore::MAX_PERMITS);
        Self {
            tools: sidecar
                .tools
                .into_iter()
                .map(|tool| (tool.name.clone(), tool))
                .collect(),
            compactors: sidecar.compactors,
            running: Mutex::default(),
            epochs: Mutex::default(),
            slots: Semaphore::new(at_once),
            most: at_once.saturating_mul(WAITING + 1),
        }
    }

    /// Cancels a call whose answer is no longer needed.
    pub fn cancel(&self, call_id: &str) {
        if let Some(cancel) = lock(&self.running).get(call_id) {
            cancel.cancel();
        }
    }

    /// Cancels all calls.
    pub fn cancel_all(&self) {
        lock(&self.running)
            .values()
            .for_each(CancellationToken::cancel);
    }

    /// Runs a tool for a request, as part of the caller's trace, and returns the reply. Progress
    /// goes to `reports` meanwhile.
    pub async fn tool(
        &self,
        name: &str,
        body: &[u8],
        traceparent: Option<String>,
        reports: mpsc::Sender<ToolMessage>,
    ) -> ToolReply {
        let said = self.run_tool(name, body, traceparent, reports).await;
        ToolReply {
            v: PROTOCOL_VERSION,
            message: match said {
                Ok(LocalEnd::Answer(text)) => ToolMessage::Ok(text),
                Ok(LocalEnd::Question(question)) => ToolMessage::Ask(question),
                Err(NoResult::InProgress) => ToolMessage::InProgress,
                Err(NoResult::Because(why)) => ToolMessage::Error(why),
            },
        }
    }

    async fn run_tool(
        &self,
        name: &str,
        body: &[u8],
        traceparent: Option<String>,
        reports: mpsc::Sender<ToolMessage>,
    ) -> Result<LocalEnd, NoResult> {
        let request: ToolRequest = parse(body, |request: &ToolRequest| request.v)?;
        let tool = self
            .tools
            .get(name)
            .ok_or_else(|| format!("there is no tool `{name}` here"))?;
        self.admit(&request.agent_id, request.epoch)?;
        let ticket = self.begin(&request.call_id)?;
        let (questions, mut asked) = mpsc::channel(1);
        let context = Context {
            call_id: request.call_id,
            agent_id: request.agent_id,
            session_id: request.session_id,
            team: Some((request.team_id, request.epoch)),
            deadline: deadline(request.deadline_ms),
            cancel: ticket.cancel.clone(),
            reports,
            questions: request.may_ask.then_some(questions),
            answer: request.answer,
            traceparent,
        };
        let (deadline, parent) = (context.deadline, context.traceparent.clone());
        let work = || until_asked((tool.function)(context, &request.args), &mut asked);
        let ended = self.perform(&ticket, deadline, || {
            context::within_trace(parent.as_deref(), work)
        });
        Ok(ended.await?)
    }

    /// Runs a compactor for a request, and returns the reply.
    pub async fn compact(
        &self,
        name: &str,
        body: &[u8],
        traceparent: Option<String>,
    ) -> CompactReply {
        let said = self
            .run_compactor(name, body, traceparent)
            .await
            .unwrap_or_else(|refused| match refused {
                NoResult::InProgress => CompactMessage::Error(IN_PROGRESS.into()),
                NoResult::Because(why) => CompactMessage::Error(why),
            });
        CompactReply {
            v: PROTOCOL_VERSION,
            message: said,
        }
    }

    async fn run_compactor(
        &self,
        name: &str,
        body: &[u8],
        traceparent: Option<String>,
    ) -> Result<CompactMessage, NoResult> {
        let request: CompactRequest = parse(body, |request: &CompactRequest| request.v)?;
        let compactor = self
            .compactors
            .get(name)
            .ok_or_else(|| format!("there is no compactor `{name}` here"))?;
        let ticket = self.begin(&request.call_id)?;
        let (reports, _nobody_hears_them) = mpsc::channel(1);
        let context = Context {
            call_id: request.call_id,
            agent_id: request.agent_id,
            session_id: request.session_id,
            team: None,
            deadline: deadline(request.deadline_ms),
            cancel: ticket.cancel.clone(),
            reports,
            questions: None,
            answer: None,
            traceparent,
        };
        let (deadline, parent) = (context.deadline, context.traceparent.clone());
        let conversation = Conversation {
            model: request.model,
            messages: request.messages,
            tokens: request.tokens,
        };
        let work = || compactor.compact(context, conversation);
        let decision = self
            .perform(&ticket, deadline, || {
                context::within_trace(parent.as_deref(), work)
            })
            .await;
        Ok(compactor::said(decision))
    }

    fn admit(&self, agent: &AgentId, epoch: i64) -> Result<(), String> {
        let seen = lock(&self.epochs).see(agent, epoch);
        seen.map_err(|highest| {
            format!("stale epoch {epoch}: agent {agent} has called with {highest}")
        })
    }

    fn begin(&self, call_id: &CallId) -> Result<RunningCall<'_>, NoResult> {
        let mut running = lock(&self.running);
        if running.contains_key(call_id) {
            return Err(NoResult::InProgress);
        }
        if running.len() >= self.most {
            let calls = running.len();
            return Err(format!("busy: {calls} calls run or wait here; try again later").into());
        }
        let cancel = CancellationToken::new();
        running.insert(call_id.clone(), cancel.clone());
        Ok(RunningCall {
            handler: self,
            call_id: call_id.clone(),
            cancel,
        })
    }

    /// Waits for a free slot and runs the work until it ends or panics, until [`GRACE`] after its
    /// cancellation, or until the deadline.
    async fn perform<T, R>(
        &self,
        ticket: &RunningCall<'_>,
        deadline: Instant,
        work: impl FnOnce() -> R + Send,
    ) -> Result<T, String>
    where
        R: Future<Output = Result<T, String>> + Send,
    {
        let work = async {
            let _slot = self
                .slots
                .acquire()
                .await
                .map_err(|_| "this sidecar is stopping")?;
            work().await
        };
        let cancelled = async {
            ticket.cancel.cancelled().await;
            sleep(GRACE).await;
        };
        tokio::select! {
            biased;
            ended = AssertUnwindSafe(work).catch_unwind() => ended.unwrap_or_else(|panic| Err(panic_text(panic.as_ref()))),
            () = cancelled => Err("cancelled: the answer was no longer wanted".into()),
            () = sleep_until(deadline) => Err("out of time: the call's deadline has passed".into()),
        }
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        lock(&self.handler.running).remove(&self.call_id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn deadline(left_ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(left_ms).min(LONGEST)
}

fn parse<T: DeserializeOwned>(body: &[u8], version: impl Fn(&T) -> u32) -> Result<T, String> {
    let request =
        serde_json::from_slice(body).map_err(|error| format!("malformed request: {error}"))?;
    match version(&request) {
        PROTOCOL_VERSION => Ok(request),
        other => Err(format!(
            "the request has version {other} of the protocol, this sidecar speaks {PROTOCOL_VERSION}"
        )),
    }
}

/// The maximum number of agents. The agent whose last call is the longest ago is removed first.
const AGENTS: usize = 10_000;

#[derive(Debug, Default)]
pub struct Epochs {
    seen: HashMap<AgentId, SeenEpoch>,
    /// The agents by the number of their last call.
    by_call: BTreeMap<u64, AgentId>,
    calls: u64,
}

#[derive(Debug)]
struct SeenEpoch {
    highest: i64,
    /// The number of the agent's last call.
    call: u64,
}

impl Epochs {
    /// Records an agent's epoch. Returns the recorded epoch as an error if it is higher.
    pub fn see(&mut self, agent: &AgentId, epoch: i64) -> Result<(), i64> {
        self.calls += 1;
        let call = self.calls;
        match self.seen.get_mut(agent) {
            Some(seen) if epoch < seen.highest => return Err(seen.highest),
            Some(seen) => {
                self.by_call.remove(&seen.call);
                seen.highest = epoch;
                seen.call = call;
            }
            None => {
                let seen = SeenEpoch {
                    highest: epoch,
                    call,
                };
                self.seen.insert(agent.clone(), seen);
            }
        }
        self.by_call.insert(call, agent.clone());
        if self.by_call.len() > AGENTS
            && let Some((_, agent)) = self.by_call.pop_first()
        {
            self.seen.remove(&agent);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_epoch_is_refused_and_memory_is_bounded() {
        let mut epochs = Epochs::default();
        let agent = |number: usize| AgentId::parse(&format!("a{number}")).unwrap();
        assert_eq!(epochs.see(&agent(0), 3), Ok(()));
        assert_eq!(epochs.see(&agent(0), 2), Err(3));
        assert_eq!(epochs.see(&agent(0), 3), Ok(()));
        (1..=AGENTS).for_each(|number| epochs.see(&agent(number), 1).unwrap());
        assert_eq!((epochs.seen.len(), epochs.by_call.len()), (AGENTS, AGENTS));
        assert_eq!(epochs.see(&agent(0), 2), Ok(()), "it was forgotten");
        assert_eq!(epochs.see(&agent(AGENTS), 0), Err(1));
    }

    #[test]
    fn agent_that_calls_is_not_forgotten() {
        let mut epochs = Epochs::default();
        let agent = |number: usize| AgentId::parse(&format!("a{number}")).unwrap();
        epochs.see(&agent(0), 3).unwrap();
        for number in 1..AGENTS {
            epochs.see(&agent(number), 1).unwrap();
        }
        epochs.see(&agent(0), 3).unwrap();
        epochs.see(&agent(AGENTS), 1).unwrap();
        assert_eq!(epochs.see(&agent(0), 2), Err(3));
        assert_eq!(epochs.see(&agent(1), 0), Ok(()), "its call is the oldest");
    }
}
