//! Decides what becomes of the calls of a round: a call runs at once, waits for an answer, or is
//! refused. The same decision is made about the calls of a new answer, and about those that a
//! restart left open.

use planck_common::{
    CallId,
    event::{Event, ToolEffect, ToolEnd, ToolStart},
    permission::RuleAction,
    wait::WaitKind,
};
use serde_json::value::RawValue;

use super::{
    Agent, StepEffects,
    absent_tool::no_such_tool,
    effect::ToolRun,
    permission::{self, CallFacts},
    phase::Turn,
    round::{Call, CallNames, Round},
    saves::Rows,
};
use crate::model::ToolSpec;

/// The result of a call that a restart interrupted.
pub(super) const INTERRUPTED: &str = "interrupted; it may or may not have taken effect";

/// Why a call is denied if neither a rule nor a mode says so.
pub(super) const DENIED: &str = "the permissions of this agent deny it";

/// The decision about a call.
enum Admission {
    Runs(ToolRun),
    Waits,
    /// The call is not run: for example, the permissions deny it, or its arguments do not fit.
    Refused(ToolEnd),
}

impl Agent {
    /// Decides about the calls that have no result and do not wait, saves the rows, and runs the
    /// calls that may run.
    pub(super) fn admit_calls(
        &mut self,
        turn: Box<Turn>,
        mut round: Round,
        mut rows: Rows,
        step: &mut StepEffects,
    ) {
        let (mut runs, mut refusals) = (Vec::new(), Vec::new());
        for call in round.calls().filter(|call| call.is_undecided()) {
            match self.admit(call, &mut rows, step) {
                Admission::Runs(run) => runs.push(run),
                Admission::Refused(end) => refusals.push(end),
                Admission::Waits => {}
            }
        }
        for end in refusals {
            rows.event(&Event::ToolEnd(end));
        }
        self.run(turn, round, runs, rows, step);
    }

    /// Decides about a call. The permissions decide, except that a tool which the node does not run
    /// always waits. A call that was interrupted runs again if its effect allows that.
    fn admit(&mut self, call: &mut Call, rows: &mut Rows, step: &StepEffects) -> Admission {
        if let Some(refusal) = call.refusal().map(str::to_owned) {
            return refuse(call, refusal);
        }
        match call.started {
            Some(effect) if effect.may_run_again() => {
                return Admission::Runs(call.run(self.counters.ticket(), step.now, true));
            }
            Some(_) => return refuse(call, INTERRUPTED.into()),
            None => {}
        }
        let Some(tool) = self.config.tool(&call.names.name) else {
            // The call is not started, because nothing is known about its effect.
            let text = self.no_such_tool(&call.names.name);
            return refuse(call, text);
        };
        let verdict = self.permits(tool, &call.args);
        let kind = match (verdict.action, tool.wait) {
            (RuleAction::Deny, _) => return refuse(call, denied(verdict.why.as_deref())),
            (RuleAction::Allow | RuleAction::Ask, Some(kind)) => kind,
            (RuleAction::Ask, None) => WaitKind::Approval,
            (RuleAction::Allow, None) => {
                let effect = tool.effect;
                return Admission::Runs(self.start(call, effect, rows, step));
            }
        };
        // No person is asked about a call that cannot run, and no client gets it.
        let args = call.args.get();
        if let Some(text) = self.config.arguments.refusal(&call.names.name, args) {
            return refuse(call, text);
        }
        let why = verdict.why.as_deref();
        match self.opening(kind, tool, &call.names, &call.args, why, step) {
            Ok(opened) => {
                call.wait(&opened);
                rows.event(&Event::WaitOpened(opened));
                Admission::Waits
            }
            Err(fault) => refuse(call, fault),
        }
    }

    /// Begins a call. Adds its `tool_start` to the rows, and returns the run to start when the rows
    /// are saved.
    pub(super) fn start(
        &mut self,
        call: &mut Call,
        effect: ToolEffect,
        rows: &mut Rows,
        step: &StepEffects,
    ) -> ToolRun {
        let CallNames { id, call_id, name } = call.names.clone();
        rows.event(&Event::ToolStart(ToolStart {
            call_id,
            id,
            name,
            args: call.args.clone(),
            effect,
        }));
        call.started = Some(effect);
        call.run(self.counters.ticket(), step.now, false)
    }

    pub(super) fn no_such_tool(&self, name: &str) -> String {
        let tools = self.config.tools.iter();
        let names: Vec<&str> = tools.map(|tool| tool.name.as_str()).collect();
        no_such_tool(name, &names)
    }

    pub(super) fn permits(&self, tool: &ToolSpec, args: &RawValue) -> permission::Verdict {
        let verdict = permission::judge(&self.config.spec.permissions, &self.facts(tool, args));
        match permission::leaves_sandbox(tool, args.get()) {
            true => verdict.or_ask_to_leave_sandbox(),
            false => verdict,
        }
    }

    pub(super) fn facts<'a>(&'a self, tool: &'a ToolSpec, args: &'a RawValue) -> CallFacts<'a> {
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
                let tool = self.config.tool(&call.names.name)?;
                if permission::leaves_sandbox(tool, call.args.get()) {
                    return None;
                }
                let facts = self.facts(tool, &call.args);
                Some((call.names.call_id.clone(), wait.digest.clone(), facts))
            })
            .collect()
    }
}

fn refuse(call: &mut Call, text: String) -> Admission {
    Admission::Refused(call.end(text, true, 0))
}

pub(super) fn denied(why: Option<&str>) -> String {
    format!("not run: {}", why.unwrap_or(DENIED))
}
