//! The steps of an agent: its requests to a model, the replies, and the tool calls in these.

use std::collections::HashMap;

use planck_common::{
    CallId, Seq,
    envelope::Envelope,
    event::{Delta, Event, ToolEnd, ToolProgress},
    message::{Custom, Message, MessageRole, Part, text_of},
};

use super::TurnEvent;

/// Reads the steps of one agent. [`TurnReader`](super::TurnReader) has one for the turns that it
/// reads. A program that shows all that an agent says, in whichever turn, uses one of its own, and
/// gives it the events of a [`Follow`](crate::Follow).
#[derive(Debug, Default)]
pub struct StepReader {
    /// The highest epoch of the agent in the log.
    epoch: i64,
    reply: ReplyReader,
    calls: HashMap<CallId, CallPhase>,
    /// The last summary of the context, until the log says that it is in use.
    summary: String,
    /// The turn that compacts the context, until its beginning is taken, which is saved meanwhile.
    compacting: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallPhase {
    Called,
    Started,
    Ended,
}

impl StepReader {
    /// Takes an event of the agent in any of its turns, and returns what it means for the steps.
    pub fn take(&mut self, envelope: &Envelope, event: &Event) -> Vec<TurnEvent> {
        let mut out = Vec::new();
        let is_end = matches!(
            event,
            Event::TurnEnd(_) | Event::Error(_) | Event::AgentStopped(_)
        );
        if is_end || (is_of_step(event) && envelope.turn != self.reply.turn()) {
            self.end(&mut out);
            *self = Self::default();
            // The follower gives the log first, so no earlier reply is missing.
            self.reply.caught_up();
            self.reply.begin(envelope.turn, &mut out);
        }
        self.event(envelope, event, &mut out);
        out
    }

    /// Takes that a turn has begun.
    pub(super) fn begin(&mut self, epoch: i64, turn: u32, out: &mut Vec<TurnEvent>) {
        self.epoch = epoch;
        self.calls.clear();
        self.reply.begin(turn, out);
        if self.compacting.take() == Some(turn) {
            out.push(TurnEvent::Compacting);
        }
    }

    /// Takes a piece of a turn that has not begun, or its compaction. The pieces after it have a meaning
    /// only together with it. Returns `false` if the event is another one.
    pub(super) fn early(&mut self, envelope: &Envelope, event: &Event) -> bool {
        if let Event::Compacting(_) = event {
            self.compacting = Some(envelope.turn);
            return true;
        }
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

    /// Takes an event of the running turn.
    pub(super) fn event(&mut self, envelope: &Envelope, event: &Event, out: &mut Vec<TurnEvent>) {
        if envelope.seq.is_some() && envelope.epoch > self.epoch {
            self.epoch = envelope.epoch;
            // Another node continues the turn.
            let earlier = (envelope.epoch - 1, u32::MAX);
            self.reply.lost(earlier, out);
        }
        let place = (envelope.epoch, envelope.request);
        match event {
            Event::TextDelta(delta) => self.reply.delta(place, PieceKind::Text, delta, out),
            Event::ThinkingDelta(delta) => {
                self.reply.delta(place, PieceKind::Reasoning, delta, out);
            }
            Event::Message(saved) => self.message(envelope, &saved.message, out),
            Event::Retry(_) => self.reply.failed(place, out),
            Event::Compacting(_) => out.push(TurnEvent::Compacting),
            Event::Compacted(_) => {
                self.reply.failed(place, out);
                let summary = std::mem::take(&mut self.summary);
                out.push(TurnEvent::Compacted { summary });
            }
            Event::ToolStart(start) => out.extend(self.tool_start(&start.call_id)),
            Event::ToolProgress(progress) => out.extend(self.progress(progress)),
            Event::ToolEnd(end) => self.tool_end(end, out),
            Event::TurnStart(_)
            | Event::TurnEnd(_)
            | Event::Error(_)
            | Event::UsageDelta(_)
            | Event::WaitOpened(_)
            | Event::WaitClosed(_)
            | Event::MessageQueued(_)
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
            | Event::ModelChanged(_)
            | Event::Warning(_) => {}
        }
    }

    /// Takes that everything in the log was read.
    pub(super) fn caught_up(&mut self, is_running: bool, out: &mut Vec<TurnEvent>) {
        self.reply.caught_up();
        if is_running {
            self.reply.release(out);
        }
    }

    /// Voids the pieces that were never saved, because the turn ends.
    pub(super) fn end(&mut self, out: &mut Vec<TurnEvent>) {
        self.reply.end(out);
    }

    /// Forgets the turn, which has ended, so that the replies of the next one can be taken.
    pub(super) fn forget(&mut self) {
        self.reply.forget();
    }

    fn message(&mut self, envelope: &Envelope, message: &Message, out: &mut Vec<TurnEvent>) {
        match message.role {
            MessageRole::Assistant => {
                let place = (envelope.epoch, envelope.request);
                let seq = envelope.seq.unwrap_or_default();
                let before = out.len();
                self.reply.saved(place, seq, message, out);
                for event in out.iter().skip(before) {
                    if let TurnEvent::ToolCalled { call_id, .. } = event {
                        self.calls.insert(call_id.clone(), CallPhase::Called);
                    }
                }
            }
            MessageRole::Custom if message.custom == Some(Custom::Summary) => {
                self.summary = text_of(&message.content);
            }
            MessageRole::User | MessageRole::Custom | MessageRole::ToolResult => {}
        }
    }

    /// Takes the start of a call. A node that continues the turn may start a call again.
    fn tool_start(&mut self, call_id: &CallId) -> Option<TurnEvent> {
        self.calls
            .get_mut(call_id)
            .filter(|phase| **phase == CallPhase::Called)
            .map(|phase| *phase = CallPhase::Started)?;
        Some(TurnEvent::ToolStarted {
            call_id: call_id.clone(),
        })
    }

    fn progress(&self, progress: &ToolProgress) -> Option<TurnEvent> {
        let phase = self.calls.get(&progress.call_id)?;
        (*phase != CallPhase::Ended).then(|| TurnEvent::ToolProgress {
            call_id: progress.call_id.clone(),
            message: progress.message.clone(),
            percent: progress.percent,
        })
    }

    fn tool_end(&mut self, end: &ToolEnd, out: &mut Vec<TurnEvent>) {
        let phase = self.calls.get_mut(&end.call_id);
        let phase = phase.map(|phase| std::mem::replace(phase, CallPhase::Ended));
        if let Some(CallPhase::Called | CallPhase::Started) = phase {
            out.push(TurnEvent::ToolEnded {
                call_id: end.call_id.clone(),
                result: end.result.clone(),
                is_error: end.error,
            });
            self.reply.call_ended(out);
        }
    }
}

/// Returns whether only the running turn of an agent has events of this kind.
fn is_of_step(event: &Event) -> bool {
    matches!(
        event,
        Event::TextDelta(_)
            | Event::ThinkingDelta(_)
            | Event::Message(_)
            | Event::Retry(_)
            | Event::Compacted(_)
            | Event::ToolStart(_)
            | Event::ToolProgress(_)
            | Event::ToolEnd(_)
    )
}

// The replies of a turn: passes on the pieces that stream in, and compares them with the saved
// message. The pieces that were passed on and not voided always equal the saved messages.

/// The epoch and number of a request. Later requests compare greater.
pub(super) type ReplyPlace = (i64, u32);

/// The maximum size of an unsaved reply in bytes. Anyone who may publish can send deltas, so
/// further pieces are left to the saved message.
const ROOM: usize = 8 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceKind {
    Text,
    Reasoning,
}

#[derive(Debug, Default)]
pub(super) struct ReplyReader {
    /// Whether a step was started and not ended.
    is_started: bool,
    /// The reply whose pieces were passed on.
    open: Option<ReplyDraft>,
    /// The pieces of a later request, which arrived before the log told the end of earlier ones.
    ahead: Option<ReplyDraft>,
    /// Requests up to this one are over. Late pieces of them are dropped.
    over: ReplyPlace,
    /// The number of the last request whose end is known.
    settled: u32,
    /// The number of calls that have not ended. The next request begins when all have.
    open_calls: usize,
    /// The turn of the pieces.
    turn: u32,
    /// Whether everything that was in the log at the start was read.
    is_caught_up: bool,
}

/// A reply that is not saved yet.
#[derive(Debug)]
struct ReplyDraft {
    place: ReplyPlace,
    parts: Vec<DraftPart>,
    /// The size of all parts in bytes.
    size: usize,
    /// Whether a piece is missing, so that the rest is left to the saved message.
    is_broken: bool,
}

#[derive(Debug)]
struct DraftPart {
    /// The number of the part in the deltas.
    source: usize,
    kind: PieceKind,
    text: String,
    /// The number of Unicode scalar values in `text`.
    chars: usize,
}

impl ReplyReader {
    /// Takes a piece of a running reply.
    pub(super) fn delta(
        &mut self,
        place: ReplyPlace,
        kind: PieceKind,
        delta: &Delta,
        out: &mut Vec<TurnEvent>,
    ) {
        if let Some(open) = self.open.as_mut().filter(|open| !open.parts.is_empty()) {
            if place == open.place {
                out.extend(open.add(kind, delta));
                return;
            }
            // The log says how the open request ended. A new lease may have no such event.
            if place < open.place || place.0 == open.place.0 {
                return self.hold(place, kind, delta);
            }
            // Another node makes the request again.
            self.reset(out);
        }
        self.hold(place, kind, delta);
        self.release(out);
    }

    /// Takes a piece of a reply that may not be passed on yet.
    pub(super) fn hold(&mut self, place: ReplyPlace, kind: PieceKind, delta: &Delta) {
        let is_late = self.ahead.as_ref().is_some_and(|ahead| ahead.place > place);
        if place > self.over && !is_late {
            let _ = draft_of(&mut self.ahead, place).add(kind, delta);
        }
    }

    /// Takes a piece of a reply whose turn the log has not told yet.
    pub(super) fn early(&mut self, turn: u32, place: ReplyPlace, kind: PieceKind, delta: &Delta) {
        self.only(turn);
        self.hold(place, kind, delta);
    }

    /// Takes that the turn has begun.
    pub(super) fn begin(&mut self, turn: u32, out: &mut Vec<TurnEvent>) {
        self.only(turn);
        self.release(out);
    }

    /// Returns the turn of the pieces.
    pub(super) fn turn(&self) -> u32 {
        self.turn
    }

    /// Forgets the turn, which has ended, so that the replies of the next one can be taken.
    pub(super) fn forget(&mut self) {
        *self = Self {
            turn: self.turn,
            is_caught_up: self.is_caught_up,
            ..Self::default()
        };
    }

    /// Drops the pieces of other turns.
    fn only(&mut self, turn: u32) {
        if std::mem::replace(&mut self.turn, turn) != turn {
            self.ahead = None;
        }
    }

    /// Takes the end of a call.
    pub(super) fn call_ended(&mut self, out: &mut Vec<TurnEvent>) {
        self.open_calls = self.open_calls.saturating_sub(1);
        self.release(out);
    }

    /// Takes that everything in the log was read. What is still missing will not come.
    pub(super) fn caught_up(&mut self) {
        self.is_caught_up = true;
    }

    /// Takes a saved reply: passes on what is missing. If the pieces that were passed on are no
    /// beginning of it, voids them and passes on all of it.
    pub(super) fn saved(
        &mut self,
        place: ReplyPlace,
        seq: Seq,
        message: &Message,
        out: &mut Vec<TurnEvent>,
    ) {
        self.over = self.over.max(place);
        self.settled = self.settled.max(place.1);
        let saved: Vec<_> = message.content.iter().filter_map(speech).collect();
        let open = self.open.take().filter(|open| !open.parts.is_empty());
        let (same, later) = match open {
            Some(open) if open.place == place => (Some(open), None),
            Some(open) if open.place > place => (None, Some(open)),
            // This request was made in place of the open one.
            Some(_) => {
                out.push(TurnEvent::StepReset);
                (None, None)
            }
            None => (None, None),
        };
        if later.is_some() {
            out.push(TurnEvent::StepReset);
        }
        self.start(out);
        let sent = same.as_ref().map_or(&[][..], |open| &open.parts);
        match rest(sent, &saved) {
            Some(rest) => out.extend(rest),
            None => {
                out.push(TurnEvent::StepReset);
                out.extend(rest_of_nothing(&saved));
            }
        }
        let before = out.len();
        out.extend(message.content.iter().filter_map(called));
        self.open_calls += out.len() - before;
        out.push(TurnEvent::StepEnded { seq });
        self.is_started = false;
        match later {
            Some(later) => self.reopen(later, out),
            None => self.release(out),
        }
    }

    /// Takes from the log that the request at `place`, or an earlier one, ended without a reply.
    pub(super) fn failed(&mut self, place: ReplyPlace, out: &mut Vec<TurnEvent>) {
        self.settled = self.settled.max(place.1);
        self.lost(place, out);
    }

    /// Takes from the log that no request up to `place` will have a reply.
    pub(super) fn lost(&mut self, place: ReplyPlace, out: &mut Vec<TurnEvent>) {
        self.over = self.over.max(place);
        if self.open.as_ref().is_some_and(|open| open.place <= place) {
            self.reset(out);
        }
        self.release(out);
    }

    /// Voids the pieces that were never saved, because the turn ends.
    pub(super) fn end(&mut self, out: &mut Vec<TurnEvent>) {
        self.ahead = None;
        self.reset(out);
    }

    fn reset(&mut self, out: &mut Vec<TurnEvent>) {
        if let Some(open) = self.open.take().filter(|open| !open.parts.is_empty()) {
            self.settled = self.settled.max(open.place.1);
            out.push(TurnEvent::StepReset);
        }
    }

    fn start(&mut self, out: &mut Vec<TurnEvent>) {
        if !std::mem::replace(&mut self.is_started, true) {
            out.push(TurnEvent::StepStarted);
        }
    }

    /// Passes on the pieces that have waited, if no reply before them is missing.
    pub(super) fn release(&mut self, out: &mut Vec<TurnEvent>) {
        let (over, next) = (self.over, self.settled.saturating_add(1));
        let is_due = |ahead: &ReplyDraft| self.is_caught_up || ahead.place.1 <= next;
        let is_free =
            self.open_calls == 0 && self.open.as_ref().is_none_or(|open| open.parts.is_empty());
        self.ahead = self.ahead.take().filter(|ahead| ahead.place > over);
        if !is_free || !self.ahead.as_ref().is_some_and(is_due) {
            return;
        }
        if let Some(ahead) = self.ahead.take() {
            self.reopen(ahead, out);
        }
    }

    fn reopen(&mut self, draft: ReplyDraft, out: &mut Vec<TurnEvent>) {
        if !draft.parts.is_empty() {
            self.start(out);
        }
        let pieces = draft.parts.iter().enumerate();
        out.extend(pieces.map(|(at, part)| piece(part.kind, at, &part.text)));
        self.open = Some(draft);
    }
}

/// Returns the draft of a request, which replaces the draft of an earlier one.
fn draft_of(slot: &mut Option<ReplyDraft>, place: ReplyPlace) -> &mut ReplyDraft {
    if slot.as_ref().is_some_and(|draft| draft.place != place) {
        *slot = None;
    }
    slot.get_or_insert_with(|| ReplyDraft {
        place,
        parts: Vec::new(),
        size: 0,
        is_broken: false,
    })
}

impl ReplyDraft {
    /// Adds a piece, and returns its text that is new. A piece that leaves a gap, or belongs to a
    /// part that is followed by another one, cannot be passed on in order.
    fn add(&mut self, kind: PieceKind, delta: &Delta) -> Option<TurnEvent> {
        if self.is_broken {
            return None;
        }
        let known = |part: &DraftPart| part.source == delta.part && part.kind == kind;
        let place = self.parts.iter().position(known);
        let (chars, is_last) = match place.and_then(|at| Some((at, self.parts.get(at)?))) {
            Some((at, part)) => (part.chars, at + 1 == self.parts.len()),
            None => (0, true),
        };
        let fresh: String = match chars.checked_sub(delta.offset) {
            Some(overlap) => delta.text.chars().skip(overlap).collect(),
            None => {
                self.is_broken = true;
                return None;
            }
        };
        if fresh.is_empty() {
            return None;
        }
        self.is_broken = !is_last || self.size + fresh.len() > ROOM;
        if self.is_broken {
            return None;
        }
        if place.is_none() {
            self.parts.push(DraftPart {
                source: delta.part,
                kind,
                text: String::new(),
                chars: 0,
            });
        }
        let at = self.parts.len().saturating_sub(1);
        let part = self.parts.last_mut()?;
        part.text.push_str(&fresh);
        part.chars += fresh.chars().count();
        self.size += fresh.len();
        Some(piece(kind, at, &fresh))
    }
}

fn piece(kind: PieceKind, part: usize, text: &str) -> TurnEvent {
    let text = text.to_owned();
    match kind {
        PieceKind::Text => TurnEvent::Text { part, text },
        PieceKind::Reasoning => TurnEvent::Reasoning { part, text },
    }
}

/// Returns the text of a part that is spoken or thought.
fn speech(part: &Part) -> Option<(PieceKind, &str)> {
    let (kind, text) = match part {
        Part::Text { text, .. } => (PieceKind::Text, text),
        Part::Thinking { text, .. } => (PieceKind::Reasoning, text),
        Part::ToolCall { .. }
        | Part::ToolResult { .. }
        | Part::Image { .. }
        | Part::File { .. } => return None,
    };
    (!text.is_empty()).then_some((kind, text.as_str()))
}

fn called(part: &Part) -> Option<TurnEvent> {
    match part {
        Part::ToolCall {
            call_id,
            name,
            args,
            invalid,
            ..
        } => Some(TurnEvent::ToolCalled {
            call_id: call_id.clone(),
            name: name.clone(),
            args: args.clone(),
            invalid: invalid.clone(),
        }),
        Part::Text { .. }
        | Part::Thinking { .. }
        | Part::ToolResult { .. }
        | Part::Image { .. }
        | Part::File { .. } => None,
    }
}

/// Returns the pieces that complete `sent` to the saved parts, or `None` if `sent` is no beginning
/// of them.
fn rest(sent: &[DraftPart], saved: &[(PieceKind, &str)]) -> Option<Vec<TurnEvent>> {
    let (rest, saved_before) = match sent.split_last() {
        None => (Vec::new(), &[][..]),
        Some((last, before)) => {
            let (kind, text) = saved.get(before.len())?;
            let missing = text.strip_prefix(last.text.as_str());
            let missing = missing.filter(|_| *kind == last.kind)?;
            let rest = (!missing.is_empty()).then(|| piece(*kind, before.len(), missing));
            (rest.into_iter().collect(), before)
        }
    };
    let is_same = saved_before
        .iter()
        .zip(saved)
        .all(|(sent, (kind, text))| sent.kind == *kind && sent.text == *text);
    let further = saved.iter().enumerate().skip(sent.len());
    let further = further.map(|(at, (kind, text))| piece(*kind, at, text));
    is_same.then(|| rest.into_iter().chain(further).collect())
}

fn rest_of_nothing(saved: &[(PieceKind, &str)]) -> Vec<TurnEvent> {
    rest(&[], saved).unwrap_or_default()
}
