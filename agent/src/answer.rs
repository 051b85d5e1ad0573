//! Handles the model's reply: publishes it while it streams, saves it when it is complete, and
//! decides what the turn does next.

use serde_json::value::RawValue;

use planck_common::{
    CallId,
    command::Prices,
    event::{Event, EventKind, ToolEffect, ToolEnd, ToolStart, UsageDelta, Warning},
    message::{MessageBody, MessageMetadata, MessageRole, Part, StopReason},
    permission::RuleAction,
    usage::Usage,
    wait::WaitKind,
};

use crate::{
    Agent, AgentIdentity, Counters, StepEffects, Ticket,
    draft::Draft,
    effect::ToolRun,
    model::{Chunk, Failure, Finish, ToolSpec},
    outcome::no_such_tool,
    permission::{self, CallFacts},
    phase::{Phase, Turn, TurnActivity},
    round::{AnswerFault, Call, CallNames, Round},
    saves::Rows,
};

/// The code of a warning about a server that deviates from its wire format.
pub(super) const DEVIATING: &str = "deviating_server";

impl Agent {
    pub(super) fn chunks_received(
        &mut self,
        asked: Ticket,
        chunks: Vec<Chunk>,
        step: &mut StepEffects,
    ) {
        let place = self.place(step.now);
        let Phase::Working(_, TurnActivity::Streaming { ticket, draft }) = &mut self.phase else {
            return;
        };
        if *ticket != asked {
            return;
        }
        for (kind, delta) in draft.take(chunks) {
            let event = if kind == EventKind::TextDelta {
                Event::TextDelta(delta)
            } else {
                Event::ThinkingDelta(delta)
            };
            step.publish(place, event);
        }
    }

    pub(super) fn reply_ended(
        &mut self,
        ticket: Ticket,
        result: Result<Finish, Failure>,
        jitter: f64,
        step: &mut StepEffects,
    ) {
        let Some((turn, activity)) = self.phase.take_if(|activity| activity.is_streaming(ticket))
        else {
            return;
        };
        match result {
            Ok(finish) => self.replied(turn, activity.into_draft(), finish, step),
            Err(failure) => self.failed(turn, activity.into_draft(), failure, jitter, step),
        }
    }

    fn replied(
        &mut self,
        mut turn: Box<Turn>,
        draft: Draft,
        finish: Finish,
        step: &mut StepEffects,
    ) {
        turn.failures = 0;
        turn.overflowed = false;
        let content = self.with_output_as_call(&turn, self.content(draft));
        turn.keep_text(&content);
        let counted = finish.usage.context_tokens();
        if counted > 0 {
            self.transcript.correct(counted);
        }
        let mut rows = Rows::at(self.place(step.now));
        self.warn_of_deviations(&finish, &mut rows);
        let body = (!content.is_empty()).then(|| rows.message(reply(content, finish.stop)));
        let context_tokens = self.transcript.tokens() + rows.tokens();
        self.account(
            &mut turn,
            self.priced(finish.usage),
            &mut rows,
            context_tokens,
        );
        let content = body
            .as_ref()
            .map(|body| body.content.as_slice())
            .unwrap_or_default();
        self.follow(turn, content, finish.stop, rows, step);
    }

    /// Warns once for each way in which a server deviates from its wire format, although its
    /// answers can be read.
    fn warn_of_deviations(&mut self, finish: &Finish, rows: &mut Rows) {
        for what in &finish.deviations {
            let provider = &self.config.spec.model.provider;
            let message = format!(
                "the server of `{provider}` deviates from its wire format: {what}; its answers are read as meant"
            );
            if self.deferred.deviations.insert(message.clone()) {
                rows.event(&Event::Warning(Warning::new(DEVIATING, message)));
            }
        }
    }

    fn follow(
        &mut self,
        mut turn: Box<Turn>,
        content: &[Part],
        stop: StopReason,
        rows: Rows,
        step: &mut StepEffects,
    ) {
        let limits = self.settings.loop_guard;
        if let Some(round) = Round::read(content, Some(stop), &mut turn.guard, limits) {
            return self.admit_calls(turn, round, rows, step);
        }
        match AnswerFault::of(stop) {
            Some(fault) => self.end_turn(&turn, rows, fault.into(), step),
            None => self.end_without_calls(turn, rows, step),
        }
    }

    fn content(&self, draft: Draft) -> Vec<Part> {
        draft.content(|part| self.call_id(part))
    }

    /// Returns the id of the call in a part of the reply to the present request.
    pub(super) fn call_id(&self, part: usize) -> CallId {
        let AgentIdentity {
            session,
            agent,
            epoch,
        } = &self.identity;
        let Counters { turn, request, .. } = self.counters;
        CallId::of(session, agent, *epoch, turn, request, part)
    }

    /// Adds usage to the totals of the turn and the agent, and a `usage_delta` to the rows. The
    /// commit of the rows adds the usage to the totals of the session.
    pub(super) fn account(
        &mut self,
        turn: &mut Turn,
        usage: Usage,
        rows: &mut Rows,
        context_tokens: u64,
    ) {
        turn.usage += usage;
        self.totals.agent += usage;
        rows.consume(usage);
        rows.event(&Event::UsageDelta(UsageDelta {
            delta: usage,
            total: self.totals.agent,
            context_tokens,
        }));
    }

    pub(super) fn priced(&self, usage: Usage) -> Usage {
        match &self.config.card.prices {
            Some(prices) if usage.cost_usd == 0.0 => Usage {
                cost_usd: cost(usage, prices),
                ..usage
            },
            Some(_) | None => usage,
        }
    }
}

fn reply(content: Vec<Part>, stop: StopReason) -> MessageBody {
    let metadata = MessageMetadata {
        stop: Some(stop),
        ..MessageMetadata::default()
    };
    MessageBody {
        role: MessageRole::Assistant,
        custom: None,
        content,
        metadata,
    }
}

fn cost(usage: Usage, prices: &Prices) -> f64 {
    let dollars = [
        (usage.input_tokens, prices.input),
        (usage.output_tokens, prices.output),
        (usage.cache_read_tokens, prices.cache_read),
        (usage.cache_write_tokens, prices.cache_write),
    ];
    dollars
        .into_iter()
        .map(|(tokens, price)| tokens as f64 * price)
        .sum::<f64>()
        / 1e6
}

// Decides what becomes of the calls of a round: a call runs at once, waits for an answer, or is
// refused. The same decision is made about the calls of a new answer, and about those that a
// restart left open.

/// The result of a call that a restart interrupted.
pub(super) const INTERRUPTED: &str = "interrupted; it may or may not have taken effect";

/// Why a call is denied if neither a rule nor a mode says so.
pub(super) const DENIED: &str = "the permissions of this agent deny it";

/// The decision about a call.
enum CallAdmission {
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
                CallAdmission::Runs(run) => runs.push(run),
                CallAdmission::Refused(end) => refusals.push(end),
                CallAdmission::Waits => {}
            }
        }
        for end in refusals {
            rows.event(&Event::ToolEnd(end));
        }
        self.run(turn, round, runs, rows, step);
    }

    /// Decides about a call. The permissions decide, except that a tool which the node does not run
    /// always waits. A call that was interrupted runs again if its effect allows that.
    fn admit(&mut self, call: &mut Call, rows: &mut Rows, step: &StepEffects) -> CallAdmission {
        if let Some(refusal) = call.refusal().map(str::to_owned) {
            return refuse(call, refusal);
        }
        match call.started {
            Some(effect) if effect.may_run_again() => {
                return CallAdmission::Runs(self.run_call(call, true, step));
            }
            Some(_) => return refuse(call, INTERRUPTED.into()),
            None => {}
        }
        // The answer of the turn needs no permission, and neither does a search of the tools.
        let name = &call.names.name;
        if self.config.output_schema(name).is_some() || self.config.is_search(name) {
            return CallAdmission::Runs(self.start(call, ToolEffect::Pure, rows, step));
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
                return CallAdmission::Runs(self.start(call, effect, rows, step));
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
                CallAdmission::Waits
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
        self.run_call(call, false, step)
    }

    /// Lets a call run.
    pub(super) fn run_call(
        &mut self,
        call: &mut Call,
        is_repeat: bool,
        step: &StepEffects,
    ) -> ToolRun {
        let output = self.config.output_schema(&call.names.name).cloned();
        call.run(self.counters.ticket(), step.now, is_repeat, output)
    }

    pub(super) fn no_such_tool(&self, name: &str) -> String {
        no_such_tool(name, &self.config.names().collect::<Vec<_>>())
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

fn refuse(call: &mut Call, text: String) -> CallAdmission {
    CallAdmission::Refused(call.end(text, true, 0))
}

pub(super) fn denied(why: Option<&str>) -> String {
    format!("not run: {}", why.unwrap_or(DENIED))
}
