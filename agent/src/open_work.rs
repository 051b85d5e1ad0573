//! The work that the rows of a log left open: a turn, and the calls of its latest answer.

use std::{collections::HashMap, sync::Arc};

use planck_common::{
    CallId, Timestamp,
    event::{ToolEffect, ToolEnd, ToolStart},
    message::MessageBody,
    wait::{WaitKind, WaitOpened},
};
use serde_json::value::RawValue;

use super::{answer::AnswerFault, phase::Turn, round::HeldResult, waiting::held_result};

#[derive(Default)]
pub(super) struct OpenWork {
    pub turn: Option<Box<Turn>>,
    pub calls: Option<OpenCalls>,
    /// The wait for a decision about a limit.
    pub limit_wait: Option<CallId>,
}

/// The wait of a call, as the log has it.
pub(super) struct LoggedWait {
    pub id: CallId,
    pub kind: WaitKind,
    pub digest: String,
    pub result: Option<HeldResult>,
}

/// An answer whose calls have no message of results yet.
pub(super) struct OpenCalls {
    pub answer: Arc<MessageBody>,
    /// The started calls, each with its effect and the arguments with which it ran.
    pub started: HashMap<CallId, (ToolEffect, Box<RawValue>)>,
    /// The calls that wait, each with its wait.
    pub waits: HashMap<CallId, LoggedWait>,
    /// The results, each with whether it is an error.
    pub ended: HashMap<CallId, (String, bool)>,
    /// The loop guard's remarks about the calls.
    pub remarks: HashMap<CallId, String>,
}

impl OpenWork {
    pub(super) fn call_started(&mut self, start: ToolStart) {
        if let Some(calls) = &mut self.calls {
            calls
                .started
                .insert(start.call_id, (start.effect, start.args));
        }
    }

    pub(super) fn call_ended(&mut self, end: ToolEnd) {
        if let Some(calls) = &mut self.calls {
            calls.ended.insert(end.call_id, (end.result, end.error));
        }
    }

    /// Records a wait. The turn's clock stands while a call waits.
    pub(super) fn wait_opened(&mut self, wait: WaitOpened, at: Timestamp) {
        self.turn.iter_mut().for_each(|turn| turn.pause(at));
        if wait.kind == WaitKind::Budget {
            self.limit_wait = Some(wait.id);
        } else if let Some(calls) = &mut self.calls {
            let call = wait.call().clone();
            let logged = LoggedWait {
                kind: wait.kind,
                result: held_result(&wait),
                id: wait.id,
                digest: wait.digest,
            };
            calls.waits.insert(call, logged);
        }
    }

    pub(super) fn wait_closed(&mut self, wait: &CallId, at: Timestamp) {
        self.limit_wait.take_if(|id| id == wait);
        let calls = self.calls.as_mut().map(|calls| &mut calls.waits);
        let is_last = calls.is_none_or(|waits| {
            waits.retain(|_, open| open.id != *wait);
            waits.is_empty()
        });
        if let Some(turn) = self.turn.as_mut().filter(|_| is_last) {
            turn.resume(at);
        }
    }
}

impl OpenCalls {
    pub(super) fn new(answer: Arc<MessageBody>, remarks: HashMap<CallId, String>) -> Self {
        Self {
            answer,
            started: HashMap::new(),
            waits: HashMap::new(),
            ended: HashMap::new(),
            remarks,
        }
    }

    pub(super) fn fault(&self) -> Option<AnswerFault> {
        self.answer.metadata.stop.and_then(AnswerFault::of)
    }
}
