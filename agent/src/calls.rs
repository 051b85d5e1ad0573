//! Tool calls: which calls of an answer run, which are refused, and what their results lead to.

use std::time::Duration;

use planck_common::{
    command::AgentState,
    event::{Effect as ToolEffect, Event, ToolProgress, ToolStart},
    message::Part,
};
use serde_json::value::RawValue;

use super::{
    Agent, Effect, Moment, Ticket,
    effect::ToolRun,
    guard::{LoopGuard, Verdict},
    phase::{Activity, Phase, Turn},
    round::{Call, Round},
    saves::Rows,
    setup::LoopLimits,
    turn::Ending,
};
use crate::outcome::{ABORTED, Outcome};

/// A call in the model's answer.
pub(super) struct Wanted<'a> {
    pub call: Call,
    pub args: &'a RawValue,
    /// The text that the model sent instead of arguments, if it is not a JSON object.
    pub invalid: Option<&'a str>,
}

impl Agent {
    /// Saves an answer with calls, and runs those that may run.
    pub(super) fn call_tools(
        &mut self,
        mut turn: Box<Turn>,
        content: &[Part],
        is_cut: bool,
        mut rows: Rows,
        moment: &mut Moment,
    ) {
        let mut round = Round::new(is_cut);
        let mut runs = Vec::new();
        let mut refusals = Vec::new();
        for wanted in content.iter().filter_map(Wanted::read) {
            let verdict = wanted.judge(&mut turn.guard, self.settings.loop_guard);
            match wanted.overrule(verdict, is_cut) {
                Verdict::Refuse(text) => {
                    refusals.push(wanted.call.end(text.clone(), true, 0));
                    round.settle(wanted.call, text, true);
                }
                Verdict::Run => runs.push(self.start(&mut round, wanted, None, &mut rows, moment)),
                Verdict::Remark(remark) => {
                    runs.push(self.start(&mut round, wanted, Some(remark), &mut rows, moment))
                }
            }
        }
        refusals
            .into_iter()
            .for_each(|end| rows.event(&Event::ToolEnd(end)));
        self.run(turn, round, runs, rows, moment);
    }

    /// Begins a call: adds its `tool_start` to the rows. The call runs when they are saved.
    pub(super) fn start(
        &mut self,
        round: &mut Round,
        wanted: Wanted<'_>,
        remark: Option<String>,
        rows: &mut Rows,
        moment: &Moment,
    ) -> ToolRun {
        let Wanted { call, args, .. } = wanted;
        let Call { id, call_id, name } = call.clone();
        let effect = self
            .charter
            .tool(&name)
            .map_or(ToolEffect::Mutating, |tool| tool.effect);
        rows.event(&Event::ToolStart(ToolStart {
            call_id,
            id,
            name,
            args: args.to_owned(),
            effect,
        }));
        self.run_again(round, call, args, remark, moment)
    }

    /// Begins a call whose `tool_start` is already in the log.
    pub(super) fn run_again(
        &mut self,
        round: &mut Round,
        call: Call,
        args: &RawValue,
        remark: Option<String>,
        moment: &Moment,
    ) -> ToolRun {
        let ticket = self.counters.ticket();
        let run = ToolRun {
            ticket,
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            args: args.to_owned(),
        };
        round.start(call, ticket, moment.now, remark);
        run
    }

    /// Runs calls once their rows are saved. A round in which nothing runs ends at once.
    pub(super) fn run(
        &mut self,
        turn: Box<Turn>,
        round: Round,
        runs: Vec<ToolRun>,
        rows: Rows,
        moment: &mut Moment,
    ) {
        if !round.is_running() {
            return self.close_round(turn, round, rows, moment);
        }
        self.phase = Phase::Working(turn, Activity::UsingTools(round));
        self.save(rows, AgentState::ExecutingTools, moment);
        runs.into_iter()
            .for_each(|run| moment.act(Effect::RunTool(run)));
    }

    fn close_round(&mut self, turn: Box<Turn>, round: Round, mut rows: Rows, moment: &mut Moment) {
        let is_cut = round.cut;
        rows.message(round.results());
        if is_cut {
            return self.end_turn(&turn, rows, Ending::Truncated, moment);
        }
        self.go_on(turn, rows, moment);
    }

    pub(super) fn tool_progress(
        &mut self,
        ticket: Ticket,
        message: String,
        percent: Option<f64>,
        moment: &mut Moment,
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
        moment.tell(self.place(moment.now), Event::ToolProgress(progress));
    }

    pub(super) fn tool_done(
        &mut self,
        ticket: Ticket,
        outcome: Outcome,
        elapsed: Duration,
        moment: &mut Moment,
    ) {
        let mut rows = Rows::at(self.place(moment.now));
        let Phase::Working(turn, activity) = &mut self.phase else {
            return;
        };
        let text = outcome.told(activity.why_stopped()).into_owned();
        let Some(end) = activity
            .round_mut()
            .and_then(|round| round.finish(ticket, text, outcome.is_error(), elapsed))
        else {
            return;
        };
        turn.responded.extend(outcome.responded);
        rows.event(&Event::ToolEnd(end));
        outcome.events.iter().for_each(|event| rows.event(event));
        match self.phase.take_if(Activity::is_answered) {
            Some((turn, Activity::UsingTools(round))) => {
                self.close_round(turn, round, rows, moment)
            }
            Some((turn, Activity::WindingDown { round, ending, .. })) => {
                rows.message(round.results());
                self.end_turn(&turn, rows, ending, moment);
            }
            Some(_) | None => self.save_beside(rows, AgentState::ExecutingTools, moment),
        }
    }

    /// Cancels the running calls of a round. The turn ends when each of them has returned the
    /// output it has so far.
    pub(super) fn wind_down(
        &mut self,
        turn: Box<Turn>,
        round: Round,
        why: &str,
        ending: Ending,
        moment: &mut Moment,
    ) {
        round
            .running()
            .for_each(|ticket| moment.act(Effect::CancelTool { ticket }));
        self.phase = Phase::Working(
            turn,
            Activity::WindingDown {
                round,
                why: why.into(),
                ending,
            },
        );
    }
}

impl Activity {
    /// The reason given for cancelling calls of the round.
    fn why_stopped(&self) -> &str {
        match self {
            Self::WindingDown { why, .. } => why,
            Self::Saving
            | Self::Streaming { .. }
            | Self::Retrying { .. }
            | Self::UsingTools(_)
            | Self::Compacting { .. } => ABORTED,
        }
    }
}

impl<'a> Wanted<'a> {
    /// Asks the loop guard whether this call may run.
    pub(super) fn judge(&self, guard: &mut LoopGuard, limits: LoopLimits) -> Verdict {
        guard.judge(
            &self.call.name,
            self.invalid.unwrap_or(self.args.get()),
            limits,
        )
    }

    /// Refuses a call that is incomplete, whatever the loop guard decided.
    fn overrule(&self, verdict: Verdict, is_cut: bool) -> Verdict {
        match (is_cut, self.invalid) {
            (true, _) => {
                Verdict::Refuse("not run: the call was cut off before it was complete".into())
            }
            (false, Some(text)) => Verdict::Refuse(wrong_args(text)),
            (false, None) => verdict,
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
                let call = Call {
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
    let fault = match serde_json::from_str::<serde_json::Value>(text) {
        Ok(_) => "they are JSON, but not an object".to_owned(),
        Err(error) => error.to_string(),
    };
    format!("not run: the arguments are not a JSON object: {fault}")
}
