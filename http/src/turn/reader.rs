//! Finds one turn in the events of a session, or all turns of an agent that belong to the work of a
//! prompt, and returns what happens in them, without I/O. A turn is the same for a reader that reads
//! along, joins late or reads the log.

mod retraction;
mod work;

use std::collections::{HashMap, HashSet};

use planck_common::{
    AgentId, CallId, Seq,
    envelope::Envelope,
    event::{Event, InputKind, ToolEnd, ToolProgress, ToolStart, TurnEnd, Warning},
    message::{Message, MessageRole},
    wait::{WaitClosed, WaitOpened},
};

use super::{
    TurnEvent,
    choice::{REJECTED, TurnChoice},
    reply::{PieceKind, ReplyReader},
    workers::{Workers, tells_of_worker},
};
use crate::feed::FeedItem;
use work::Work;

/// The code with which a turn fails that a rewind hid.
const REWOUND: &str = "rewound";
/// The code with which work fails whose agent has stopped.
const STOPPED: &str = "stopped";

/// Reads one turn of one agent, or its turns in the work of a prompt. The cursor whose items the
/// reader takes must begin at or before the turn's first event.
#[derive(Debug)]
pub struct TurnReader {
    agent: AgentId,
    choice: TurnChoice,
    phase: TurnPhase,
    /// The number of the last durable event.
    last: Seq,
    /// The highest epoch of the agent in the log.
    epoch: i64,
    reply: ReplyReader,
    calls: HashMap<CallId, CallPhase>,
    waits: HashSet<CallId>,
    workers: Workers,
    work: Option<Work>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnPhase {
    /// The turn has not begun.
    Before,
    /// The turn with the number `turn` is running. `first` is the number of its first event.
    Running {
        turn: u32,
        first: Seq,
    },
    /// A turn of the work has ended, and another one may follow.
    Between {
        first: Seq,
    },
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallPhase {
    Called,
    Started,
    Ended,
}

impl TurnReader {
    /// Creates a reader of a turn of the agent.
    pub fn new(agent: AgentId, choice: TurnChoice) -> Self {
        Self {
            agent,
            choice,
            phase: TurnPhase::Before,
            last: 0,
            epoch: 0,
            reply: ReplyReader::default(),
            calls: HashMap::new(),
            waits: HashSet::new(),
            workers: Workers::default(),
            work: None,
        }
    }

    /// Gives the names of the session's agents, which the events do not repeat.
    #[must_use]
    pub fn with_names(mut self, names: impl IntoIterator<Item = (AgentId, String)>) -> Self {
        for (id, name) in names {
            self.workers.name(id, name);
        }
        self
    }

    /// Returns the number of the running turn.
    pub fn turn(&self) -> Option<u32> {
        match self.phase {
            TurnPhase::Running { turn, .. } => Some(turn),
            TurnPhase::Before | TurnPhase::Between { .. } | TurnPhase::Over => None,
        }
    }

    /// Returns whether the turn is over, so that nothing more is returned.
    pub fn is_over(&self) -> bool {
        self.phase == TurnPhase::Over
    }

    /// Takes an item of the session's feed, and returns what it means for the turn.
    pub fn take(&mut self, item: &FeedItem) -> Vec<TurnEvent> {
        let mut out = Vec::new();
        match item {
            _ if self.is_over() => {}
            FeedItem::Event(event) => {
                if let Some(envelope) = event.envelope() {
                    self.envelope(envelope, &mut out);
                }
            }
            FeedItem::Retracted(retracted) => self.retracted(retracted, &mut out),
            FeedItem::CaughtUp => self.caught_up(&mut out),
            FeedItem::Retrying => {}
        }
        out
    }

    fn envelope(&mut self, envelope: &Envelope, out: &mut Vec<TurnEvent>) {
        if let Some(seq) = envelope.seq {
            if seq <= self.last {
                return;
            }
            self.last = seq;
        }
        // An event that this version cannot read says nothing that this version could show.
        let Some(Ok(event)) = envelope.event() else {
            return;
        };
        if envelope.hidden_by.is_some() {
            return self.hidden(envelope, &event, out);
        }
        if let (Some(work), Some(_)) = (&mut self.work, envelope.seq) {
            work.trace.take(envelope, &event);
        }
        match self.phase {
            TurnPhase::Before => self.before(envelope, event, out),
            TurnPhase::Running { turn, .. } => self.running(turn, envelope, event, out),
            TurnPhase::Between { .. } => self.between(envelope, event, out),
            TurnPhase::Over => {}
        }
    }

    fn caught_up(&mut self, out: &mut Vec<TurnEvent>) {
        out.push(TurnEvent::CaughtUp);
        self.reply.caught_up();
        if self.turn().is_some() {
            self.reply.release(out);
        }
    }

    /// Takes an event that a rewind has hidden since.
    fn hidden(&mut self, envelope: &Envelope, event: &Event, out: &mut Vec<TurnEvent>) {
        let Event::TurnStart(start) = event else {
            return;
        };
        let is_wanted = self.choice.is_opened(start);
        if is_wanted && self.phase == TurnPhase::Before && envelope.agent_id == self.agent {
            self.begin(start.index, envelope, out);
            self.fail(REWOUND, "a rewind hid this turn", out);
        }
    }

    fn before(&mut self, envelope: &Envelope, event: Event, out: &mut Vec<TurnEvent>) {
        if tells_of_worker(&event) || envelope.agent_id != self.agent {
            let _ = self.workers.take(&envelope.agent_id, &event);
            return;
        }
        if self.early(envelope, &event) {
            return;
        }
        if let Event::TurnStart(start) = &event
            && self.choice.is_opened(start)
        {
            let mut inputs = start.inputs.iter();
            let prompt = inputs.find(|input| input.kind == InputKind::Prompt);
            if let Some(work) = &mut self.work {
                work.prompt = work
                    .prompt
                    .take()
                    .or(prompt.map(|prompt| prompt.id.clone()));
            }
            self.begin(start.index, envelope, out);
        } else if let Event::Message(saved) = &event
            && self.choice.is_joined(&saved.message)
        {
            self.begin(envelope.turn, envelope, out);
        } else if let Event::Warning(warning) = &event
            && self.choice.is_refused(warning)
        {
            self.fail(REJECTED, &warning.message, out);
        } else if let Event::AgentStopped(stopped) | Event::SessionClosed(stopped) = &event
            && self.choice.input().is_some()
        {
            let reason = format!("the agent stopped before the turn: {}", stopped.reason);
            self.fail(STOPPED, &reason, out);
        }
    }

    /// Takes a piece of a turn that has not begun. The pieces after it have a meaning only together
    /// with it. Returns `false` if the event is another one.
    fn early(&mut self, envelope: &Envelope, event: &Event) -> bool {
        let (kind, delta) = if let Event::TextDelta(delta) = event {
            (PieceKind::Text, delta)
        } else if let Event::ThinkingDelta(delta) = event {
            (PieceKind::Reasoning, delta)
        } else {
            return false;
        };
        let place = (envelope.epoch, envelope.request);
        self.reply.early(envelope.turn, place, kind, delta);
        true
    }

    fn begin(&mut self, turn: u32, envelope: &Envelope, out: &mut Vec<TurnEvent>) {
        let first = match self.phase {
            TurnPhase::Between { first } => first,
            TurnPhase::Before | TurnPhase::Running { .. } | TurnPhase::Over => {
                envelope.seq.unwrap_or_default()
            }
        };
        self.epoch = envelope.epoch;
        self.calls.clear();
        self.phase = TurnPhase::Running { turn, first };
        if let Some(work) = &mut self.work {
            (work.turn, work.end) = (turn, None);
            work.trace.begin(&self.agent, turn, &envelope.session_id);
        }
        out.push(TurnEvent::Started { turn });
        self.reply.begin(turn, out);
    }

    fn fail(&mut self, code: &str, reason: &str, out: &mut Vec<TurnEvent>) {
        self.reply.end(out);
        self.phase = TurnPhase::Over;
        out.push(TurnEvent::Failed {
            code: code.to_owned(),
            reason: reason.to_owned(),
        });
    }

    fn running(&mut self, turn: u32, envelope: &Envelope, event: Event, out: &mut Vec<TurnEvent>) {
        let seq = envelope.seq.unwrap_or_default();
        if let Event::Rewound(_) = event {
            return self.fail(REWOUND, "the session was rewound", out);
        }
        if tells_of_worker(&event) || envelope.agent_id != self.agent {
            out.extend(self.workers.take(&envelope.agent_id, &event));
            return;
        }
        if envelope.turn != turn {
            return;
        }
        if envelope.seq.is_some() && envelope.epoch > self.epoch {
            self.epoch = envelope.epoch;
            // Another node continues the turn.
            let earlier = (envelope.epoch - 1, u32::MAX);
            self.reply.lost(earlier, out);
        }
        let place = (envelope.epoch, envelope.request);
        match event {
            Event::TextDelta(delta) => self.reply.delta(place, PieceKind::Text, &delta, out),
            Event::ThinkingDelta(delta) => {
                self.reply.delta(place, PieceKind::Reasoning, &delta, out)
            }
            Event::Message(saved) => self.message(envelope, &saved.message, out),
            Event::Retry(_) | Event::Compacted(_) => self.reply.failed(place, out),
            Event::ToolStart(start) => out.extend(self.tool_start(start)),
            Event::ToolProgress(progress) => out.extend(self.progress(progress)),
            Event::ToolEnd(end) => self.tool_end(end, out),
            Event::WaitOpened(wait) => out.push(self.wait_opened(wait)),
            Event::WaitClosed(wait) => out.extend(self.wait_closed(wait)),
            Event::Warning(Warning { code, message, .. }) => {
                out.push(TurnEvent::Warning { code, message });
            }
            Event::TurnEnd(end) => self.ended(seq, end, out),
            Event::Error(error) => {
                let (code, reason) = (error.code, error.reason);
                self.end(TurnEvent::Failed { code, reason }, out);
            }
            Event::TurnStart(_)
            | Event::UsageDelta(_)
            | Event::MessageQueued(_)
            | Event::Compacting(_)
            | Event::WorkerSpawned(_)
            | Event::WorkerExit(_)
            | Event::AgentStarted(_)
            | Event::AgentStopped(_)
            | Event::SessionStarted(_)
            | Event::SessionResumed(_)
            | Event::SessionClosed(_)
            | Event::Rewound(_)
            | Event::Checkpoint(_)
            | Event::ToolsChanged(_)
            | Event::ModelChanged(_) => {}
        }
    }

    fn message(&mut self, envelope: &Envelope, message: &Message, out: &mut Vec<TurnEvent>) {
        let seq = envelope.seq.unwrap_or_default();
        match message.role {
            MessageRole::Assistant => {
                let place = (envelope.epoch, envelope.request);
                let before = out.len();
                self.reply.saved(place, seq, message, out);
                for event in out.iter().skip(before) {
                    if let TurnEvent::ToolCalled { call_id, .. } = event {
                        self.calls.insert(call_id.clone(), CallPhase::Called);
                    }
                }
            }
            MessageRole::User | MessageRole::Custom | MessageRole::ToolResult => {}
        }
    }

    /// Takes the start of a call. A node that continues the turn may start a call again.
    fn tool_start(&mut self, start: ToolStart) -> Option<TurnEvent> {
        let call_id = start.call_id;
        self.calls
            .get_mut(&call_id)
            .filter(|phase| **phase == CallPhase::Called)
            .map(|phase| *phase = CallPhase::Started)?;
        Some(TurnEvent::ToolStarted { call_id })
    }

    fn progress(&self, progress: ToolProgress) -> Option<TurnEvent> {
        let phase = self.calls.get(&progress.call_id)?;
        (*phase != CallPhase::Ended).then_some(TurnEvent::ToolProgress {
            call_id: progress.call_id,
            message: progress.message,
            percent: progress.percent,
        })
    }

    fn tool_end(&mut self, end: ToolEnd, out: &mut Vec<TurnEvent>) {
        let phase = self.calls.get_mut(&end.call_id);
        let phase = phase.map(|phase| std::mem::replace(phase, CallPhase::Ended));
        if let Some(CallPhase::Called | CallPhase::Started) = phase {
            out.push(TurnEvent::ToolEnded {
                call_id: end.call_id,
                result: end.result,
                is_error: end.error,
            });
            self.reply.call_ended(out);
        }
    }

    fn wait_opened(&mut self, wait: WaitOpened) -> TurnEvent {
        self.waits.insert(wait.id.clone());
        TurnEvent::WaitOpened(Box::new(wait))
    }

    fn wait_closed(&mut self, wait: WaitClosed) -> Option<TurnEvent> {
        let was_open = self.waits.remove(&wait.id);
        was_open.then(|| TurnEvent::WaitClosed(Box::new(wait)))
    }

    fn ended(&mut self, seq: Seq, end: TurnEnd, out: &mut Vec<TurnEvent>) {
        let mut usage = end.usage;
        if let Some(work) = &mut self.work {
            work.usage += usage;
            usage = work.usage;
        }
        let ended = TurnEvent::Ended {
            seq,
            outcome: end.outcome,
            refused: end.refused,
            limit: end.limit,
            usage,
        };
        self.end(ended, out);
    }
}
