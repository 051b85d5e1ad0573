//! The steps of an agent: its requests to a model, the replies, and the tool calls in these.

use std::collections::HashMap;

use planck_common::{
    CallId,
    envelope::Envelope,
    event::{Event, ToolEnd, ToolProgress},
    message::{Message, MessageRole},
};

use super::{
    TurnEvent,
    reply::{PieceKind, ReplyReader},
};

/// Reads the steps of one agent. [`TurnReader`](super::TurnReader) has one for the turns that it
/// reads. A program that shows all that an agent says, in whichever turn, uses one of its own, and
/// gives it the events of a [`Follow`](crate::Follow).
#[derive(Debug, Default)]
pub struct StepReader {
    /// The highest epoch of the agent in the log.
    epoch: i64,
    reply: ReplyReader,
    calls: HashMap<CallId, CallPhase>,
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
    }

    /// Takes a piece of a turn that has not begun. The pieces after it have a meaning only together
    /// with it. Returns `false` if the event is another one.
    pub(super) fn early(&mut self, envelope: &Envelope, event: &Event) -> bool {
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
            Event::Retry(_) | Event::Compacted(_) => self.reply.failed(place, out),
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
