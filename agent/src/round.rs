//! The calls of one answer, and the one message with their results in the same order.

use std::time::Duration;

use planck_common::{
    CallId, Timestamp,
    command::RunningTool,
    event::ToolEnd,
    message::{MessageBody, MessageMetadata, MessageRole, Part},
};

use super::Ticket;

#[derive(Debug)]
pub(super) struct Round {
    slots: Vec<CallSlot>,
    running: usize,
    /// Whether the answer was cut off, so that the turn ends after the results.
    pub cut: bool,
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
        remark: Option<String>,
    },
    Done {
        text: String,
        error: bool,
    },
}

impl Round {
    pub(super) fn new(cut: bool) -> Self {
        Self {
            slots: Vec::new(),
            running: 0,
            cut,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running > 0
    }

    /// Adds a call that runs. The remark is appended to its result.
    pub(super) fn start(
        &mut self,
        call: CallNames,
        ticket: Ticket,
        since: Timestamp,
        remark: Option<String>,
    ) {
        self.running += 1;
        self.slots.push(CallSlot {
            call,
            state: CallState::Running {
                ticket,
                since,
                remark,
            },
        });
    }

    /// Adds a call whose result is already known.
    pub(super) fn settle(&mut self, call: CallNames, text: String, error: bool) {
        self.slots.push(CallSlot {
            call,
            state: CallState::Done { text, error },
        });
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

    /// Returns the tickets of the calls that still run.
    pub(super) fn running(&self) -> impl Iterator<Item = Ticket> {
        self.slots.iter().filter_map(|slot| match slot.state {
            CallState::Running { ticket, .. } => Some(ticket),
            CallState::Done { .. } => None,
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
            CallState::Done { .. } => None,
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

    fn finish(&mut self, mut text: String, error: bool, duration_ms: u64) -> ToolEnd {
        if let CallState::Running {
            remark: Some(remark),
            ..
        } = &self.state
        {
            text = format!("{text}\n\n{remark}");
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
            CallState::Running { .. } => Part::ToolResult {
                id,
                call_id,
                text: "no result".into(),
                error: true,
            },
        }
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
