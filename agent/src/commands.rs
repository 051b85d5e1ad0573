//! Commands to the agent itself: abort, stop, nudge, checkpoint, and changes of its tools or model.

use planck_common::{
    command::AgentState,
    event::{Event, ModelChanged, Reason, ToolsChanged},
};

use super::{
    Agent, Command, Effect, InputOutcome, NewInput, StepEffects,
    phase::{Phase, Stopping, Turn, TurnActivity, TurnEnding},
    saves::{OnCommit, Rows, waiting_for},
    waiting::withdrawn,
};
use crate::outcome::ABORTED;

impl Agent {
    pub(super) fn command(&mut self, command: Command, step: &mut StepEffects) {
        match command {
            Command::Abort { reason } => {
                let why = match &reason {
                    Some(reason) => format!("{ABORTED}: {reason}"),
                    None => ABORTED.into(),
                };
                self.interrupt(&why, TurnEnding::Aborted { reason }, step);
            }
            Command::Stop {
                reason,
                for_good,
                last,
            } => self.stop(
                Stopping {
                    reason,
                    for_good,
                    last,
                },
                step,
            ),
            Command::Nudge if matches!(self.phase, Phase::Idle) => self.nudge(step),
            Command::Nudge => {}
            Command::Checkpoint { summary } if matches!(self.phase, Phase::Idle) => {
                self.checkpoint(&summary, step)
            }
            Command::Checkpoint { summary } => self.deferred.checkpoint = Some(summary),
            Command::Tools {
                added,
                removed,
                tools,
                arguments,
                named,
            } => {
                self.config.set_tools(tools, arguments);
                self.config.spec.tools = named;
                self.list_tools();
                let changed = ToolsChanged {
                    added,
                    removed,
                    tools: self.config.names().map(Into::into).collect(),
                };
                self.record(Event::ToolsChanged(changed), step);
            }
            Command::Model {
                model,
                card,
                warning,
            } => {
                self.config.spec.model = model.clone();
                self.config.card = card;
                self.transcript.change_fixed(self.config.tokens());
                self.record(Event::ModelChanged(ModelChanged { model }), step);
                warning
                    .into_iter()
                    .for_each(|warning| self.record(Event::Warning(warning), step));
            }
            Command::Record(event) => self.record(event, step),
        }
    }

    /// Saves a durable event, or publishes a live one. Ignores a message.
    fn record(&mut self, event: Event, step: &mut StepEffects) {
        let mut rows = Rows::at(self.place(step.now));
        rows.event(&event);
        if !event.kind().is_durable() {
            step.publish(self.place(step.now), event);
        } else if !rows.is_empty() {
            self.save(rows, self.phase.state(), step);
        }
    }

    /// Ends the running turn, and saves the text that the model has sent so far. If tools are
    /// running, cancels their calls; the turn ends when the calls have returned. Does nothing
    /// without a turn, or if its calls are already cancelled.
    pub(super) fn interrupt(&mut self, why: &str, ending: TurnEnding, step: &mut StepEffects) {
        let Some((mut turn, activity)) = self.phase.take_if(|activity| !activity.is_winding_down())
        else {
            return;
        };
        if let TurnActivity::UsingTools(round) = activity {
            let rows = Rows::at(self.place(step.now));
            return self.wind_down(turn, round, rows, why, ending, step);
        }
        let mut rows = Rows::at(self.place(step.now));
        cancel(activity, &mut turn, &mut rows, step);
        self.end_turn(&turn, rows, ending, step);
    }

    fn stop(&mut self, stopping: Stopping, step: &mut StepEffects) {
        let ending = if stopping.for_good {
            TurnEnding::Aborted { reason: None }
        } else {
            TurnEnding::Closed
        };
        self.interrupt(
            &format!("the agent was stopped: {}", stopping.reason),
            ending,
            step,
        );
        match &self.phase {
            Phase::Working(..) => self.deferred.stop = Some(stopping),
            Phase::Idle | Phase::Stopping(_) | Phase::Stopped => self.stop_now(stopping, step),
        }
    }

    pub(super) fn stop_now(&mut self, stopping: Stopping, step: &mut StepEffects) {
        self.phase = Phase::Stopping(stopping);
        self.end(step);
    }

    /// Saves the end of the agent, and gives unread inputs their outcome.
    pub(super) fn end(&mut self, step: &mut StepEffects) {
        let Phase::Stopping(Stopping {
            reason,
            for_good,
            last,
        }) = &self.phase
        else {
            return;
        };
        let state = if *for_good {
            AgentState::Stopped
        } else {
            AgentState::Idle
        };
        let mut rows = Rows::at(self.place(step.now));
        rows.event(&Event::AgentStopped(Reason {
            reason: reason.clone(),
        }));
        last.iter().for_each(|event| rows.event(event));
        let inputs = self.inbox.drain();
        inputs
            .iter()
            .for_each(|input| rows.end(&input.id, InputOutcome::Stopped, None));
        self.save_then(rows, state, OnCommit::Stop(inputs), step);
    }

    pub(super) fn stopped(&mut self, inputs: &[NewInput], step: &mut StepEffects) {
        self.phase = Phase::Stopped;
        step.settled(waiting_for(inputs));
        step.act(Effect::Stopped);
    }
}

/// Cancels the model call, compaction or wait of a turn, and adds the received text of an answer to
/// the rows and the turn. [`Agent::interrupt`] handles running tools before it calls this function.
fn cancel(activity: TurnActivity, turn: &mut Turn, rows: &mut Rows, step: &mut StepEffects) {
    match activity {
        TurnActivity::Saving | TurnActivity::UsingTools(_) | TurnActivity::WindingDown { .. } => {}
        TurnActivity::Retrying { ticket } => step.act(Effect::CancelTimer { ticket }),
        TurnActivity::Streaming { ticket, draft } => {
            step.act(Effect::CancelModel { ticket });
            if let Some(partial) = draft.partial() {
                let partial = rows.message(partial);
                turn.keep_text(&partial.content);
            }
        }
        TurnActivity::Compacting { ticket } => step.act(Effect::CancelCompact { ticket }),
        TurnActivity::AtLimit(wait) => rows.event(&withdrawn(wait.id, None, "the turn was ended")),
    }
}
