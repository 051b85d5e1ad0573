//! The part of a turn that one response shows: from the turn's beginning, or from the answers to
//! the client's tool calls, until the turn ends or calls tools of the client again.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use planck_client::{Client, ClientError, Follow, FollowEvent};
use planck_common::{
    AgentId, CallId, Seq, Timestamp,
    envelope::Envelope,
    event::{Event, TurnOutcome},
    message::{MessageRole, StopReason},
    usage::Usage,
    wait::{WaitKind, WaitOpened},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{error::ApiError, opening::Opened};
use crate::turn::{TurnChoice, TurnEvent, TurnReader};

/// How long the log may take until it has been read to its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The place of a piece in a turn. It is the same at every reading of the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PiecePlace {
    /// The number of the try of a request, from 1. Each retry that is in the log counts.
    pub stage: u64,
    pub part: usize,
    /// The number of characters of the part up to the end of the piece.
    pub end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    Text,
    Reasoning,
}

/// What a response shows, in order.
#[derive(Debug, Clone)]
pub enum SegmentEvent {
    /// The turn began.
    Began { at: Timestamp },
    Piece {
        kind: PieceKind,
        place: PiecePlace,
        text: String,
    },
    /// The pieces of this stage are void, because the request is made again.
    Void { stage: u64 },
    /// The pieces of this stage are saved.
    Saved { stage: u64 },
    /// A call of a client's tool.
    Called {
        stage: u64,
        call_id: CallId,
        name: String,
        args: String,
    },
    /// The turn waits for a person.
    Waits { id: CallId, title: String },
    /// Nothing follows.
    End(SegmentEnd),
}

#[derive(Debug, Clone)]
pub struct SegmentEnd {
    pub how: EndKind,
    pub stage: u64,
    pub usage: Usage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndKind {
    Done,
    /// The model's output limit, or a limit of the turn, cut the answer off.
    Cut,
    /// The provider withheld the rest.
    Refused,
    /// The client's tools were called.
    Called,
    Aborted,
    Failed {
        code: String,
        reason: String,
    },
}

/// Where a segment begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    Turn,
    /// After the reply with this number called tools of the client.
    Reply(Seq),
    /// After the reply that made this call.
    Call(CallId),
}

/// Reads one segment.
pub struct Segment {
    follow: Follow,
    state: SegmentState,
    is_caught_up: bool,
}

impl Segment {
    pub async fn open(client: &Client, opened: &Opened) -> Result<Self, ApiError> {
        let follow = client
            .follow(&opened.id.session, opened.id.place + 1)
            .await?;
        let choice = TurnChoice::Of(opened.input.clone());
        Ok(Self {
            follow,
            state: SegmentState::new(opened, choice),
            is_caught_up: false,
        })
    }

    /// Waits for the next event. Returns `None` after [`SegmentEvent::End`]. The method is cancel
    /// safe.
    pub async fn next(&mut self) -> Result<Option<SegmentEvent>, ClientError> {
        loop {
            if let Some(event) = self.state.queue.pop_front() {
                return Ok(Some(event));
            }
            if self.state.is_over() {
                return Ok(None);
            }
            self.step().await?;
        }
    }

    async fn step(&mut self) -> Result<(), ClientError> {
        let item = self.follow.next().await?;
        self.is_caught_up |= matches!(item, FollowEvent::CaughtUp);
        self.state.take(&item);
        Ok(())
    }

    /// Reads what has happened so far, and returns it.
    pub async fn load(&mut self) -> Result<Vec<SegmentEvent>, ApiError> {
        let reading = async {
            while !self.is_caught_up && !self.state.is_over() {
                self.step().await?;
            }
            Ok::<_, ClientError>(())
        };
        let read = tokio::time::timeout(PATIENCE, reading).await;
        read.map_err(|_| ApiError::late())??;
        Ok(self.state.queue.drain(..).collect())
    }

    /// Reads all that has happened in the turn so far, whatever the segment.
    pub async fn load_turn(&mut self) -> Result<(), ApiError> {
        let reading = async {
            while !self.is_caught_up && !self.state.reader.is_over() {
                self.step().await?;
            }
            Ok::<_, ClientError>(())
        };
        let read = tokio::time::timeout(PATIENCE, reading).await;
        Ok(read.map_err(|_| ApiError::late())??)
    }

    /// Puts back events that [`load`](Self::load) returned.
    pub fn put_back(&mut self, events: Vec<SegmentEvent>) {
        for event in events.into_iter().rev() {
            self.state.queue.push_front(event);
        }
    }

    /// Reads on until the place is known where the segment begins.
    pub async fn find(&mut self) -> Result<Option<Seq>, ApiError> {
        let reading = async {
            while !self.state.is_found() && !self.is_caught_up {
                self.step().await?;
            }
            Ok::<_, ClientError>(())
        };
        let read = tokio::time::timeout(PATIENCE, reading).await;
        read.map_err(|_| ApiError::late())??;
        match (&self.state.beginning, self.state.is_found()) {
            (Beginning::Turn, _) => Ok(None),
            (Beginning::Reply(seq), true) => Ok(Some(*seq)),
            (Beginning::Reply(_) | Beginning::Call(_), _) => Err(ApiError::not_found(
                "the session has no such response, or a rewind hid it",
            )),
        }
    }

    /// Returns the calls of the client's tools that have no result yet.
    pub fn open_calls(&self) -> Vec<CallId> {
        let calls = self.state.calls.iter();
        let open = calls.filter(|(_, state)| **state == CallState::Waits(WaitKind::ClientTool));
        open.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the reply after which the last segment begins. A segment does not begin before the
    /// client has sent the results that it owes.
    pub fn last_beginning(&self) -> Option<Seq> {
        match self.open_calls().is_empty() {
            true => self.state.current,
            false => self.state.before,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    Runs,
    Waits(WaitKind),
}

/// The state of the reading, without I/O.
struct SegmentState {
    reader: TurnReader,
    agent: AgentId,
    beginning: Beginning,
    /// The reply after which the segment began that is being read.
    current: Option<Seq>,
    /// The same of the segment before that.
    before: Option<Seq>,
    /// The last reply, and whether a segment has ended after it.
    last_reply: Seq,
    ended_after: Option<Seq>,
    turn: Option<u32>,
    stages: Stages,
    calls: BTreeMap<CallId, CallState>,
    usage: Usage,
    queue: VecDeque<SegmentEvent>,
    is_complete: bool,
}

/// Numbers the tries of requests by what the log says about them.
#[derive(Debug, Default)]
struct Stages {
    stage: u64,
    epoch: i64,
    stop: Option<StopReason>,
    /// The number of characters of each part of the stage.
    ends: BTreeMap<usize, usize>,
}

impl SegmentState {
    fn new(opened: &Opened, choice: TurnChoice) -> Self {
        Self {
            reader: TurnReader::new(opened.agent.clone(), choice),
            agent: opened.agent.clone(),
            beginning: opened.beginning(),
            current: None,
            before: None,
            last_reply: 0,
            ended_after: None,
            turn: None,
            stages: Stages {
                stage: 1,
                ..Stages::default()
            },
            calls: BTreeMap::new(),
            usage: Usage::default(),
            queue: VecDeque::new(),
            is_complete: false,
        }
    }

    fn is_over(&self) -> bool {
        self.is_complete || self.reader.is_over()
    }

    /// Returns whether the segment has begun.
    fn is_found(&self) -> bool {
        match &self.beginning {
            Beginning::Turn => self.current.is_none(),
            Beginning::Reply(seq) => self.current == Some(*seq),
            Beginning::Call(_) => false,
        }
    }

    fn push(&mut self, event: SegmentEvent) {
        if self.is_found() && !self.is_complete {
            self.queue.push_back(event);
        }
    }

    fn take(&mut self, item: &FollowEvent) {
        let envelope = match item {
            FollowEvent::Durable(envelope) | FollowEvent::Live(envelope) => Some(envelope),
            FollowEvent::Retracted(_) | FollowEvent::CaughtUp | FollowEvent::Retrying(_) => None,
        };
        let mine = envelope.filter(|envelope| {
            envelope.agent_id == self.agent
                && envelope.seq.is_some()
                && envelope.hidden_by.is_none()
        });
        if let Some(envelope) = mine {
            self.note(envelope);
        }
        for event in self.reader.take(item) {
            self.event(event, envelope);
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
            Some(Ok(Event::Message(saved))) if saved.message.role == MessageRole::Assistant => {
                self.stages.stop = saved.message.metadata.stop;
            }
            _ => {}
        }
    }

    fn event(&mut self, event: TurnEvent, envelope: Option<&Envelope>) {
        match event {
            TurnEvent::Started { turn, .. } => {
                self.turn = Some(turn);
                self.stages.epoch = envelope.map_or(0, |envelope| envelope.epoch);
                let at = envelope.map_or_else(Timestamp::now, |envelope| envelope.at);
                self.push(SegmentEvent::Began { at });
            }
            TurnEvent::Text { part, text } => self.piece(PieceKind::Text, part, text),
            TurnEvent::Reasoning { part, text } => self.piece(PieceKind::Reasoning, part, text),
            TurnEvent::StepReset { .. } => self.void(),
            TurnEvent::StepEnded { seq } => {
                self.last_reply = seq;
                let stage = self.stages.stage;
                self.push(SegmentEvent::Saved { stage });
                self.stages.next();
            }
            TurnEvent::ToolCalled { call_id, .. } => {
                self.calls.insert(call_id, CallState::Runs);
            }
            TurnEvent::ToolEnded { call_id, .. } => {
                self.calls.remove(&call_id);
                self.rest();
            }
            TurnEvent::WaitOpened(wait) => self.wait(&wait),
            TurnEvent::WaitClosed(wait) => {
                if let Some(state) = self.calls.get_mut(&wait.id) {
                    *state = CallState::Runs;
                }
            }
            TurnEvent::Ended { outcome, .. } => self.ended(outcome),
            TurnEvent::Failed { code, reason, .. } => self.end(EndKind::Failed { code, reason }),
            TurnEvent::StepStarted { .. }
            | TurnEvent::Steered { .. }
            | TurnEvent::ToolProgress { .. }
            | TurnEvent::Worker(_)
            | TurnEvent::Warning { .. } => {}
        }
    }

    fn piece(&mut self, kind: PieceKind, part: usize, text: String) {
        let place = self.stages.place(part, &text);
        self.push(SegmentEvent::Piece { kind, place, text });
    }

    /// Voids the pieces of the last try. A retry has begun the next stage already.
    fn void(&mut self) {
        let stage = self.stages.stage;
        self.stages.ends.clear();
        self.push(SegmentEvent::Void { stage });
    }

    fn wait(&mut self, wait: &WaitOpened) {
        if let Some(state) = self.calls.get_mut(&wait.id) {
            *state = CallState::Waits(wait.kind);
        }
        match wait.kind {
            WaitKind::ClientTool => {
                let called = called(wait, self.stages.stage);
                self.push(called);
                self.rest();
            }
            WaitKind::Approval | WaitKind::Question | WaitKind::Budget => {
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
            .calls
            .values()
            .all(|state| matches!(state, CallState::Waits(_)));
        let client = CallState::Waits(WaitKind::ClientTool);
        let owes = self.calls.values().any(|state| *state == client);
        if !is_waiting || !owes || self.ended_after == Some(self.last_reply) {
            return;
        }
        self.end(EndKind::Called);
        self.ended_after = Some(self.last_reply);
        self.before = self.current.replace(self.last_reply);
        let is_wanted = |id: &CallId| self.calls.get(id) == Some(&client);
        if matches!(&self.beginning, Beginning::Call(id) if is_wanted(id)) {
            self.beginning = Beginning::Reply(self.last_reply);
        }
    }

    fn ended(&mut self, outcome: TurnOutcome) {
        let how = match (outcome, self.stages.stop) {
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
