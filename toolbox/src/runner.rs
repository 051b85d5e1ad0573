//! Runs the tool calls of an agent. The runner finds the tool, checks the arguments, limits time,
//! output and concurrency, and turns every failure into text for the model.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use serde_json::value::RawValue;
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use planck_agent::storable;
use planck_common::event::ToolEffect;

use super::{
    CallEnd, Invocation, Tool, ToolOutcome, catalogue::ToolEntry, output::Caps,
    outside::checked_question, protect::Wall, schema::CompiledSchema, toolbox::Toolbox,
};

/// The maximum time that a cancelled tool may take to return its partial result. Killing the
/// processes of a call takes less.
const GRACE: Duration = Duration::from_secs(6);

/// The result of a call whose arguments are the answer of its turn.
const TAKEN: &str = "The answer is taken.";

/// The maximum number of an agent's calls that wait for other agents or nodes at once. New agents
/// that several of these calls request are created in one batch.
const WAITING: usize = 128;

/// The limits of one agent's calls.
#[derive(Debug, Clone, Copy)]
pub struct CallBounds {
    /// The maximum number of calls that do work on this node at once. Further calls wait.
    pub at_once: usize,
    pub caps: Caps,
    /// The default time limit of a call.
    pub timeout: Duration,
}

impl Default for CallBounds {
    fn default() -> Self {
        Self {
            at_once: 16,
            caps: Caps::default(),
            timeout: Duration::from_secs(300),
        }
    }
}

/// The runner of one agent's calls. Clones share its slots.
#[derive(Debug, Clone)]
pub struct Runner {
    slots: Arc<Semaphore>,
    /// Permits for calls that wait for other agents or nodes.
    waiting: Arc<Semaphore>,
    bounds: CallBounds,
    /// Absent on a node whose tools start no processes.
    wall: Option<Wall>,
}

impl Default for Runner {
    fn default() -> Self {
        Self::new(CallBounds::default(), None)
    }
}

impl Runner {
    /// Creates a runner. Behind a wall, no call runs while changes of protected files are undecided.
    pub fn new(bounds: CallBounds, wall: Option<Wall>) -> Self {
        let slots = |count: usize| Arc::new(Semaphore::new(count.max(1)));
        Self {
            slots: slots(bounds.at_once),
            waiting: slots(WAITING),
            bounds,
            wall,
        }
    }

    /// Runs a call. Always returns an outcome, at most `GRACE` after `call.cancel` or the time
    /// limit.
    pub async fn run(&self, toolbox: &Toolbox, name: &str, call: Invocation) -> ToolOutcome {
        let Some(entry) = toolbox.find(name) else {
            return self.capped(ToolOutcome::error(toolbox.no_such_tool(name)));
        };
        let cancel = call.cancel.clone();
        let refusal = tokio::select! {
            biased;
            () = cancel.cancelled() => return ToolOutcome::stopped(""),
            refusal = entry.schema.refusal(name, &call.args) => refusal,
        };
        if let Some(refusal) = refusal {
            return self.capped(ToolOutcome::error(refusal));
        }
        if let Some(held) = self.held(entry, &call).await {
            return self.capped(held);
        }
        let slots = if entry.tool.waits() {
            &self.waiting
        } else {
            &self.slots
        };
        let slot = tokio::select! {
            biased;
            () = cancel.cancelled() => return ToolOutcome::stopped(""),
            slot = slots.acquire() => slot,
        };
        let outcome = run_bounded(entry.tool.as_ref(), name, call, self.bounds.timeout).await;
        drop(slot);
        let question = outcome.question.as_deref().map(checked_question);
        self.capped(match question {
            Some(Ok(question)) => ToolOutcome {
                question: Some(Box::new(question)),
                ..outcome
            },
            Some(Err(why)) => ToolOutcome::error(why),
            None => outcome,
        })
    }

    /// Checks the arguments of a call that gives the answer of a turn. The schema comes with the call,
    /// and nothing else is done.
    pub async fn take_output(
        &self,
        name: &str,
        schema: &RawValue,
        call: Invocation,
    ) -> ToolOutcome {
        let schema = match CompiledSchema::compile(schema.get()) {
            Ok(schema) => Arc::new(schema),
            Err(why) => {
                return ToolOutcome::error(format!("the output schema cannot be used: {why}"));
            }
        };
        let refusal = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return ToolOutcome::stopped(""),
            refusal = schema.refusal(name, &call.args) => refusal,
        };
        self.capped(refusal.map_or_else(|| ToolOutcome::ok(TAKEN), ToolOutcome::error))
    }

    /// Returns the outcome of a call that may not run now, because earlier calls of the session
    /// changed protected files. Calls without an effect, and those that only wait, run.
    async fn held(&self, entry: &ToolEntry, call: &Invocation) -> Option<ToolOutcome> {
        let wall = self.wall.as_ref()?;
        if entry.tool.waits() || entry.tool.spec().effect == ToolEffect::Pure {
            return None;
        }
        match wall.undecided(&call.session_id).await {
            Ok(changes) if changes.is_empty() => None,
            Ok(changes) => Some(ToolOutcome::not_run(changes)),
            Err(why) => Some(ToolOutcome::error(format!(
                "not run: cannot tell whether protected files were changed: {why}"
            ))),
        }
    }

    fn capped(&self, outcome: ToolOutcome) -> ToolOutcome {
        ToolOutcome {
            text: self.bounds.caps.apply(storable::text(outcome.text)),
            ..outcome
        }
    }
}

/// Runs the tool until it returns. After a cancellation or the time limit, the tool gets [`GRACE`]
/// to return.
async fn run_bounded(
    tool: &dyn Tool,
    name: &str,
    mut call: Invocation,
    usual: Duration,
) -> ToolOutcome {
    let abort = call.cancel.clone();
    let stop = abort.child_token();
    call.cancel = stop.clone();
    let limit = tool.timeout(usual);
    let mut running = std::pin::pin!(guarded(tool, name, call));
    let over = tokio::select! {
        biased;
        outcome = &mut running => return if abort.is_cancelled() { stopped(outcome) } else { outcome },
        () = abort.cancelled() => None,
        limit = over(limit) => Some(limit),
    };
    stop.cancel();
    let ended = timeout(GRACE, running).await;
    let outcome = stopped(ended.unwrap_or_else(|_| ToolOutcome::stopped("")));
    match over {
        Some(limit) => timed_out(outcome, name, limit),
        None => outcome,
    }
}

async fn over(limit: Option<Duration>) -> Duration {
    match limit {
        Some(limit) => {
            sleep(limit).await;
            limit
        }
        None => std::future::pending().await,
    }
}

/// Returns the outcome of a cancelled tool. A result that the tool completed is kept. An error may
/// be a consequence of the cancellation, so its text becomes the partial result.
fn stopped(outcome: ToolOutcome) -> ToolOutcome {
    let end = match outcome.end {
        CallEnd::Done => CallEnd::Done,
        CallEnd::Failed | CallEnd::Stopped => CallEnd::Stopped,
        CallEnd::NotRun => CallEnd::NotRun,
    };
    ToolOutcome { end, ..outcome }
}

/// Returns the outcome of a tool that was cancelled at its time limit. Only the runner knows that
/// the time limit was the reason, so it adds the message to a partial result. A completed result is
/// kept.
fn timed_out(outcome: ToolOutcome, name: &str, limit: Duration) -> ToolOutcome {
    match outcome.end {
        CallEnd::Done | CallEnd::Failed | CallEnd::NotRun => outcome,
        CallEnd::Stopped => {
            let why = format!(
                "`{name}` was stopped: it took longer than {} ms",
                limit.as_millis()
            );
            ToolOutcome {
                end: CallEnd::Failed,
                text: outcome.text_for_model(&why).into_owned(),
                ..outcome
            }
        }
    }
}

/// Runs the tool. A panic becomes a failure of this call, and the agent continues.
async fn guarded(tool: &dyn Tool, name: &str, call: Invocation) -> ToolOutcome {
    AssertUnwindSafe(tool.run(call))
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| {
            tracing::error!(tool = name, "a tool panicked");
            ToolOutcome::error(format!("`{name}` failed: {}", message(panic.as_ref())))
        })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it panicked")
}

#[cfg(test)]
mod tests;
