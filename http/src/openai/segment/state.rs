//! The state of the reading of a segment, without I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use planck_client::turn::{TurnChoice, TurnEvent, TurnReader, WorkerUpdate};
use planck_common::{
    AgentId, CallId, InputId, Seq, Timestamp,
    command::Outcome,
    envelope::Envelope,
    event::{Event, TurnOutcome},
    message::{Message, MessageRole, StopReason},
    usage::Usage,
    wait::{WaitKind, WaitOpened},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Beginning, EndKind, PiecePlace, SegmentEnd, SegmentEvent, SegmentPieceKind};
use crate::{
    feed::FeedItem,
    openai::{
        ask::{marked, normal},
        opening::OpenedResponse,
    },
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SegmentCallState {
    Runs,
    Waits(WaitKind),
}

pub(super) struct SegmentState {
    pub(super) reader: TurnReader,
    agent: AgentId,
    input: InputId,
    asked: Option<String>,
    pub(super) beginning: Beginning,
    place: SegmentPlace,
    turn: Option<u32>,
    stages: Stages,
    waits: SegmentWaits,
    usage: Usage,
    pub(super) queue: VecDeque<SegmentEvent>,
    is_complete: bool,
}

/// The calls and waits that keep the segment open.
#[derive(Debug, Default)]
struct SegmentWaits {
    /// The calls that have no result.
    calls: BTreeMap<CallId, SegmentCallState>,
    /// The waits of workers that were told.
    told: BTreeSet<CallId>,
}

/// The segment that is being read. Segments begin after replies that called tools of the client.
#[derive(Debug, Default)]
struct SegmentPlace {
    /// The reply after which the segment began that is being read.
    current: Option<Seq>,
    /// The same of the segment before that.
    before: Option<Seq>,
    /// The last reply, and whether a segment has ended after it.
    last_reply: Seq,
    ended_after: Option<Seq>,
}

/// Numbers the tries of requests by what the log says about them.
#[derive(Debug, Default)]
struct Stages {
    stage: u64,
    epoch: i64,
    stop: Option<StopReason>,
    /// Whether the answer of the turn has a shape, so that its texts are not the answer.
    has_shape: bool,
    /// The number of characters of each part of the stage.
    ends: BTreeMap<usize, usize>,
}

impl SegmentState {
    pub(super) fn new(opened: &OpenedResponse, choice: TurnChoice) -> Self {
        let reader = TurnReader::new(opened.agent.clone(), choice).until(opened.until);
        Self {
            reader: reader.with_names(opened.names.clone()),
            agent: opened.agent.clone(),
            input: opened.input.clone(),
            asked: opened.asked.clone(),
            beginning: opened.beginning(),
            place: SegmentPlace::default(),
            turn: None,
            stages: Stages {
                stage: 1,
                ..Stages::default()
            },
            waits: SegmentWaits::default(),
            usage: Usage::default(),
            queue: VecDeque::new(),
            is_complete: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_complete || self.reader.is_over()
    }

    /// Returns whether the segment has begun.
    pub(super) fn is_found(&self) -> bool {
        match &self.beginning {
            Beginning::Turn => self.place.current.is_none(),
            Beginning::Reply(seq) => self.place.current == Some(*seq),
            Beginning::Call(_) => false,
        }
    }

    pub(super) fn open_calls(&self) -> Vec<CallId> {
        let client = SegmentCallState::Waits(WaitKind::ClientTool);
        let open = self
            .waits
            .calls
            .iter()
            .filter(|(_, state)| **state == client);
        open.map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn last_beginning(&self) -> Option<Seq> {
        match self.open_calls().is_empty() {
            true => self.place.current,
            false => self.place.before,
        }
    }

    fn push(&mut self, event: SegmentEvent) {
        if self.is_found() && !self.is_complete {
            self.queue.push_back(event);
        }
    }

    pub(super) fn take(&mut self, item: &FeedItem) {
        let envelope = match item {
            FeedItem::Event(event) => event.envelope(),
            FeedItem::Retracted(_) | FeedItem::CaughtUp | FeedItem::Retrying => None,
        };
        let mine = envelope.filter(|envelope| {
            envelope.agent_id == self.agent
                && envelope.seq.is_some()
                && envelope.hidden_by.is_none()
        });
        if let Some(envelope) = mine {
            self.note(envelope);
        }
        for event in item.tell(&mut self.reader) {
            self.event(event, envelope);
        }
    }

    /// Takes that the work is over.
    pub(super) fn over(&mut self, outcome: Option<&Outcome>) {
        for event in self.reader.over(outcome) {
            self.event(event, None);
        }
    }

    /// Notes what the reader of the turn does not return.
    fn note(&mut self, envelope: &Envelope) {
        if self.turn != Some(envelope.turn) {
            return;
        }
        if envelope.epoch > self.stages.epoch {
            self.stages.epoch = envelope.epoch;
            self.stages.next();
        }
        match envelope.event() {
            Some(Ok(Event::Retry(_) | Event::Compacted(_))) => self.stages.next(),
            Some(Ok(Event::UsageDelta(usage))) if self.is_found() => self.usage += usage.delta,
            Some(Ok(Event::Message(saved))) => self.message(&saved.message),
            _ => {}
        }
    }

    fn message(&mut self, message: &Message) {
        match message.role {
            MessageRole::Assistant => self.stages.stop = message.metadata.stop,
            MessageRole::User if message.metadata.inputs.contains(&self.input) => {
                let text = normal(&marked(&message.content));
                let is_own = self
                    .asked
                    .as_ref()
                    .is_none_or(|asked| text.ends_with(asked));
                if !is_own {
                    self.end(EndKind::Taken);
                }
            }
            MessageRole::User | MessageRole::ToolResult | MessageRole::Custom => {}
        }
    }

    fn event(&mut self, event: TurnEvent, envelope: Option<&Envelope>) {
        match event {
            TurnEvent::Started { turn, has_shape } => {
                self.stages.has_shape = has_shape;
                if self.turn.replace(turn).is_some() {
                    // The calls of the turn before, and a reply that was not saved, are void.
                    self.waits.calls.clear();
                    self.stages.next();
                    self.stages.stop = None;
                }
                self.stages.epoch = envelope.map_or(0, |envelope| envelope.epoch);
                let at = envelope.map_or_else(Timestamp::now, |envelope| envelope.at);
                self.push(SegmentEvent::Began { at });
            }
            TurnEvent::Text { .. } if self.stages.has_shape => {}
            TurnEvent::Text { part, text } => self.piece(SegmentPieceKind::Text, part, text),
            TurnEvent::Reasoning { part, text } => {
                self.piece(SegmentPieceKind::Reasoning, part, text)
            }
            TurnEvent::StepReset => self.void(),
            TurnEvent::StepEnded { seq } => {
                self.place.last_reply = seq;
                self.push(SegmentEvent::Saved);
                self.stages.next();
            }
            TurnEvent::ToolCalled { call_id, .. } => {
                self.waits.calls.insert(call_id, SegmentCallState::Runs);
            }
            TurnEvent::ToolEnded { call_id, .. } => {
                self.waits.calls.remove(&call_id);
                self.rest();
            }
            TurnEvent::WaitOpened(wait) => self.wait(&wait),
            TurnEvent::WaitClosed(wait) => {
                if let Some(state) = self.waits.calls.get_mut(wait.call()) {
                    *state = SegmentCallState::Runs;
                }
            }
            TurnEvent::Ended {
                outcome,
                refused,
                output,
                ..
            } => self.ended(outcome, refused, output),
            TurnEvent::Failed { code, reason } => self.end(EndKind::Failed { code, reason }),
            TurnEvent::Worker(worker) => self.worker(worker),
            TurnEvent::StepStarted
            | TurnEvent::ToolStarted { .. }
            | TurnEvent::CaughtUp
            | TurnEvent::ToolProgress { .. }
            | TurnEvent::Compacting
            | TurnEvent::Compacted { .. }
            | TurnEvent::Warning { .. } => {}
        }
    }

    /// Tells each wait of a worker once.
    fn worker(&mut self, worker: WorkerUpdate) {
        for wait in worker.waits {
            if self.waits.told.insert(wait.id.clone()) {
                let title = format!("{}: {}", worker.name, wait.title);
                self.push(SegmentEvent::Waits { id: wait.id, title });
            }
        }
    }

    fn piece(&mut self, kind: SegmentPieceKind, part: usize, text: String) {
        let place = self.stages.place(part, &text);
        self.push(SegmentEvent::Piece { kind, place, text });
    }

    /// Voids the pieces of the last try. A retry has begun the next stage already.
    fn void(&mut self) {
        self.stages.ends.clear();
        self.push(SegmentEvent::Void);
    }

    fn wait(&mut self, wait: &WaitOpened) {
        if let Some(state) = self.waits.calls.get_mut(wait.call()) {
            *state = SegmentCallState::Waits(wait.kind);
        }
        match wait.kind {
            WaitKind::ClientTool => {
                let called = called(wait, self.stages.stage);
                self.push(called);
                self.rest();
            }
            WaitKind::Approval | WaitKind::Question | WaitKind::Budget | WaitKind::Change => {
                let (id, title) = (wait.id.clone(), wait.title.clone());
                self.push(SegmentEvent::Waits { id, title });
                self.rest();
            }
        }
    }

    /// Ends the segment if nothing but answers from outside is missing, and the client owes one of
    /// them. A reply ends at most one segment, so that results which come one by one do not.
    fn rest(&mut self) {
        let is_waiting = self
            .waits
            .calls
            .values()
            .all(|state| matches!(state, SegmentCallState::Waits(_)));
        let client = SegmentCallState::Waits(WaitKind::ClientTool);
        let owes = self.waits.calls.values().any(|state| *state == client);
        if !is_waiting || !owes || self.place.ended_after == Some(self.place.last_reply) {
            return;
        }
        self.end(EndKind::Called);
        self.place.ended_after = Some(self.place.last_reply);
        self.place.before = self.place.current.replace(self.place.last_reply);
        let is_wanted = |id: &CallId| self.waits.calls.get(id) == Some(&client);
        if matches!(&self.beginning, Beginning::Call(id) if is_wanted(id)) {
            self.beginning = Beginning::Reply(self.place.last_reply);
        }
    }

    fn ended(&mut self, outcome: TurnOutcome, refused: bool, output: Option<Box<RawValue>>) {
        if let Some(output) = output {
            self.piece(SegmentPieceKind::Text, 0, output.get().to_owned());
            self.push(SegmentEvent::Saved);
            self.stages.next();
        }
        let how = match (outcome, self.stages.stop) {
            (TurnOutcome::Completed, _) if refused => EndKind::Refused,
            (TurnOutcome::Aborted, _) => EndKind::Aborted,
            (TurnOutcome::Truncated | TurnOutcome::Limit, _) => EndKind::Cut,
            (TurnOutcome::Completed, Some(StopReason::Refusal)) => EndKind::Refused,
            (TurnOutcome::Completed, Some(StopReason::Length)) => EndKind::Cut,
            (TurnOutcome::Completed, Some(StopReason::End | StopReason::ToolUse) | None) => {
                EndKind::Done
            }
        };
        self.end(how);
    }

    fn end(&mut self, how: EndKind) {
        let (stage, usage) = (self.stages.stage, self.usage);
        self.push(SegmentEvent::End(SegmentEnd { how, stage, usage }));
        self.is_complete |= self.is_found();
    }
}

impl Stages {
    fn next(&mut self) {
        self.stage += 1;
        self.ends.clear();
    }

    fn place(&mut self, part: usize, text: &str) -> PiecePlace {
        let end = self.ends.entry(part).or_default();
        *end += text.chars().count();
        PiecePlace {
            stage: self.stage,
            part,
            end: *end,
        }
    }
}

/// Reads the call of a client's tool from its wait.
fn called(wait: &WaitOpened, stage: u64) -> SegmentEvent {
    #[derive(Deserialize)]
    struct Request {
        tool: String,
        args: Box<RawValue>,
    }
    let request: Option<Request> = serde_json::from_str(wait.request.get()).ok();
    let (name, args) = match request {
        Some(request) => (request.tool, request.args.get().to_owned()),
        None => (String::new(), "{}".to_owned()),
    };
    SegmentEvent::Called {
        stage,
        call_id: wait.id.clone(),
        name,
        args,
    }
}
