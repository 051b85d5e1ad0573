//! The calls of one answer, and the one message with their results in the same order. A call runs,
//! waits for an answer from outside, or has its result.

use std::time::Duration;

use planck_common::{
    CallId, Timestamp,
    command::RunningTool,
    event::ToolEnd,
    message::{MessageBody, MessageMetadata, MessageRole, Part},
    wait::WaitKind,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Ticket, answer::AnswerFault};

#[derive(Debug)]
pub(super) struct Round {
    slots: Vec<CallSlot>,
    running: usize,
    /// Why the turn ends after the results.
    pub fault: Option<AnswerFault>,
}

/// A call as the provider and the runtime name it.
#[derive(Debug, Clone)]
pub(super) struct CallNames {
    pub id: String,
    pub call_id: CallId,
    pub name: String,
}

#[derive(Debug)]
struct CallSlot {
    call: CallNames,
    state: CallState,
}

#[derive(Debug)]
enum CallState {
    Running {
        ticket: Ticket,
        since: Timestamp,
        /// The arguments, with which the call runs again if it did not run.
        args: Box<RawValue>,
        remark: Option<String>,
    },
    Waiting(OpenWait),
    Done {
        text: String,
        error: bool,
    },
}

/// The wait of a call.
#[derive(Debug)]
pub(super) struct OpenWait {
    pub id: CallId,
    pub kind: WaitKind,
    pub digest: String,
    /// The arguments of the call.
    pub args: Box<RawValue>,
    /// The remark that is added to the result.
    pub remark: Option<String>,
    /// The result of a call that has run and changed protected files.
    pub result: Option<HeldResult>,
}

/// The result of a call, which is kept until a person has decided about the call's changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct HeldResult {
    pub text: String,
    pub error: bool,
    pub duration_ms: u64,
}

impl Round {
    pub(super) fn new(fault: Option<AnswerFault>) -> Self {
        Self {
            slots: Vec::new(),
            running: 0,
            fault,
        }
    }

    /// Returns whether a call has no result yet.
    pub(super) fn is_open(&self) -> bool {
        self.running > 0 || self.waits().next().is_some()
    }

    /// Returns whether no call runs and at least one waits.
    pub(super) fn only_waits(&self) -> bool {
        self.running == 0 && self.waits().next().is_some()
    }

    /// Returns the calls that wait, with their waits.
    pub(super) fn waits(&self) -> impl Iterator<Item = (&CallNames, &OpenWait)> {
        self.slots.iter().filter_map(|slot| match &slot.state {
            CallState::Waiting(wait) => Some((&slot.call, wait)),
            CallState::Running { .. } | CallState::Done { .. } => None,
        })
    }

    /// Adds a call that waits for an answer.
    pub(super) fn wait(&mut self, call: CallNames, wait: OpenWait) {
        self.set(call, CallState::Waiting(wait));
    }

    /// Removes a wait, and returns it with its call. The caller has to run or end the call, or let
    /// it wait again. Returns `None` if there is no such wait.
    pub(super) fn take_wait(&mut self, id: &CallId) -> Option<(CallNames, OpenWait)> {
        let at = self.slots.iter().position(|slot| slot.waits_as(id))?;
        let slot = self.slots.get_mut(at)?;
        let nothing = CallState::Done {
            text: String::new(),
            error: true,
        };
        match std::mem::replace(&mut slot.state, nothing) {
            CallState::Waiting(wait) => Some((slot.call.clone(), wait)),
            CallState::Running { .. } | CallState::Done { .. } => None,
        }
    }

    /// Adds a call that runs. The remark is appended to its result.
    pub(super) fn start(
        &mut self,
        call: CallNames,
        ticket: Ticket,
        since: Timestamp,
        args: Box<RawValue>,
        remark: Option<String>,
    ) {
        self.running += 1;
        let running = CallState::Running {
            ticket,
            since,
            args,
            remark,
        };
        self.set(call, running);
    }

    /// Adds a call whose result is already known.
    pub(super) fn settle(&mut self, call: CallNames, text: String, error: bool) {
        self.set(call, CallState::Done { text, error });
    }

    /// Sets the state of a call, which keeps its place if the round has it already.
    fn set(&mut self, call: CallNames, state: CallState) {
        let known = self
            .slots
            .iter_mut()
            .find(|slot| slot.call.call_id == call.call_id);
        match known {
            Some(slot) => slot.state = state,
            None => self.slots.push(CallSlot { call, state }),
        }
    }

    pub(super) fn runs(&self, ticket: Ticket) -> Option<&CallNames> {
        self.slots
            .iter()
            .find(|slot| slot.is_running(ticket))
            .map(|slot| &slot.call)
    }

    /// Stores the result of a running call, and returns its `tool_end`. Returns `None` if no call
    /// with this ticket is running.
    pub(super) fn finish(
        &mut self,
        ticket: Ticket,
        text: String,
        error: bool,
        elapsed: Duration,
    ) -> Option<ToolEnd> {
        let slot = self.slots.iter_mut().find(|slot| slot.is_running(ticket))?;
        let duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let end = slot.finish(text, error, duration_ms);
        self.running -= 1;
        Some(end)
    }

    /// Lets a running call wait until a person has decided about changes of protected files.
    /// `result` is absent if the call did not run. Does nothing if no such call is running.
    pub(super) fn hold(
        &mut self,
        ticket: Ticket,
        id: CallId,
        digest: String,
        result: Option<HeldResult>,
    ) {
        let running = self.slots.iter_mut().find(|slot| slot.is_running(ticket));
        let Some(CallSlot { state, .. }) = running else {
            return;
        };
        let CallState::Running { args, remark, .. } = state else {
            return;
        };
        let wait = OpenWait {
            id,
            kind: WaitKind::Change,
            digest,
            args: std::mem::take(args),
            remark: remark.take(),
            result,
        };
        *state = CallState::Waiting(wait);
        self.running -= 1;
    }

    /// Returns the tickets of the calls that still run.
    pub(super) fn running(&self) -> impl Iterator<Item = Ticket> {
        self.slots.iter().filter_map(|slot| match slot.state {
            CallState::Running { ticket, .. } => Some(ticket),
            CallState::Waiting(_) | CallState::Done { .. } => None,
        })
    }

    /// Returns the message with the results of all calls, in their order.
    pub(super) fn results(self) -> MessageBody {
        let content = self.slots.into_iter().map(CallSlot::into_part).collect();
        MessageBody {
            role: MessageRole::ToolResult,
            custom: None,
            content,
            metadata: MessageMetadata::default(),
        }
    }

    pub(super) fn snapshot(&self, now: Timestamp) -> Vec<RunningTool> {
        let running = self.slots.iter().filter_map(|slot| match slot.state {
            CallState::Running { since, .. } => Some((&slot.call, now.millis_since(since))),
            CallState::Waiting(_) | CallState::Done { .. } => None,
        });
        running
            .map(
                |(CallNames { call_id, name, .. }, elapsed_ms)| RunningTool {
                    call_id: call_id.clone(),
                    name: name.clone(),
                    elapsed_ms,
                },
            )
            .collect()
    }
}

impl CallSlot {
    fn is_running(&self, asked: Ticket) -> bool {
        matches!(self.state, CallState::Running { ticket, .. } if ticket == asked)
    }

    fn waits_as(&self, id: &CallId) -> bool {
        matches!(&self.state, CallState::Waiting(wait) if wait.id == *id)
    }

    fn finish(&mut self, mut text: String, error: bool, duration_ms: u64) -> ToolEnd {
        if let CallState::Running { remark, .. } = &self.state {
            text = remarked(text, remark.as_deref());
        }
        self.state = CallState::Done {
            text: text.clone(),
            error,
        };
        self.call.end(text, error, duration_ms)
    }

    fn into_part(self) -> Part {
        let CallNames { id, call_id, .. } = self.call;
        match self.state {
            CallState::Done { text, error } => Part::ToolResult {
                id,
                call_id,
                text,
                error,
            },
            CallState::Running { .. } | CallState::Waiting(_) => Part::ToolResult {
                id,
                call_id,
                text: "no result".into(),
                error: true,
            },
        }
    }
}

/// Adds the loop guard's remark to a result.
pub(super) fn remarked(text: String, remark: Option<&str>) -> String {
    match remark {
        Some(remark) => format!("{text}\n\n{remark}"),
        None => text,
    }
}

impl CallNames {
    pub(super) fn end(&self, result: String, error: bool, duration_ms: u64) -> ToolEnd {
        let Self { id, call_id, name } = self.clone();
        ToolEnd {
            call_id,
            id,
            name,
            result,
            error,
            duration_ms,
        }
    }
}
