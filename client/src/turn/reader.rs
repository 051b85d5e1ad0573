//! Finds one turn in the events of a session, or all turns of an agent that belong to the work of a
//! prompt, and returns what happens in them, without I/O. A turn is the same for a reader that reads
//! along, joins late or reads the log.

mod work;

use std::collections::HashSet;

use planck_common::{
    AgentId, CallId, InputId, Seq,
    envelope::Envelope,
    event::{Event, EventKind, InputKind, TurnEnd, TurnStart, Warning},
    message::Message,
    wait::{WaitClosed, WaitOpened},
};

use self::work::WorkTurns;
use super::{
    TurnEvent,
    steps::StepReader,
    workers::{Workers, tells_of_worker},
};
use crate::{FollowEvent, Retracted};

/// The code with which a turn fails that a rewind hid.
const REWOUND: &str = "rewound";
/// The code with which work fails whose agent has stopped.
const STOPPED: &str = "stopped";

/// Reads one turn of one agent, or its turns in the work of a prompt. The events that it takes
/// must begin at or before the turn's first event.
#[derive(Debug)]
pub struct TurnReader {
    agent: AgentId,
    choice: TurnChoice,
    phase: TurnPhase,
    /// The number of the last durable event.
    last: Seq,
    steps: StepReader,
    waits: HashSet<CallId>,
    workers: Workers,
    work: Option<WorkTurns>,
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

impl TurnReader {
    /// Creates a reader of a turn of the agent.
    pub fn new(agent: AgentId, choice: TurnChoice) -> Self {
        Self {
            agent,
            choice,
            phase: TurnPhase::Before,
            last: 0,
            steps: StepReader::default(),
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

    /// Takes an item of a follower, and returns what it means for the turn.
    pub fn take(&mut self, item: &FollowEvent) -> Vec<TurnEvent> {
        match item {
            FollowEvent::Durable(event) | FollowEvent::Live(event) => self.event(event),
            FollowEvent::Retracted(retracted) => self.retracted(retracted),
            FollowEvent::CaughtUp => self.caught_up(),
            FollowEvent::Retrying(_) => Vec::new(),
        }
    }

    /// Takes an event of the session.
    pub fn event(&mut self, envelope: &Envelope) -> Vec<TurnEvent> {
        let mut out = Vec::new();
        if !self.is_over() {
            self.envelope(envelope, &mut out);
        }
        out
    }

    /// Takes that a durable event which was taken is not in the log.
    pub fn retracted(&mut self, retracted: &Retracted) -> Vec<TurnEvent> {
        let mut out = Vec::new();
        if !self.is_over() {
            self.retract(retracted, &mut out);
        }
        out
    }

    /// Takes that all events were taken which were in the log at the start.
    pub fn caught_up(&mut self) -> Vec<TurnEvent> {
        let mut out = Vec::new();
        if !self.is_over() {
            out.push(TurnEvent::CaughtUp);
            let is_running = self.turn().is_some();
            self.steps.caught_up(is_running, &mut out);
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

    /// Takes an event that a rewind has hidden since.
    fn hidden(&mut self, envelope: &Envelope, event: &Event, out: &mut Vec<TurnEvent>) {
        let Event::TurnStart(start) = event else {
            return;
        };
        let is_wanted = self.choice.is_opened(start);
        if is_wanted && self.phase == TurnPhase::Before && envelope.agent_id == self.agent {
            self.begin((start.index, start.output.is_some()), envelope, out);
            self.fail(REWOUND, "a rewind hid this turn", out);
        }
    }

    fn before(&mut self, envelope: &Envelope, event: Event, out: &mut Vec<TurnEvent>) {
        if tells_of_worker(&event) || envelope.agent_id != self.agent {
            let _ = self.workers.take(&envelope.agent_id, &event);
            return;
        }
        if self.steps.early(envelope, &event) {
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
            self.begin((start.index, start.output.is_some()), envelope, out);
        } else if let Event::Message(saved) = &event
            && self.choice.is_joined(&saved.message)
        {
            self.begin((envelope.turn, false), envelope, out);
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

    /// Begins a turn: its number, and whether its answer has a shape.
    fn begin(
        &mut self,
        (turn, has_shape): (u32, bool),
        envelope: &Envelope,
        out: &mut Vec<TurnEvent>,
    ) {
        let first = match self.phase {
            TurnPhase::Between { first } => first,
            TurnPhase::Before | TurnPhase::Running { .. } | TurnPhase::Over => {
                envelope.seq.unwrap_or_default()
            }
        };
        self.phase = TurnPhase::Running { turn, first };
        if let Some(work) = &mut self.work {
            (work.turn, work.end) = (turn, None);
            work.trace.begin(&self.agent, turn, &envelope.session_id);
        }
        out.push(TurnEvent::Started { turn, has_shape });
        self.steps.begin(envelope.epoch, turn, out);
    }

    fn fail(&mut self, code: &str, reason: &str, out: &mut Vec<TurnEvent>) {
        self.steps.end(out);
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
        self.steps.event(envelope, &event, out);
        match event {
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
            Event::TextDelta(_)
            | Event::ThinkingDelta(_)
            | Event::Message(_)
            | Event::Retry(_)
            | Event::Compacted(_)
            | Event::ToolStart(_)
            | Event::ToolProgress(_)
            | Event::ToolEnd(_)
            | Event::TurnStart(_)
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
            output: end.output,
            usage,
        };
        self.end(ended, out);
    }

    /// Takes that an event is not in the log. Another program published it in the agent's name, and
    /// what followed from it cannot be taken back, so a turn in which it was shown fails.
    fn retract(&mut self, retracted: &Retracted, out: &mut Vec<TurnEvent>) {
        self.last = self.last.min(retracted.seq - 1);
        let (TurnPhase::Running { first, .. } | TurnPhase::Between { first }) = self.phase else {
            return;
        };
        if retracted.agent_id != self.agent || retracted.seq < first || !shows(&retracted.kind) {
            return;
        }
        let reason = "another program published an event in the agent's name; read the turn again";
        self.fail("retracted", reason, out);
    }
}

/// Returns whether an event of this kind has a part of a turn.
fn shows(kind: &str) -> bool {
    use EventKind::{
        Message, ToolEnd, TurnStart, WaitClosed, WaitOpened, Warning, WorkerExit, WorkerSpawned,
    };
    EventKind::find(kind).is_some_and(|kind| {
        matches!(
            kind,
            TurnStart
                | Message
                | ToolEnd
                | WaitOpened
                | WaitClosed
                | Warning
                | WorkerSpawned
                | WorkerExit
        )
    })
}

// Which turn of an agent is read.

/// The code of the warning that an input was refused because the agent was busy.
pub(super) const REJECTED: &str = "input_rejected";

/// Which turn of an agent a reader returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnChoice {
    /// The turn that takes this input, whether the input opens the turn or joins it.
    Of(InputId),
    /// The turn with this number.
    Number(u32),
}

impl TurnChoice {
    /// Returns whether this event opens the turn.
    pub(super) fn is_opened(&self, start: &TurnStart) -> bool {
        match self {
            Self::Of(input) => start.inputs.iter().any(|known| known.id == *input),
            Self::Number(number) => start.index == *number,
        }
    }

    /// Returns whether the wanted input joins a running turn with this message.
    pub(super) fn is_joined(&self, message: &Message) -> bool {
        self.input()
            .is_some_and(|input| message.metadata.inputs.contains(input))
    }

    /// Returns whether this warning says that the wanted input was refused.
    pub(super) fn is_refused(&self, warning: &Warning) -> bool {
        let refused = |input| warning.inputs.contains(input);
        warning.code == REJECTED && self.input().is_some_and(refused)
    }

    /// Returns the input whose turn is wanted.
    pub(super) fn input(&self) -> Option<&InputId> {
        match self {
            Self::Of(input) => Some(input),
            Self::Number(_) => None,
        }
    }
}
