//! Tool calls: which calls of an answer run, which are refused, and how the turn continues after
//! their results.

use std::time::Duration;

use planck_common::{
    command::AgentState,
    event::{Event, ToolEffect, ToolProgress, ToolStart},
    message::Part,
};
use serde_json::value::RawValue;

use super::{
    Agent, Effect, StepEffects, Ticket,
    answer::AnswerFault,
    effect::ToolRun,
    guard::{LoopGuard, LoopVerdict},
    phase::{Phase, Turn, TurnActivity},
    round::{CallNames, Round},
    saves::Rows,
    setup::LoopLimits,
    turn::TurnEnding,
    waiting::{Admission, withdraw_waits},
};
use crate::outcome::{ABORTED, ToolOutcome};

/// A call in the model's answer.
pub(super) struct RequestedCall<'a> {
    pub call: CallNames,
    pub args: &'a RawValue,
    /// The text that the model sent as arguments, if that text is not a JSON object.
    pub invalid: Option<&'a str>,
}

impl Agent {
    /// Saves an answer with calls, and runs those that may run.
    pub(super) fn call_tools(
        &mut self,
        mut turn: Box<Turn>,
        content: &[Part],
        fault: Option<AnswerFault>,
        mut rows: Rows,
        step: &mut StepEffects,
    ) {
        let mut round = Round::new(fault);
        let mut runs = Vec::new();
        let mut refusals = Vec::new();
        for wanted in content.iter().filter_map(RequestedCall::read) {
            let verdict = wanted.judge(&mut turn.guard, self.settings.loop_guard);
            let remark = match wanted.overrule(verdict, fault) {
                LoopVerdict::Refuse(text) => {
                    refusals.push(wanted.call.end(text.clone(), true, 0));
                    round.settle(wanted.call, text, true);
                    continue;
                }
                LoopVerdict::Run => None,
                LoopVerdict::Remark(remark) => Some(remark),
            };
            match self.admit(&mut round, wanted, remark, &mut rows, step) {
                Admission::Runs(run) => runs.push(run),
                Admission::Refused(end) => refusals.push(end),
                Admission::Waits => {}
            }
        }
        refusals
            .into_iter()
            .for_each(|end| rows.event(&Event::ToolEnd(end)));
        self.run(turn, round, runs, rows, step);
    }

    /// Begins a call. Adds its `tool_start` to the rows, and returns the run to start when the rows
    /// are saved.
    pub(super) fn start(
        &mut self,
        round: &mut Round,
        wanted: RequestedCall<'_>,
        effect: ToolEffect,
        remark: Option<String>,
        rows: &mut Rows,
        step: &StepEffects,
    ) -> ToolRun {
        let CallNames { id, call_id, name } = wanted.call.clone();
        rows.event(&Event::ToolStart(ToolStart {
            call_id,
            id,
            name,
            args: wanted.args.to_owned(),
            effect,
        }));
        self.begin(round, wanted, remark, false, step)
    }

    /// Begins a call whose `tool_start` is already in the log, and returns the run to start.
    pub(super) fn run_again(
        &mut self,
        round: &mut Round,
        wanted: RequestedCall<'_>,
        remark: Option<String>,
        step: &StepEffects,
    ) -> ToolRun {
        self.begin(round, wanted, remark, true, step)
    }

    fn begin(
        &mut self,
        round: &mut Round,
        wanted: RequestedCall<'_>,
        remark: Option<String>,
        is_repeat: bool,
        step: &StepEffects,
    ) -> ToolRun {
        let RequestedCall { call, args, .. } = wanted;
        let ticket = self.counters.ticket();
        let run = ToolRun {
            ticket,
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            args: args.to_owned(),
            is_repeat,
        };
        round.start(call, ticket, step.now, args.to_owned(), remark);
        run
    }

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
            return self.end_turn(&turn, rows, fault.ending(), step);
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
            return self.hold((turn, round), ticket, outcome, elapsed, step);
        }
        let mut rows = Rows::at(self.place(step.now));
        let Phase::Working(turn, activity) = &mut self.phase else {
            return;
        };
        let text = outcome.text_for_model(activity.why_stopped()).into_owned();
        let Some(end) = activity
            .round_mut()
            .and_then(|round| round.finish(ticket, text, outcome.is_error(), elapsed))
        else {
            return;
        };
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

impl<'a> RequestedCall<'a> {
    /// Counts the call in the loop guard, and returns the guard's verdict.
    pub(super) fn judge(&self, guard: &mut LoopGuard, limits: LoopLimits) -> LoopVerdict {
        guard.judge(
            &self.call.name,
            self.invalid.unwrap_or(self.args.get()),
            limits,
        )
    }

    /// Returns a refusal if the calls of the answer are not run or the call's arguments are not a
    /// JSON object, otherwise the loop guard's verdict.
    fn overrule(&self, verdict: LoopVerdict, fault: Option<AnswerFault>) -> LoopVerdict {
        match (fault, self.invalid) {
            (Some(fault), _) => LoopVerdict::Refuse(fault.result().into()),
            (None, Some(text)) => LoopVerdict::Refuse(wrong_args(text)),
            (None, None) => verdict,
        }
    }

    pub(super) fn read(part: &'a Part) -> Option<Self> {
        match part {
            Part::ToolCall {
                id,
                call_id,
                name,
                args,
                invalid,
                ..
            } => {
                let call = CallNames {
                    id: id.clone(),
                    call_id: call_id.clone(),
                    name: name.clone(),
                };
                Some(Self {
                    call,
                    args,
                    invalid: invalid.as_deref(),
                })
            }
            Part::Text { .. }
            | Part::Thinking { .. }
            | Part::ToolResult { .. }
            | Part::Image { .. }
            | Part::File { .. } => None,
        }
    }
}

fn wrong_args(text: &str) -> String {
    let fault = match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => "they are JSON, but not an object".to_owned(),
        Err(error) => error.to_string(),
    };
    format!("not run: the arguments are not a JSON object: {fault}")
}
