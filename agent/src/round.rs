//! The calls of one answer, and the one message with their results in the same order.

use std::time::Duration;

use planck_common::{
    CallId, Timestamp,
    command::RunningTool,
    event::ToolEnd,
    message::{Body, Metadata, Part, Role},
};

use super::Ticket;

#[derive(Debug)]
pub(super) struct Round {
    slots: Vec<Slot>,
    running: usize,
    /// Whether the answer was cut off, so that the turn ends after the results.
    pub cut: bool,
}

/// A call as the provider and the runtime name it.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub id: String,
    pub call_id: CallId,
    pub name: String,
}

#[derive(Debug)]
struct Slot {
    call: Call,
    state: State,
}

#[derive(Debug)]
enum State {
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
        call: Call,
        ticket: Ticket,
        since: Timestamp,
        remark: Option<String>,
    ) {
        self.running += 1;
        self.slots.push(Slot {
            call,
            state: State::Running {
                ticket,
                since,
                remark,
            },
        });
    }

    /// Adds a call whose result is already known.
    pub(super) fn settle(&mut self, call: Call, text: String, error: bool) {
        self.slots.push(Slot {
            call,
            state: State::Done { text, error },
        });
    }

    pub(super) fn runs(&self, ticket: Ticket) -> Option<&Call> {
        self.slots
            .iter()
            .find(|slot| slot.is_running(ticket))
            .map(|slot| &slot.call)
    }

    /// Takes the result of a running call. Returns `None` if the call is not awaited.
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

    /// The tickets of the calls that still run.
    pub(super) fn running(&self) -> impl Iterator<Item = Ticket> {
        self.slots.iter().filter_map(|slot| match slot.state {
            State::Running { ticket, .. } => Some(ticket),
            State::Done { .. } => None,
        })
    }

    /// Returns the message with the results of all calls, in their order.
    pub(super) fn results(self) -> Body {
        let content = self.slots.into_iter().map(Slot::into_part).collect();
        Body {
            role: Role::ToolResult,
            custom: None,
            content,
            metadata: Metadata::default(),
        }
    }

    pub(super) fn snapshot(&self, now: Timestamp) -> Vec<RunningTool> {
        let running = self.slots.iter().filter_map(|slot| match slot.state {
            State::Running { since, .. } => Some((&slot.call, now.millis_since(since))),
            State::Done { .. } => None,
        });
        running
            .map(|(Call { call_id, name, .. }, elapsed_ms)| RunningTool {
                call_id: call_id.clone(),
                name: name.clone(),
                elapsed_ms,
            })
            .collect()
    }
}

impl Slot {
    fn is_running(&self, asked: Ticket) -> bool {
        matches!(self.state, State::Running { ticket, .. } if ticket == asked)
    }

    fn finish(&mut self, mut text: String, error: bool, duration_ms: u64) -> ToolEnd {
        if let State::Running {
            remark: Some(remark),
            ..
        } = &self.state
        {
            text = format!("{text}\n\n{remark}");
        }
        self.state = State::Done {
            text: text.clone(),
            error,
        };
        self.call.end(text, error, duration_ms)
    }

    fn into_part(self) -> Part {
        let Call { id, call_id, .. } = self.call;
        match self.state {
            State::Done { text, error } => Part::ToolResult {
                id,
                call_id,
                text,
                error,
            },
            State::Running { .. } => Part::ToolResult {
                id,
                call_id,
                text: "no result".into(),
                error: true,
            },
        }
    }
}

impl Call {
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
