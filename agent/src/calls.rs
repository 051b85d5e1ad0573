//! The calls of a turn while they run: their progress, their results, and how the turn continues
//! after them.

use std::time::Duration;

use planck_common::{
    command::AgentState,
    event::{Event, ToolProgress},
};

use super::{
    Agent, Effect, StepEffects, Ticket,
    effect::ToolRun,
    phase::{Phase, Turn, TurnActivity, TurnEnding},
    round::Round,
    saves::Rows,
    waiting::withdraw_waits,
};
use crate::outcome::{ABORTED, ToolOutcome};

impl Agent {
    /// Saves the rows, and runs the calls after the commit. A round in which every call has its
    /// result ends at once.
    pub(super) fn run(
        &mut self,
        mut turn: Box<Turn>,
        round: Round,
        runs: Vec<ToolRun>,
        rows: Rows,
        step: &mut StepEffects,
    ) {
        self.set_clock(&mut turn, &round, step);
        if !round.is_open() {
            return self.close_round(turn, round, rows, step);
        }
        self.phase = Phase::Working(turn, TurnActivity::UsingTools(round));
        let opens_wait = rows.opens_wait();
        self.save(rows, self.phase.state(), step);
        if opens_wait {
            step.act(Effect::CheckWaits);
        }
        runs.into_iter()
            .for_each(|run| step.act(Effect::RunTool(run)));
    }

    fn close_round(
        &mut self,
        turn: Box<Turn>,
        round: Round,
        mut rows: Rows,
        step: &mut StepEffects,
    ) {
        let fault = round.fault;
        rows.message(round.results());
        if let Some(fault) = fault {
            return self.end_turn(&turn, rows, fault.into(), step);
        }
        self.go_on(turn, rows, step);
    }

    pub(super) fn tool_progress(
        &mut self,
        ticket: Ticket,
        message: String,
        percent: Option<f64>,
        step: &mut StepEffects,
    ) {
        let Phase::Working(_, activity) = &self.phase else {
            return;
        };
        let Some(call) = activity.round().and_then(|round| round.runs(ticket)) else {
            return;
        };
        let progress = ToolProgress {
            call_id: call.call_id.clone(),
            message,
            percent,
        };
        step.publish(self.place(step.now), Event::ToolProgress(progress));
    }

    pub(super) fn tool_done(
        &mut self,
        ticket: Ticket,
        outcome: ToolOutcome,
        elapsed: Duration,
        step: &mut StepEffects,
    ) {
        let waits = |activity: &TurnActivity| matches!(activity, TurnActivity::UsingTools(round) if round.runs(ticket).is_some());
        if !outcome.changes.is_empty()
            && let Some((turn, TurnActivity::UsingTools(round))) = self.phase.take_if(waits)
        {
            return self.ask_about_changes((turn, round), ticket, outcome, elapsed, step);
        }
        let mut rows = Rows::at(self.place(step.now));
        let Phase::Working(turn, activity) = &mut self.phase else {
            return;
        };
        let text = outcome.text_for_model(activity.why_stopped()).into_owned();
        let round = activity.round_mut();
        let Some(call) = round.and_then(|round| round.running_call(ticket)) else {
            return;
        };
        let end = call.finish(text, outcome.is_error(), elapsed);
        turn.responded.extend(outcome.responded);
        rows.event(&Event::ToolEnd(end));
        outcome.events.iter().for_each(|event| rows.event(event));
        match self.phase.take_if(TurnActivity::is_answered) {
            Some((turn, TurnActivity::UsingTools(round))) => {
                self.close_round(turn, round, rows, step)
            }
            Some((turn, TurnActivity::WindingDown { round, ending, .. })) => {
                rows.message(round.results());
                self.end_turn(&turn, rows, ending, step);
            }
            Some(_) | None => self.save_beside(rows, self.phase.state(), step),
        }
    }

    /// Cancels the running calls of a round, withdraws its waits, and saves the rows. The turn ends
    /// when each call has returned its output so far.
    pub(super) fn wind_down(
        &mut self,
        turn: Box<Turn>,
        mut round: Round,
        mut rows: Rows,
        why: &str,
        ending: TurnEnding,
        step: &mut StepEffects,
    ) {
        withdraw_waits(&mut round, why, &mut rows);
        if !round.is_open() {
            rows.message(round.results());
            return self.end_turn(&turn, rows, ending, step);
        }
        round
            .running()
            .for_each(|ticket| step.act(Effect::CancelTool { ticket }));
        self.phase = Phase::Working(
            turn,
            TurnActivity::WindingDown {
                round,
                why: why.into(),
                ending,
            },
        );
        self.save_beside(rows, AgentState::ExecutingTools, step);
    }
}

impl TurnActivity {
    /// Returns the reason that the result of a cancelled call gives to the model.
    fn why_stopped(&self) -> &str {
        match self {
            Self::WindingDown { why, .. } => why,
            Self::Saving
            | Self::Streaming { .. }
            | Self::Retrying { .. }
            | Self::UsingTools(_)
            | Self::Compacting { .. }
            | Self::AtLimit(_) => ABORTED,
        }
    }
}
