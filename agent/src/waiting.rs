//! Calls that wait: for a person who allows them, for a person who answers the model's question, or
//! for the client that runs the tool itself.

mod change;
mod closing;
mod opening;

use planck_common::{
    CallId, Timestamp,
    event::{Event, ToolEffect, ToolEnd},
    permission::RuleAction,
    wait::{WaitAnswer, WaitClosed, WaitDecision, WaitKind, WaitOpened},
};
use serde_json::value::RawValue;

use super::{
    Agent, Effect, StepEffects,
    absent_tool::no_such_tool,
    calls::RequestedCall,
    digest,
    effect::ToolRun,
    permission::{self, CallFacts},
    phase::{Turn, TurnActivity},
    round::{CallNames, HeldResult, OpenWait, Round},
    saves::Rows,
};
use crate::model::ToolSpec;
pub(super) use change::held_result;
pub(super) use closing::{closed, withdrawn};

/// What becomes of a call that the loop guard lets pass.
pub(super) enum Admission {
    Runs(ToolRun),
    Waits,
    /// The agent does not have the tool, the permissions deny the call, or its arguments do not fit.
    Refused(ToolEnd),
}

/// What an answer makes of a call.
enum Decided {
    /// The call of a tool with this effect runs with these arguments.
    Run(ToolEffect, Box<RawValue>),
    /// The call, which is already in the log as started, runs now.
    RunHeld,
    /// The call ends with this result.
    End { text: String, error: bool },
    /// The permissions deny the arguments that a person wrote.
    Denied { why: String },
}

impl Agent {
    /// Decides whether a call runs at once, waits for an answer, or is refused. The permissions
    /// decide, except that a tool which the node does not run always waits.
    pub(super) fn admit(
        &mut self,
        round: &mut Round,
        wanted: RequestedCall<'_>,
        remark: Option<String>,
        rows: &mut Rows,
        step: &StepEffects,
    ) -> Admission {
        let Some(tool) = self.config.tool(&wanted.call.name) else {
            // The call is not started, because nothing is known about its effect.
            let text = self.no_such_tool(&wanted.call.name);
            return refuse(round, wanted.call, text);
        };
        let verdict = self.permits(tool, wanted.args);
        let kind = match (verdict.action, tool.wait) {
            (RuleAction::Deny, _) => {
                return refuse(round, wanted.call, denied(verdict.why.as_deref()));
            }
            (RuleAction::Allow | RuleAction::Ask, Some(kind)) => kind,
            (RuleAction::Ask, None) => WaitKind::Approval,
            (RuleAction::Allow, None) => {
                let effect = tool.effect;
                return Admission::Runs(self.start(round, wanted, effect, remark, rows, step));
            }
        };
        let RequestedCall { call, args, .. } = wanted;
        // No person is asked about a call that cannot run, and no client gets it.
        if let Some(text) = self.config.arguments.refusal(&call.name, args.get()) {
            return refuse(round, call, text);
        }
        match self.opening(kind, tool, &call, args, verdict.why.as_deref(), step) {
            Ok(opened) => {
                let wait = OpenWait {
                    id: opened.id.clone(),
                    kind,
                    digest: opened.digest.clone(),
                    args: args.to_owned(),
                    remark,
                    result: None,
                };
                rows.event(&Event::WaitOpened(opened));
                round.wait(call, wait);
                Admission::Waits
            }
            Err(fault) => refuse(round, call, fault),
        }
    }

    fn no_such_tool(&self, name: &str) -> String {
        let tools = self.config.tools.iter();
        let names: Vec<&str> = tools.map(|tool| tool.name.as_str()).collect();
        no_such_tool(name, &names)
    }

    fn permits(&self, tool: &ToolSpec, args: &RawValue) -> permission::Verdict {
        let verdict = permission::judge(&self.config.spec.permissions, &self.facts(tool, args));
        match permission::leaves_sandbox(tool, args.get()) {
            true => verdict.or_ask_to_leave_sandbox(),
            false => verdict,
        }
    }

    fn facts<'a>(&'a self, tool: &'a ToolSpec, args: &'a RawValue) -> CallFacts<'a> {
        CallFacts {
            tool: &tool.name,
            effect: tool.effect,
            sidecar: tool.sidecar.as_deref(),
            args: args.get(),
            dir: &self.config.dir,
        }
    }

    /// Returns the calls that wait for an approval: the id and the digest of the wait, and the facts
    /// on which a rule of the session can allow the call. No rule allows a call that leaves the
    /// sandbox.
    pub fn approvals(&self) -> Vec<(CallId, String, CallFacts<'_>)> {
        let Some(round) = self.phase.round() else {
            return Vec::new();
        };
        let approvals = round
            .waits()
            .filter(|(_, wait)| wait.kind == WaitKind::Approval);
        approvals
            .filter_map(|(call, wait)| {
                let tool = self.config.tool(&call.name)?;
                if permission::leaves_sandbox(tool, wait.args.get()) {
                    return None;
                }
                let facts = self.facts(tool, &wait.args);
                Some((call.call_id.clone(), wait.digest.clone(), facts))
            })
            .collect()
    }

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
        let run = self.settle_wait(&mut round, call, wait, answer, &mut rows, step);
        if !is_kept {
            let (why, ending) = change::not_kept();
            return self.wind_down(turn, round, rows, why, ending, step);
        }
        self.run(turn, round, run.into_iter().collect(), rows, step);
    }

    /// Ends a wait, and returns the run to start when the rows are saved, if the call runs now.
    fn settle_wait(
        &mut self,
        round: &mut Round,
        call: CallNames,
        mut wait: OpenWait,
        answer: &WaitAnswer,
        rows: &mut Rows,
        step: &StepEffects,
    ) -> Option<ToolRun> {
        if let Some(opened) = self.asked_again(&call, &wait, answer, step) {
            wait.digest.clone_from(&opened.digest);
            rows.event(&Event::WaitOpened(opened));
            round.wait(call, wait);
            return None;
        }
        let decided = self.meaning(&call, &wait, answer);
        let closed = match &decided {
            Decided::Denied { why } => Event::WaitClosed(WaitClosed {
                id: wait.id.clone(),
                call_id: None,
                decision: WaitDecision::Deny,
                by: answer.by.clone(),
                reason: Some(why.clone()),
                scope: None,
            }),
            Decided::Run(..) | Decided::RunHeld | Decided::End { .. } => {
                closed(wait.id.clone(), Some(&call), answer)
            }
        };
        rows.event(&closed);
        let duration_ms = wait.result.as_ref().map_or(0, |held| held.duration_ms);
        let (text, error) = match decided {
            Decided::Run(effect, args) => {
                let wanted = RequestedCall {
                    call,
                    args: &args,
                    invalid: None,
                };
                return Some(self.start(round, wanted, effect, wait.remark, rows, step));
            }
            Decided::RunHeld => {
                let wanted = RequestedCall {
                    call,
                    args: &wait.args,
                    invalid: None,
                };
                return Some(self.run_again(round, wanted, wait.remark, step));
            }
            Decided::End { text, error } => (text, error),
            Decided::Denied { why } => (denied(Some(&why)), true),
        };
        rows.event(&Event::ToolEnd(call.end(text.clone(), error, duration_ms)));
        round.settle(call, text, error);
        None
    }

    /// Returns a new opening of the wait if an approval was given for another description of the
    /// tool than the present one.
    fn asked_again(
        &self,
        call: &CallNames,
        wait: &OpenWait,
        answer: &WaitAnswer,
        step: &StepEffects,
    ) -> Option<WaitOpened> {
        let tool = self.config.tool(&call.name)?;
        let is_allowed = wait.kind == WaitKind::Approval && answer.decision == WaitDecision::Allow;
        let now = digest::of_call(&tool.name, &tool.description, wait.args.get());
        if !is_allowed || now == wait.digest {
            return None;
        }
        let why = Some("the tool's description has changed since this call was allowed");
        self.opening(wait.kind, tool, call, &wait.args, why, step)
            .ok()
    }

    fn meaning(&self, call: &CallNames, wait: &OpenWait, answer: &WaitAnswer) -> Decided {
        let error = |text: String| Decided::End { text, error: true };
        if wait.kind == WaitKind::Change {
            return change::meaning(wait, answer);
        }
        match answer.decision {
            WaitDecision::Allow if wait.kind == WaitKind::Approval => {
                let Some(tool) = self.config.tool(&call.name) else {
                    return error(self.no_such_tool(&call.name));
                };
                let args = answer.args.as_ref().unwrap_or(&wait.args).clone();
                let leaves = |args: &RawValue| permission::leaves_sandbox(tool, args.get());
                if leaves(&args) && !leaves(&wait.args) {
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
    let waiting: Vec<(CallNames, CallId, Option<HeldResult>)> = round
        .waits()
        .map(|(call, wait)| (call.clone(), wait.id.clone(), wait.result.clone()))
        .collect();
    for (call, wait, result) in waiting {
        withdraw(round, call, wait, result, why, rows);
    }
}

/// Ends a call and its wait. `result` is the result of a call that has run.
pub(super) fn withdraw(
    round: &mut Round,
    call: CallNames,
    wait: CallId,
    result: Option<HeldResult>,
    why: &str,
    rows: &mut Rows,
) {
    rows.event(&withdrawn(wait, Some(&call), why));
    let HeldResult {
        text,
        error,
        duration_ms,
    } = result.unwrap_or_else(|| HeldResult {
        text: why.into(),
        error: true,
        duration_ms: 0,
    });
    rows.event(&Event::ToolEnd(call.end(text.clone(), error, duration_ms)));
    round.settle(call, text, error);
}

fn refuse(round: &mut Round, call: CallNames, text: String) -> Admission {
    let end = call.end(text.clone(), true, 0);
    round.settle(call, text, true);
    Admission::Refused(end)
}

/// Why a call is denied if neither a rule nor a mode says so.
const DENIED: &str = "the permissions of this agent deny it";

fn denied(why: Option<&str>) -> String {
    format!("not run: {}", why.unwrap_or(DENIED))
}

/// Returns the text of an answer: a JSON string is taken as it is meant, anything else as JSON.
fn text_of(value: Option<&RawValue>) -> String {
    let value = value.map_or("", RawValue::get);
    serde_json::from_str(value).unwrap_or_else(|_| value.to_owned())
}
