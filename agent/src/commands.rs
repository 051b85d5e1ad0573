//! Commands to the agent itself: abort, stop, nudge, checkpoint, and changes of its tools or model.

use planck_common::{
    command::AgentState,
    event::{Event, ModelChanged, Reason, ToolsChanged},
};

use super::{
    Agent, Command, Effect, InputOutcome, Moment, NewInput,
    phase::{Activity, Phase, Stopping, Turn},
    saves::{Rows, Then, waiting_for},
    turn::Ending,
};
use crate::outcome::ABORTED;

impl Agent {
    pub(super) fn command(&mut self, command: Command, moment: &mut Moment) {
        match command {
            Command::Abort { reason } => {
                let why = match reason {
                    Some(reason) => format!("{ABORTED}: {reason}"),
                    None => ABORTED.into(),
                };
                self.interrupt(&why, Ending::Aborted, moment);
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
                moment,
            ),
            Command::Nudge if matches!(self.phase, Phase::Idle) => self.nudge(moment),
            Command::Nudge => {}
            Command::Checkpoint { summary } if matches!(self.phase, Phase::Idle) => {
                self.checkpoint(&summary, moment)
            }
            Command::Checkpoint { summary } => self.plans.checkpoint = Some(summary),
            Command::Tools {
                added,
                removed,
                tools,
                named,
            } => {
                self.charter.set_tools(tools);
                self.charter.spec.tools = named;
                let tools = self.charter.tools.iter();
                let changed = ToolsChanged {
                    added,
                    removed,
                    tools: tools.map(|tool| tool.name.clone()).collect(),
                };
                self.changed(Event::ToolsChanged(changed), moment);
            }
            Command::Model {
                model,
                card,
                warning,
            } => {
                self.charter.spec.model = model.clone();
                self.charter.card = card;
                self.changed(Event::ModelChanged(ModelChanged { model }), moment);
                warning
                    .into_iter()
                    .for_each(|warning| self.record(Event::Warning(warning), moment));
            }
            Command::Record(event) => self.record(event, moment),
        }
    }

    fn changed(&mut self, event: Event, moment: &mut Moment) {
        self.transcript.change_fixed(self.charter.tokens());
        self.record(event, moment);
    }

    /// Saves a durable event, or publishes a live one.
    fn record(&mut self, event: Event, moment: &mut Moment) {
        let mut rows = Rows::at(self.place(moment.now));
        rows.event(&event);
        if !event.kind().is_durable() {
            moment.tell(self.place(moment.now), event);
        } else if !rows.is_empty() {
            self.save(rows, self.phase.state(), moment);
        }
    }

    /// Ends the running turn, and keeps what the model has answered so far. If tools are running,
    /// they are cancelled, and the turn ends when they have returned.
    pub(super) fn interrupt(&mut self, why: &str, ending: Ending, moment: &mut Moment) {
        let Some((mut turn, activity)) = self.phase.take_if(|activity| !activity.is_winding_down())
        else {
            return;
        };
        if let Activity::UsingTools(round) = activity {
            return self.wind_down(turn, round, why, ending, moment);
        }
        let mut rows = Rows::at(self.place(moment.now));
        cancel(activity, &mut turn, &mut rows, moment);
        self.end_turn(&turn, rows, ending, moment);
    }

    fn stop(&mut self, stopping: Stopping, moment: &mut Moment) {
        let ending = if stopping.for_good {
            Ending::Aborted
        } else {
            Ending::Closed
        };
        self.interrupt(
            &format!("the agent was stopped: {}", stopping.reason),
            ending,
            moment,
        );
        match &self.phase {
            Phase::Working(..) => self.plans.stop = Some(stopping),
            Phase::Idle | Phase::Stopping(_) | Phase::Stopped => self.stop_now(stopping, moment),
        }
    }

    pub(super) fn stop_now(&mut self, stopping: Stopping, moment: &mut Moment) {
        self.phase = Phase::Stopping(stopping);
        self.end(moment);
    }

    /// Saves the end of the agent, and gives unread inputs their outcome.
    pub(super) fn end(&mut self, moment: &mut Moment) {
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
        let mut rows = Rows::at(self.place(moment.now));
        rows.event(&Event::AgentStopped(Reason {
            reason: reason.clone(),
        }));
        last.iter().for_each(|event| rows.event(event));
        let inputs = self.inbox.drain();
        inputs
            .iter()
            .for_each(|input| rows.end(&input.id, InputOutcome::Stopped, None));
        self.save_then(rows, state, Then::Stop(inputs), moment);
    }

    pub(super) fn stopped(&mut self, inputs: &[NewInput], moment: &mut Moment) {
        self.phase = Phase::Stopped;
        moment.settled(waiting_for(inputs));
        moment.act(Effect::Stopped);
    }
}

/// Cancels the model call, compaction or wait of a turn, and keeps what has been received of an
/// answer. [`Agent::interrupt`] handles running tools before it calls this.
fn cancel(activity: Activity, turn: &mut Turn, rows: &mut Rows, moment: &mut Moment) {
    match activity {
        Activity::Saving | Activity::UsingTools(_) | Activity::WindingDown { .. } => {}
        Activity::Retrying { ticket } => moment.act(Effect::CancelWait { ticket }),
        Activity::Streaming { ticket, draft } => {
            moment.act(Effect::CancelModel { ticket });
            if let Some(partial) = draft.partial() {
                let partial = rows.message(partial);
                turn.heard(&partial.content);
            }
        }
        Activity::Compacting { ticket } => moment.act(Effect::CancelCompact { ticket }),
    }
}
