//! Writes the turns of an answer as events of AG-UI 1.0. The events are those of `EventSchema` in the
//! npm package `@ag-ui/core`.

use std::collections::{BTreeMap, HashSet};

use planck_client::turn::{TurnEvent, WorkerState, WorkerUpdate};
use planck_common::{
    CallId, SessionId,
    event::TurnOutcome,
    usage::Usage,
    wait::{WaitClosed, WaitKind, WaitOpened},
};
use serde_json::{Value, json};

use super::{body::KnownMessages, messages::MessageFold};
use crate::ui::{chunks::with_field, ids};

/// Writes the events of one run.
pub struct RunEncoder {
    session: SessionId,
    /// The fields by which the client knows its run.
    run: Value,
    place: Place,
    open: Option<OpenMessage>,
    /// The calls that have not ended.
    calls: HashSet<CallId>,
    /// The open waits.
    waits: BTreeMap<CallId, WaitOpened>,
    /// The waits that the request has answered and that the turn has not read yet.
    answered: HashSet<CallId>,
    known: KnownMessages,
    /// The messages of the events that the client is not sent one by one.
    fold: Option<MessageFold>,
    phase: RunPhase,
    out: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunPhase {
    /// The log up to the start of the stream is being read.
    Replaying,
    Live,
    /// What the client has been sent of the running step is void.
    Void,
    Over,
}

/// The place in the answer, from which messages have their ids.
#[derive(Debug, Default)]
struct Place {
    /// The first turn.
    turn: u32,
    step: u32,
    /// The message of the step to which its calls belong.
    speaker: Option<String>,
    /// Whether the client was sent a piece of the step.
    is_shown: bool,
}

/// The message to which pieces are added.
#[derive(Debug, PartialEq, Eq)]
struct OpenMessage {
    id: String,
    is_reasoning: bool,
}

impl RunEncoder {
    pub fn new(session: SessionId, run: Value) -> Self {
        Self {
            session,
            run,
            place: Place::default(),
            open: None,
            calls: HashSet::new(),
            waits: BTreeMap::new(),
            answered: HashSet::new(),
            known: KnownMessages::default(),
            fold: None,
            phase: RunPhase::Replaying,
            out: Vec::new(),
        }
    }

    /// Sends no events of the past, but a snapshot with the earlier messages if the client lacks some.
    pub fn folding(mut self, earlier: MessageFold) -> Self {
        self.fold = Some(earlier);
        self
    }

    /// Sets what the client has of the thread, and which waits it answers now. The past ends when the
    /// turn reads the first of these answers.
    pub fn knowing(mut self, known: KnownMessages, answered: HashSet<CallId>) -> Self {
        (self.known, self.answered) = (known, answered);
        self
    }

    /// Returns whether the stream is complete: the answer is over, or waits for the client.
    pub fn is_over(&self) -> bool {
        self.phase == RunPhase::Over
    }

    /// Returns whether the client has to be sent all messages again.
    pub fn is_void(&self) -> bool {
        self.phase == RunPhase::Void
    }

    /// Returns what the client knows of the thread.
    pub fn into_known(self) -> KnownMessages {
        self.known
    }

    /// Returns the events of an event of the turn.
    pub fn take(&mut self, event: TurnEvent) -> Vec<Value> {
        self.fold(event);
        if self.phase == RunPhase::Live && self.fold.is_none() && self.waits_for_client() {
            self.pause();
        }
        std::mem::take(&mut self.out)
    }

    /// Returns the messages of the past.
    pub fn folded(self) -> Vec<Value> {
        self.fold.map_or_else(Vec::new, Vec::from)
    }

    /// Takes an event of the turn.
    pub fn fold(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Started { turn, .. } => self.turn_started(turn),
            TurnEvent::StepStarted => self.step_started(),
            TurnEvent::Text { part, text } => self.piece(part, false, &text),
            TurnEvent::Reasoning { part, text } => self.piece(part, true, &text),
            TurnEvent::StepEnded { .. } => self.close(),
            TurnEvent::StepReset => self.step_reset(),
            TurnEvent::ToolCalled {
                call_id,
                name,
                args,
                invalid,
            } => {
                let args = invalid.unwrap_or_else(|| args.get().to_owned());
                self.called(call_id, &name, &args);
            }
            TurnEvent::ToolStarted { .. } => {}
            TurnEvent::ToolProgress {
                call_id,
                message,
                percent,
            } => {
                let value = json!({"toolCallId": call_id, "message": message, "percent": percent});
                self.custom("planck.progress", value);
            }
            TurnEvent::ToolEnded {
                call_id,
                result,
                is_error,
            } => self.tool_ended(&call_id, &result, is_error),
            TurnEvent::WaitOpened(wait) => _ = self.waits.insert(wait.id.clone(), *wait),
            TurnEvent::WaitClosed(wait) => self.wait_closed(&wait),
            TurnEvent::Worker(worker) => self.worker(&worker),
            TurnEvent::Warning { code, message } => {
                self.custom("planck.warning", json!({"code": code, "message": message}));
            }
            TurnEvent::Compacting | TurnEvent::Compacted { .. } => {}
            TurnEvent::CaughtUp => {
                self.phase = RunPhase::Live;
                if self.answered.is_empty() {
                    self.settle();
                }
            }
            end @ TurnEvent::Ended { .. } => self.ended(end),
            TurnEvent::Failed { code, reason } => {
                self.settle();
                self.close();
                self.out.push(error(&code, &reason));
                self.phase = RunPhase::Over;
            }
        }
    }

    /// Adds an event.
    fn push(&mut self, event: Value) {
        match &mut self.fold {
            Some(fold) => fold.take(event),
            None => self.out.push(event),
        }
    }

    fn custom(&mut self, name: &str, value: Value) {
        self.push(json!({"type": "CUSTOM", "name": name, "value": value}));
    }

    /// Begins to send each event. The client gets the past first, if it lacks a message of it.
    fn settle(&mut self) {
        if let Some(fold) = self.fold.take() {
            self.open = None;
            self.out.extend(fold.snapshot(&self.known));
        }
    }

    /// Begins a turn. The steps of a later turn of the same work follow those of the first.
    fn turn_started(&mut self, turn: u32) {
        if self.place.turn == 0 {
            self.place.turn = turn;
        }
        self.close();
        self.calls.clear();
    }

    fn step_started(&mut self) {
        self.close();
        self.place.step += 1;
        self.step_begins();
        if let Some(fold) = &mut self.fold {
            fold.step_started();
        }
    }

    fn step_begins(&mut self) {
        (self.place.speaker, self.place.is_shown) = (None, false);
    }

    /// Voids the pieces of the step. The protocol takes nothing back but with a snapshot.
    fn step_reset(&mut self) {
        self.close();
        match &mut self.fold {
            Some(fold) => fold.void_step(),
            None if self.place.is_shown => self.phase = RunPhase::Void,
            None => {}
        }
        self.step_begins();
    }

    fn id_of_step(&self) -> String {
        format!("{}-{}-{}", self.session, self.place.turn, self.place.step)
    }

    fn piece(&mut self, part: usize, is_reasoning: bool, text: &str) {
        let id = format!("{}-{part}", self.id_of_step());
        let message = OpenMessage { id, is_reasoning };
        if self.open.as_ref() != Some(&message) {
            self.close();
            self.opened(message);
        }
        let Some(OpenMessage { id, is_reasoning }) = &self.open else {
            return;
        };
        let kind = match is_reasoning {
            true => "REASONING_MESSAGE_CONTENT",
            false => "TEXT_MESSAGE_CONTENT",
        };
        self.push(json!({"type": kind, "messageId": id, "delta": text}));
    }

    fn opened(&mut self, message: OpenMessage) {
        let id = &message.id;
        if message.is_reasoning {
            let start = json!({"type": "REASONING_START", "messageId": id});
            let begin =
                json!({"type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning"});
            self.push(start);
            self.push(begin);
            if self.fold.is_none() {
                self.known.add_reasoning(id.clone());
            }
        } else {
            let start = json!({"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"});
            self.push(start);
            self.place.speaker = Some(id.clone());
        }
        self.place.is_shown |= self.fold.is_none();
        self.open = Some(message);
    }

    fn close(&mut self) {
        let Some(OpenMessage { id, is_reasoning }) = self.open.take() else {
            return;
        };
        if is_reasoning {
            self.push(json!({"type": "REASONING_MESSAGE_END", "messageId": id}));
            self.push(json!({"type": "REASONING_END", "messageId": id}));
        } else {
            self.push(json!({"type": "TEXT_MESSAGE_END", "messageId": id}));
        }
    }

    fn called(&mut self, call: CallId, name: &str, args: &str) {
        self.close();
        let parent = self.place.speaker.take();
        let parent = parent.unwrap_or_else(|| self.id_of_step());
        self.push(
            json!({"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": name,
            "parentMessageId": parent}),
        );
        self.push(json!({"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": args}));
        self.push(json!({"type": "TOOL_CALL_END", "toolCallId": call}));
        self.place.speaker = Some(parent);
        self.calls.insert(call);
    }

    fn tool_ended(&mut self, call: &CallId, result: &str, is_error: bool) {
        self.calls.remove(call);
        // The client has the result that it sent.
        if self.fold.is_none() && self.known.has_result(call) {
            return;
        }
        let id = format!("{call}-result");
        let event = json!({"type": "TOOL_CALL_RESULT", "messageId": id, "toolCallId": call,
            "content": result, "role": "tool"});
        self.push(match is_error {
            true => with_field(event, "metadata", json!({"planck": {"error": true}})),
            false => event,
        });
    }

    fn wait_closed(&mut self, wait: &WaitClosed) {
        self.waits.remove(&wait.id);
        if self.answered.remove(&wait.id) {
            self.settle();
        }
    }

    fn worker(&mut self, worker: &WorkerUpdate) {
        let state = match worker.state {
            WorkerState::Idle => "idle",
            WorkerState::Working => "working",
            WorkerState::Ended => "ended",
        };
        let id = format!("{}-{}-{}", self.session, self.place.turn, worker.id);
        let content = json!({"id": worker.id, "name": worker.name, "state": state,
            "text": worker.text, "waits": worker.waits});
        self.push(json!({"type": "ACTIVITY_SNAPSHOT", "messageId": id,
            "activityType": "planck.agent", "content": content, "replace": true}));
    }

    /// Returns whether the turn can only continue when a person or the client answers.
    fn waits_for_client(&self) -> bool {
        let is_waiting = |call: &CallId| self.waits.values().any(|wait| wait.call() == call);
        !self.waits.is_empty()
            && self.waits.keys().all(|wait| !self.answered.contains(wait))
            && self.calls.iter().all(is_waiting)
    }

    /// Ends the run with what the client has to answer. The results of its own tools are no answers to
    /// interrupts.
    fn pause(&mut self) {
        let (own, asked): (Vec<_>, Vec<_>) = self
            .waits
            .values()
            .partition(|wait| wait.kind == WaitKind::ClientTool);
        let outcome = match asked.is_empty() {
            true => {
                let calls: Vec<_> = own.into_iter().map(WaitOpened::call).collect();
                json!({"type": "success", "pendingToolCallIds": calls})
            }
            false => {
                let interrupts: Vec<_> = asked.into_iter().map(interrupt).collect();
                json!({"type": "interrupt", "interrupts": interrupts})
            }
        };
        self.finish(outcome);
    }

    fn ended(&mut self, end: TurnEvent) {
        let TurnEvent::Ended {
            outcome,
            refused,
            limit,
            output,
            usage,
            seq,
        } = end
        else {
            return;
        };
        self.settle();
        self.finish(match outcome {
            TurnOutcome::Completed | TurnOutcome::Truncated | TurnOutcome::Limit => {
                json!({"type": "success"})
            }
            TurnOutcome::Aborted => json!({"type": "cancelled"}),
        });
        let Some(Value::Object(finished)) = self.out.last_mut() else {
            return;
        };
        if let Some(output) = output {
            finished.insert("result".into(), json!(output));
        }
        finished.insert("usage".into(), json!([token_usage(&usage)]));
        let planck = json!({"session": self.session, "turn": self.place.turn, "seq": seq,
            "outcome": outcome, "limit": limit, "refused": refused});
        finished.insert("metadata".into(), json!({"planck": planck}));
    }

    /// Ends the run.
    pub fn finish(&mut self, outcome: Value) {
        self.close();
        let id = |name: &str| self.run.get(name).cloned();
        self.out
            .push(json!({"type": "RUN_FINISHED", "threadId": id("threadId"),
            "runId": id("runId"), "outcome": outcome}));
        self.phase = RunPhase::Over;
    }

    /// Returns the events of a run whose thread has no turn.
    pub fn nothing(mut self, earlier: MessageFold) -> Vec<Value> {
        self.out.extend(earlier.snapshot(&self.known));
        self.finish(json!({"type": "success"}));
        self.out
    }
}

/// Returns the event that begins a run.
pub fn started(run: &Value) -> Value {
    with_field(
        with_field(run.clone(), "type", "RUN_STARTED"),
        "protocolVersion",
        "1.0",
    )
}

/// Returns the event that ends a run with an error.
pub fn error(code: &str, reason: &str) -> Value {
    json!({"type": "RUN_ERROR", "message": reason, "code": code})
}

/// Returns the counts of tokens as the protocol has them: `inputTokens` includes cached ones.
fn token_usage(usage: &Usage) -> Value {
    json!({"inputTokens": usage.context_tokens(), "outputTokens": usage.output_tokens,
        "totalTokens": usage.tokens(), "cachedInputTokens": usage.cache_read_tokens,
        "cacheWriteInputTokens": usage.cache_write_tokens})
}

/// Returns what a person needs to know to answer a wait. The id holds the digest, so that an answer
/// counts only for what was shown.
fn interrupt(wait: &WaitOpened) -> Value {
    let reason = match wait.kind {
        WaitKind::Approval => "tool_call",
        WaitKind::Question | WaitKind::ClientTool => "input_required",
        WaitKind::Budget => "planck:budget",
        WaitKind::Change => "planck:change",
    };
    let interrupt = json!({"id": ids::of_approval(&wait.id, &wait.digest), "reason": reason,
        "message": wait.title, "responseSchema": response_schema(wait),
        "metadata": {"planck": wait}});
    let interrupt = match wait.kind {
        // The wait has the id of no call.
        WaitKind::Budget => interrupt,
        WaitKind::Approval | WaitKind::Question | WaitKind::ClientTool | WaitKind::Change => {
            with_field(interrupt, "toolCallId", wait.call().as_str())
        }
    };
    match wait.expires_at {
        Some(at) => with_field(interrupt, "expiresAt", at.to_string()),
        None => interrupt,
    }
}

/// Returns the schema of the payload that answers a wait.
fn response_schema(wait: &WaitOpened) -> Value {
    let schema = wait.schema.as_ref();
    let schema = schema.and_then(|schema| serde_json::from_str(schema.get()).ok());
    let schema: Option<Value> = schema.filter(Value::is_object);
    let object = || json!({"type": "object"});
    let more = match wait.kind {
        WaitKind::Question | WaitKind::ClientTool => {
            return schema.unwrap_or_else(|| json!({"type": "string"}));
        }
        WaitKind::Approval => Some(("editedArgs", schema.unwrap_or_else(object))),
        WaitKind::Budget => Some(("value", schema.unwrap_or_else(|| json!({})))),
        WaitKind::Change => None,
    };
    let fields = json!({"approved": {"type": "boolean"}, "reason": {"type": "string"}});
    let fields = match more {
        Some((name, schema)) => with_field(fields, name, schema),
        None => fields,
    };
    json!({"type": "object", "properties": fields, "required": ["approved"]})
}

#[cfg(test)]
mod tests;
