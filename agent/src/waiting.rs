//! Calls that wait: for a person who allows them, for a person who answers the model's question, or
//! for the client that runs the tool itself.

mod change;
mod events;

use planck_common::{
    CallId, Timestamp,
    event::{Event, ToolEffect},
    permission::RuleAction,
    wait::{WaitAnswer, WaitClosed, WaitDecision, WaitKind, WaitOpened},
};
use serde_json::value::RawValue;

use super::{
    Agent, Effect, StepEffects,
    admission::{DENIED, denied},
    digest,
    effect::ToolRun,
    permission,
    phase::{Turn, TurnActivity},
    round::{Call, KeptResult, OpenWait, Round},
    saves::Rows,
};
pub(super) use events::{closed, withdrawn};

/// What an answer makes of a call.
enum Decided {
    /// The call of a tool with this effect runs with these arguments.
    Run(ToolEffect, Box<RawValue>),
    /// The call, which is already in the log as started, runs now.
    RunStarted,
    /// The call ends with this result.
    End { text: String, error: bool },
    /// The permissions deny the arguments that a person wrote.
    Denied { why: String },
}

impl Agent {
    /// Handles the answer to a wait: the call runs, or ends with a result. If the tool has changed
    /// since a person was asked, an approval does not hold, and the wait is opened again.
    pub(super) fn decided(&mut self, id: &CallId, answer: &WaitAnswer, step: &mut StepEffects) {
        if self.decides_limit(id) {
            return self.limit_decided(answer, step);
        }
        let waits = |activity: &TurnActivity| match activity {
            TurnActivity::UsingTools(round) => round.waits().any(|(_, wait)| wait.id == *id),
            TurnActivity::Saving
            | TurnActivity::Streaming { .. }
            | TurnActivity::Retrying { .. }
            | TurnActivity::WindingDown { .. }
            | TurnActivity::Compacting { .. }
            | TurnActivity::AtLimit(_) => false,
        };
        let Some((turn, TurnActivity::UsingTools(mut round))) = self.phase.take_if(waits) else {
            return;
        };
        let mut rows = Rows::at(self.place(step.now));
        let Some((call, wait)) = round.take_wait(id) else {
            return self.run(turn, round, Vec::new(), rows, step);
        };
        let is_kept = wait.kind != WaitKind::Change || answer.decision == WaitDecision::Allow;
        let run = self.settle_wait(call, wait, answer, &mut rows, step);
        if !is_kept {
            let (why, ending) = change::not_kept();
            return self.wind_down(turn, round, rows, why, ending, step);
        }
        self.run(turn, round, run.into_iter().collect(), rows, step);
    }

    /// Decides about a call whose wait has ended. Returns the run to start when the rows are saved,
    /// if the call runs now.
    fn settle_wait(
        &mut self,
        call: &mut Call,
        wait: OpenWait,
        answer: &WaitAnswer,
        rows: &mut Rows,
        step: &StepEffects,
    ) -> Option<ToolRun> {
        if let Some(opened) = self.asked_again(call, &wait, answer, step) {
            call.wait(&opened);
            rows.event(&Event::WaitOpened(opened));
            return None;
        }
        let decided = self.meaning(call, &wait, answer);
        let closed = match &decided {
            Decided::Denied { why } => Event::WaitClosed(WaitClosed {
                id: wait.id.clone(),
                call_id: None,
                decision: WaitDecision::Deny,
                by: answer.by.clone(),
                reason: Some(why.clone()),
                scope: None,
            }),
            Decided::Run(..) | Decided::RunStarted | Decided::End { .. } => {
                closed(wait.id.clone(), Some(&call.names), answer)
            }
        };
        rows.event(&closed);
        let (text, error) = match decided {
            Decided::Run(effect, args) => {
                call.args = args;
                return Some(self.start(call, effect, rows, step));
            }
            Decided::RunStarted => return Some(call.run(self.counters.ticket(), step.now, true)),
            Decided::End { text, error } => (text, error),
            Decided::Denied { why } => (denied(Some(&why)), true),
        };
        let duration_ms = wait.result.as_ref().map_or(0, |kept| kept.duration_ms);
        rows.event(&Event::ToolEnd(call.end(text, error, duration_ms)));
        None
    }

    /// Returns a new opening of the wait if an approval was given for another description of the
    /// tool than the present one.
    fn asked_again(
        &self,
        call: &Call,
        wait: &OpenWait,
        answer: &WaitAnswer,
        step: &StepEffects,
    ) -> Option<WaitOpened> {
        let tool = self.config.tool(&call.names.name)?;
        let is_allowed = wait.kind == WaitKind::Approval && answer.decision == WaitDecision::Allow;
        let now = digest::of_call(&tool.name, &tool.description, call.args.get());
        if !is_allowed || now == wait.digest {
            return None;
        }
        let why = Some("the tool's description has changed since this call was allowed");
        self.opening(wait.kind, tool, &call.names, &call.args, why, step)
            .ok()
    }

    fn meaning(&self, call: &Call, wait: &OpenWait, answer: &WaitAnswer) -> Decided {
        let error = |text: String| Decided::End { text, error: true };
        if wait.kind == WaitKind::Change {
            return change::meaning(call, wait, answer);
        }
        match answer.decision {
            WaitDecision::Allow if wait.kind == WaitKind::Approval => {
                let Some(tool) = self.config.tool(&call.names.name) else {
                    return error(self.no_such_tool(&call.names.name));
                };
                let args = answer.args.as_ref().unwrap_or(&call.args).clone();
                let leaves = |args: &RawValue| permission::leaves_sandbox(tool, args.get());
                if leaves(&args) && !leaves(&call.args) {
                    let why = "a call that was to run in the sandbox does not leave it";
                    return Decided::Denied { why: why.into() };
                }
                let verdict = self.permits(tool, &args);
                if verdict.action == RuleAction::Deny {
                    let why = verdict.why.unwrap_or_else(|| DENIED.into());
                    return Decided::Denied { why };
                }
                Decided::Run(tool.effect, args)
            }
            WaitDecision::Answer if wait.kind != WaitKind::Approval => Decided::End {
                text: text_of(answer.value.as_deref()),
                error: false,
            },
            WaitDecision::Error if wait.kind == WaitKind::ClientTool => error(
                answer
                    .reason
                    .clone()
                    .unwrap_or_else(|| "the client's tool failed".into()),
            ),
            WaitDecision::Deny => {
                let by = answer.by.as_deref().unwrap_or("a person");
                error(match answer.reason.as_deref() {
                    Some(reason) => format!("not run: {by} denied it: {reason}"),
                    None => format!("not run: {by} denied it, without a reason"),
                })
            }
            WaitDecision::Expired => {
                let why = answer.reason.as_deref();
                error(format!(
                    "not run: {}",
                    why.unwrap_or("nobody answered in time")
                ))
            }
            // The gateway refuses an answer that does not fit the kind of the wait. What is unclear
            // never runs a call.
            WaitDecision::Allow
            | WaitDecision::Answer
            | WaitDecision::Error
            | WaitDecision::Withdrawn => {
                error("not run: the answer does not fit the question".into())
            }
        }
    }

    /// Cancels the timer that ends the turn after its maximum duration.
    pub(super) fn stop_clock(&self, turn: &mut Turn, step: &mut StepEffects) {
        if let Some(ticket) = turn.deadline.take() {
            step.act(Effect::CancelTimer { ticket });
        }
    }

    /// Returns when a wait that is opened now expires.
    pub(super) fn expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let after = self.settings.wait_expires?;
        let after = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
        Some(Timestamp::from_millis(now.millis().saturating_add(after)))
    }

    /// Stops the turn's clock while a call waits, and starts it again when none does.
    pub(super) fn set_clock(&mut self, turn: &mut Turn, round: &Round, step: &mut StepEffects) {
        if round.waits().next().is_some() {
            turn.pause(step.now);
            self.stop_clock(turn, step);
        } else if turn.resume(step.now) {
            self.set_deadline(turn, step);
        }
    }
}

/// Ends the calls that wait, because the turn ends.
pub(super) fn withdraw_waits(round: &mut Round, why: &str, rows: &mut Rows) {
    for call in round.calls() {
        if let Some(wait) = call.take_wait() {
            withdraw(call, wait, why, rows);
        }
    }
}

/// Ends a call whose wait is withdrawn.
pub(super) fn withdraw(call: &mut Call, wait: OpenWait, why: &str, rows: &mut Rows) {
    rows.event(&withdrawn(wait.id, Some(&call.names), why));
    let KeptResult {
        text,
        error,
        duration_ms,
    } = wait.result.unwrap_or_else(|| KeptResult {
        text: why.into(),
        error: true,
        duration_ms: 0,
    });
    rows.event(&Event::ToolEnd(call.end(text, error, duration_ms)));
}

/// Returns the text of an answer: a JSON string is taken as it is meant, anything else as JSON.
fn text_of(value: Option<&RawValue>) -> String {
    let value = value.map_or("", RawValue::get);
    serde_json::from_str(value).unwrap_or_else(|_| value.to_owned())
}
