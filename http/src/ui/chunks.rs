//! Writes the turns of an answer as chunks of the UI message stream, version 1. The chunks are those of
//! `uiMessageChunkSchema` in the npm package `ai`.

use std::collections::{BTreeMap, HashMap, HashSet};

use planck_client::turn::{TurnEvent, WorkerState, WorkerUpdate};
use planck_common::{
    AgentId, CallId, SessionId,
    event::TurnOutcome,
    wait::{WaitClosed, WaitDecision, WaitKind, WaitOpened},
};
use serde_json::{Value, json, value::RawValue};

use super::ids;

/// The part of a turn that the client has, for a client that continues the turn.
#[derive(Debug, Default)]
pub struct Continued {
    /// The calls that the client has answered. The client knows the turn up to the end of the first
    /// of their waits.
    pub answered: HashSet<CallId>,
    /// The requests for approval in the client's message, by their calls.
    pub approvals: HashMap<CallId, String>,
}

/// Writes the chunks of one answer.
pub struct ChunkEncoder {
    session: SessionId,
    /// The first turn, from which the message has its id.
    turn: u32,
    text: OpenText,
    is_step_open: bool,
    calls: BTreeMap<CallId, UiCall>,
    /// The requests for approval that the client knows, by their calls.
    approvals: HashMap<CallId, String>,
    data: DataParts,
    continued: Option<HashSet<CallId>>,
    answered: HashSet<CallId>,
    phase: StreamPhase,
    out: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamPhase {
    /// The log up to the start of the stream is being read.
    Replaying,
    Live,
    Over,
}

/// The part of text that is being written. Ids are unique in the stream.
#[derive(Debug, Default)]
struct OpenText {
    part: Option<(usize, &'static str)>,
    count: usize,
}

impl ChunkEncoder {
    /// Creates the encoder of a turn. `continued` is what the client already has of it.
    pub fn new(session: SessionId, continued: Option<Continued>) -> Self {
        let Continued {
            answered,
            approvals,
        } = continued.unwrap_or_default();
        Self {
            session,
            turn: 0,
            text: OpenText::default(),
            is_step_open: false,
            calls: BTreeMap::new(),
            approvals,
            data: DataParts::default(),
            continued: (!answered.is_empty()).then(|| answered.clone()),
            answered,
            phase: StreamPhase::Replaying,
            out: Vec::new(),
        }
    }

    /// Returns whether the stream is complete: the answer is over, or waits for the client.
    pub fn is_over(&self) -> bool {
        self.phase == StreamPhase::Over
    }

    /// Returns the chunks of an event, as JSON.
    pub fn take(&mut self, event: TurnEvent) -> Vec<Value> {
        self.event(event);
        if self.phase == StreamPhase::Live && self.waits_for_client() {
            self.finish("tool-calls", json!({"turn": self.turn}));
        }
        std::mem::take(&mut self.out)
    }

    fn event(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Started { turn, .. } => self.turn_started(turn),
            TurnEvent::StepStarted => self.step_started(),
            TurnEvent::Text { part, text } => self.piece(part, "text", &text),
            TurnEvent::Reasoning { part, text } => self.piece(part, "reasoning", &text),
            TurnEvent::StepEnded { .. } => self.end_text(),
            TurnEvent::StepReset => self.step_reset(),
            TurnEvent::ToolCalled {
                call_id,
                name,
                args,
                invalid,
            } => {
                let input = serde_json::from_str(args.get()).unwrap_or_default();
                self.calls
                    .insert(call_id, UiCall::new(name, input, invalid));
            }
            TurnEvent::ToolStarted { call_id } => self.show_call(&call_id, UiCallState::Running),
            TurnEvent::ToolProgress {
                call_id,
                message,
                percent,
            } => {
                let data = json!({"toolCallId": call_id, "message": message, "percent": percent});
                self.push(json!({"type": "data-progress", "data": data, "transient": true}));
            }
            TurnEvent::ToolEnded {
                call_id,
                result,
                is_error,
            } => self.tool_ended(&call_id, &result, is_error),
            TurnEvent::WaitOpened(wait) => self.wait_opened(&wait),
            TurnEvent::WaitClosed(wait) => self.wait_closed(&wait),
            TurnEvent::Worker(worker) => {
                let part = self.data.agent(&worker);
                self.push(part);
            }
            TurnEvent::Warning { code, message } => {
                let data = json!({"code": code, "message": message});
                self.push(json!({"type": "data-warning", "data": data, "transient": true}));
            }
            TurnEvent::Compacting | TurnEvent::Compacted { .. } => {}
            TurnEvent::CaughtUp => self.phase = StreamPhase::Live,
            TurnEvent::Ended {
                outcome,
                refused,
                limit,
                output,
                usage,
                seq,
            } => {
                self.output(output);
                let metadata = json!({"turn": self.turn, "seq": seq, "outcome": outcome,
                    "limit": limit, "usage": usage});
                self.ended(outcome, refused, metadata);
            }
            TurnEvent::Failed { code, reason } => self.fail(&code, &reason),
        }
    }

    /// Adds the answer of a turn that has a shape.
    fn output(&mut self, output: Option<Box<RawValue>>) {
        if let Some(output) = output {
            self.push(json!({"type": "data-output", "data": output}));
        }
    }

    /// Adds a chunk, unless the client already has it.
    fn push(&mut self, chunk: Value) {
        if self.continued.is_none() {
            self.out.push(chunk);
        }
    }

    /// Begins a turn. The steps of a later turn follow in the same message.
    fn turn_started(&mut self, turn: u32) {
        if self.turn == 0 {
            return self.started(turn);
        }
        self.end_step();
        self.calls.clear();
    }

    fn started(&mut self, turn: u32) {
        self.turn = turn;
        let metadata = json!({"session": self.session, "turn": turn});
        let id = ids::of_message(&self.session, turn);
        self.push(json!({"type": "start", "messageId": id, "messageMetadata": metadata}));
    }

    /// Begins to write the chunks that the client does not have.
    fn catch_up(&mut self) {
        if self.continued.take().is_some() {
            self.text.part = None;
            self.started(self.turn);
        }
    }

    fn step_started(&mut self) {
        self.end_step();
        self.is_step_open = true;
        self.data.step_started();
        self.push(json!({"type": "start-step"}));
    }

    fn end_step(&mut self) {
        self.end_text();
        if std::mem::take(&mut self.is_step_open) {
            self.push(json!({"type": "finish-step"}));
        }
    }

    /// Voids the parts of the step. The client drops everything that it got since the step began,
    /// so what tells of workers is sent again.
    fn step_reset(&mut self) {
        self.text.part = None;
        self.push(json!({"type": "reset-step"}));
        for part in self.data.of_step() {
            self.push(part);
        }
    }

    fn piece(&mut self, part: usize, kind: &'static str, text: &str) {
        if self.text.part != Some((part, kind)) {
            self.end_text();
            self.text.part = Some((part, kind));
            self.text.count += 1;
            self.push(json!({"type": format!("{kind}-start"), "id": self.text.id(kind)}));
        }
        let id = self.text.id(kind);
        self.push(json!({"type": format!("{kind}-delta"), "id": id, "delta": text}));
    }

    fn end_text(&mut self) {
        if let Some((_, kind)) = self.text.part.take() {
            self.push(json!({"type": format!("{kind}-end"), "id": self.text.id(kind)}));
        }
    }

    /// Shows a call as soon as it is known who runs it.
    fn show_call(&mut self, id: &CallId, state: UiCallState) {
        let Some(call) = self.calls.get_mut(id) else {
            return;
        };
        let is_new = std::mem::replace(&mut call.state, state) == UiCallState::Made;
        if is_new && call.invalid.is_none() {
            let chunk = call.available(id);
            self.push(chunk);
        }
    }

    fn tool_ended(&mut self, id: &CallId, result: &str, is_error: bool) {
        self.show_call(id, UiCallState::Ended);
        let Some(call) = self.calls.get(id) else {
            return;
        };
        let chunk = match &call.invalid {
            Some(_) => call.input_error(id, result),
            None if is_error && call.is_denied => {
                json!({"type": "tool-output-denied", "toolCallId": id})
            }
            None if is_error => {
                json!({"type": "tool-output-error", "toolCallId": id, "errorText": result,
                    "dynamic": call.is_dynamic()})
            }
            // The client has the output that it sent.
            None if self.answered.contains(id) && call.is_of_client => return,
            None => {
                json!({"type": "tool-output-available", "toolCallId": id,
                    "output": call.output(result), "dynamic": call.is_dynamic()})
            }
        };
        self.push(chunk);
    }

    fn wait_opened(&mut self, wait: &WaitOpened) {
        if let Some(call) = self.calls.get_mut(wait.call()) {
            call.is_of_client = match wait.kind {
                WaitKind::ClientTool => true,
                // The call of a tool that asks goes on after the answer.
                WaitKind::Question => wait.call_id.is_none(),
                WaitKind::Approval | WaitKind::Budget | WaitKind::Change => false,
            };
        }
        self.show_call(wait.call(), UiCallState::Waiting);
        match wait.kind {
            WaitKind::Approval => self.approval_requested(wait),
            WaitKind::Question | WaitKind::Budget | WaitKind::Change => {
                let part = self.data.wait(wait);
                self.push(part);
            }
            WaitKind::ClientTool => {}
        }
    }

    fn approval_requested(&mut self, wait: &WaitOpened) {
        let approval = ids::of_approval(&wait.id, &wait.digest);
        if self.continued.is_none() {
            self.approvals.insert(wait.id.clone(), approval.clone());
        }
        self.push(
            json!({"type": "tool-approval-request", "approvalId": approval,
            "toolCallId": wait.id, "reason": wait.title, "approvalDescriptor": wait_data(wait)}),
        );
    }

    fn wait_closed(&mut self, wait: &WaitClosed) {
        if self
            .continued
            .as_ref()
            .is_some_and(|answered| answered.contains(&wait.id))
        {
            self.catch_up();
        }
        if let Some(part) = self.data.closed_wait(wait) {
            self.push(part);
        }
        if let Some(call) = self.calls.get_mut(wait.call()) {
            call.state = UiCallState::Running;
            call.is_denied =
                wait.decision == WaitDecision::Deny && self.approvals.contains_key(&wait.id);
        }
        if let Some(approval) = self.approvals.remove(&wait.id) {
            let is_approved = wait.decision == WaitDecision::Allow;
            let chunk = json!({"type": "tool-approval-response", "approvalId": approval,
                "approved": is_approved});
            let chunk = match &wait.reason {
                Some(reason) => with_field(chunk, "reason", reason.as_str()),
                None => chunk,
            };
            self.push(chunk);
        }
    }

    /// Returns whether the turn can only continue when the client answers.
    fn waits_for_client(&self) -> bool {
        let mut waits = false;
        for call in self.calls.values() {
            match call.state {
                UiCallState::Made | UiCallState::Running => return false,
                UiCallState::Waiting => waits = true,
                UiCallState::Ended => {}
            }
        }
        waits && self.continued.is_none()
    }

    fn ended(&mut self, outcome: TurnOutcome, refused: bool, metadata: Value) {
        self.catch_up();
        let reason = match outcome {
            TurnOutcome::Completed if refused => "content-filter",
            TurnOutcome::Completed => "stop",
            TurnOutcome::Truncated => "length",
            TurnOutcome::Limit => "other",
            TurnOutcome::Aborted => {
                self.end_step();
                self.push(json!({"type": "abort", "reason": "the turn was aborted"}));
                "interrupted"
            }
        };
        self.finish(reason, metadata);
    }

    fn finish(&mut self, reason: &str, metadata: Value) {
        self.end_step();
        self.push(json!({"type": "finish", "finishReason": reason, "messageMetadata": metadata}));
        self.phase = StreamPhase::Over;
    }

    /// Ends the stream with an error.
    fn fail(&mut self, code: &str, reason: &str) {
        self.catch_up();
        self.end_step();
        self.push(error(code, reason));
        self.phase = StreamPhase::Over;
    }
}

/// Returns the chunk that ends a stream with an error.
pub fn error(code: &str, reason: &str) -> Value {
    json!({"type": "error", "errorText": format!("{code}: {reason}")})
}

impl OpenText {
    fn id(&self, kind: &str) -> String {
        format!("{kind}-{}", self.count)
    }
}

/// A tool call, as the client knows it.
struct UiCall {
    name: String,
    input: Value,
    /// The text that the model sent in place of a JSON object.
    invalid: Option<String>,
    state: UiCallState,
    is_of_client: bool,
    is_denied: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UiCallState {
    /// The call was made, and it is not known yet who runs it.
    Made,
    Running,
    Waiting,
    Ended,
}

impl UiCall {
    fn new(name: String, input: Value, invalid: Option<String>) -> Self {
        Self {
            name,
            input,
            invalid,
            state: UiCallState::Made,
            is_of_client: false,
            is_denied: false,
        }
    }

    /// Returns whether the tool is unknown to the client. The client's own tools are known to it,
    /// and `ask_user` is not.
    fn is_dynamic(&self) -> bool {
        !self.is_of_client || self.name == "ask_user"
    }

    /// A call that the server runs counts as executed by the provider, so that the client neither
    /// runs it nor sends its result back.
    fn available(&self, id: &CallId) -> Value {
        let chunk = json!({"type": "tool-input-available", "toolCallId": id,
            "toolName": self.name, "input": self.input, "dynamic": self.is_dynamic()});
        match self.is_of_client {
            true => chunk,
            false => with_field(chunk, "providerExecuted", true),
        }
    }

    fn input_error(&self, id: &CallId, why: &str) -> Value {
        json!({"type": "tool-input-error", "toolCallId": id, "toolName": self.name,
            "input": self.invalid, "errorText": why, "dynamic": true, "providerExecuted": true})
    }

    /// Returns the output of a call. The result of a client's own tool is JSON again.
    fn output(&self, result: &str) -> Value {
        let is_own = !self.is_dynamic();
        let parsed = is_own.then(|| serde_json::from_str(result).ok()).flatten();
        parsed.unwrap_or_else(|| result.into())
    }
}

/// The data parts that were sent.
#[derive(Debug, Default)]
struct DataParts {
    /// The latest part of each worker, and the step in which its first part was sent.
    workers: BTreeMap<AgentId, (u32, Value)>,
    step: u32,
    /// The data of the open waits.
    waits: HashMap<CallId, Value>,
}

impl DataParts {
    fn step_started(&mut self) {
        self.step += 1;
    }

    /// Returns the parts that vanish when the client drops what it got in the running step.
    fn of_step(&self) -> Vec<Value> {
        let step = self.step;
        let of_step = self.workers.values().filter(|(first, _)| *first == step);
        of_step.map(|(_, part)| part.clone()).collect()
    }

    /// Returns the part that shows a worker.
    fn agent(&mut self, worker: &WorkerUpdate) -> Value {
        let state = match worker.state {
            WorkerState::Idle => "idle",
            WorkerState::Working => "working",
            WorkerState::Ended => "ended",
        };
        let waits: Vec<Value> = worker.waits.iter().map(wait_data).collect();
        let part = json!({"type": "data-agent", "id": worker.id, "data": {
            "id": worker.id, "name": worker.name, "state": state, "text": worker.text,
            "waits": waits,
        }});
        let step = self.step;
        let known = self.workers.entry(worker.id.clone());
        let known = known.or_insert_with(|| (step, Value::Null));
        known.1 = part.clone();
        part
    }

    /// Returns the part that shows a question or a budget.
    fn wait(&mut self, wait: &WaitOpened) -> Value {
        let data = with_field(wait_data(wait), "state", "open");
        self.waits.insert(wait.id.clone(), data.clone());
        json!({"type": "data-wait", "id": wait.id, "data": data})
    }

    /// Returns the part that says how a wait ended, if a part showed the wait.
    fn closed_wait(&mut self, wait: &WaitClosed) -> Option<Value> {
        let data = with_field(self.waits.remove(&wait.id)?, "state", wait.decision.name());
        Some(json!({"type": "data-wait", "id": wait.id, "data": data}))
    }
}

/// Returns what a person needs to know to answer a wait.
fn wait_data(wait: &WaitOpened) -> Value {
    serde_json::to_value(wait).unwrap_or_default()
}

/// Adds a field to an object.
pub fn with_field(mut object: Value, key: &str, value: impl Into<Value>) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(key.to_owned(), value.into());
    }
    object
}

#[cfg(test)]
mod tests;
