//! The reading of all turns of an agent that belong to the work of a prompt.

use planck_common::{
    InputId,
    command::{Outcome, WorkOutcome},
    envelope::Envelope,
    event::Event,
    usage::Usage,
};

use super::{REWOUND, STOPPED, TurnPhase, TurnReader};
use crate::turn::{TurnEvent, Until, trace::Trace, workers::tells_of_worker};

/// The reading of all turns that belong to the work of a prompt.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) trace: Trace,
    pub(super) prompt: Option<InputId>,
    /// The number of the latest turn.
    pub(super) turn: u32,
    /// The end of the latest turn, which is that of the work if no turn follows.
    pub(super) end: Option<TurnEvent>,
    /// The sum over the turns.
    pub(super) usage: Usage,
}

impl TurnReader {
    /// Chooses until when the reader reads.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.work = match until {
            Until::Turn => None,
            Until::Work => Some(Work {
                prompt: self.choice.input().cloned(),
                ..Work::default()
            }),
        };
        self
    }

    /// Returns the prompt whose outcome says whether another turn follows, after a turn that may not
    /// be the last one.
    pub fn awaited(&self) -> Option<&InputId> {
        match self.phase {
            TurnPhase::Between { .. } => self.work.as_ref()?.prompt.as_ref(),
            TurnPhase::Before | TurnPhase::Running { .. } | TurnPhase::Over => None,
        }
    }

    /// Returns whether the reader has read all of the work that is over with this outcome.
    pub fn has_all(&self, outcome: &Outcome) -> bool {
        let Some(work) = self.work.as_ref().filter(|_| self.awaited().is_some()) else {
            return false;
        };
        let latest = outcome.turns.last().copied().unwrap_or_default();
        self.last >= outcome.head || (work.turn >= latest && !work.trace.is_running())
    }

    /// Takes that the work is over, after [`Self::awaited`]. Without an outcome, the latest turn is
    /// the last one.
    pub fn over(&mut self, outcome: Option<&Outcome>) -> Vec<TurnEvent> {
        let mut out = Vec::new();
        let TurnPhase::Between { .. } = self.phase else {
            return out;
        };
        match outcome.and_then(|outcome| outcome.outcome) {
            Some(WorkOutcome::Rewound) => self.fail(REWOUND, "the session was rewound", &mut out),
            Some(WorkOutcome::Stopped) => {
                let reason = "the session was closed before the work was over";
                self.fail(STOPPED, reason, &mut out);
            }
            Some(
                WorkOutcome::Completed
                | WorkOutcome::Aborted
                | WorkOutcome::Truncated
                | WorkOutcome::Refused
                | WorkOutcome::Limit
                | WorkOutcome::Error
                | WorkOutcome::Busy
                | WorkOutcome::Other,
            )
            | None => {
                self.phase = TurnPhase::Over;
                out.extend(self.work.as_mut().and_then(|work| work.end.take()));
            }
        }
        out
    }

    /// Takes an event after a turn of the work that may not be the last one.
    pub(super) fn between(&mut self, envelope: &Envelope, event: Event, out: &mut Vec<TurnEvent>) {
        if let Event::Rewound(_) = event {
            return self.fail(REWOUND, "the session was rewound", out);
        }
        let (agent, turn) = (&envelope.agent_id, envelope.turn);
        let Some(work) = &self.work else { return };
        let (is_of_work, latest) = (work.trace.has(agent, turn), work.turn);
        if tells_of_worker(&event) || *agent != self.agent {
            let update = self.workers.take(agent, &event);
            // An agent may work on another prompt at the same time. The answer to that one shows it.
            let is_end = matches!(event, Event::AgentStopped(_) | Event::SessionClosed(_));
            let is_shown = is_of_work && !is_end && !tells_of_worker(&event);
            out.extend(update.filter(|_| is_shown));
            return;
        }
        if self.steps.early(envelope, &event) {
            return;
        }
        if let Event::AgentStopped(stopped) | Event::SessionClosed(stopped) = &event {
            let reason = format!(
                "the agent stopped before the work was over: {}",
                stopped.reason
            );
            self.fail(STOPPED, &reason, out);
        } else if is_of_work && turn != latest {
            self.begin(turn, envelope, out);
        }
    }

    /// Ends the turn. If the work may go on, its end is not known yet. Without calls, and without
    /// other agents, nothing can follow.
    pub(super) fn end(&mut self, end: TurnEvent, out: &mut Vec<TurnEvent>) {
        self.steps.end(out);
        let is_alone = !self.workers.has_others(&self.agent);
        let may_go_on = |work: &&mut Work| work.prompt.is_some() && work.trace.has_sent();
        let work = self.work.as_mut().filter(|_| !is_alone);
        match (work.filter(may_go_on), self.phase) {
            (Some(work), TurnPhase::Running { first, .. }) => {
                work.end = Some(end);
                self.steps.forget();
                self.phase = TurnPhase::Between { first };
            }
            _ => {
                self.phase = TurnPhase::Over;
                out.push(end);
            }
        }
    }
}
