//! The calls of one answer, and the one message with their results in the same order. A round is
//! read from the answer. If an agent is restored, the events of the calls bring the round to where
//! it was.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use planck_common::{
    CallId, Timestamp,
    command::{AgentState, RunningTool},
    event::{Event, ToolEffect, ToolEnd, ToolProgress, ToolStart},
    message::{MessageBody, MessageMetadata, MessageRole, Part, StopReason},
    wait::{WaitKind, WaitOpened},
};

use crate::{
    Agent, Effect, StepEffects, Ticket,
    effect::ToolRun,
    guard::{LoopGuard, LoopLimits, LoopVerdict},
    outcome::{ABORTED, ToolOutcome},
    phase::{Phase, Turn, TurnActivity, TurnEnding},
    saves::Rows,
    waiting::withdraw_waits,
};

/// The maximum number of questions that a call can ask.
const MOST_QUESTIONS: usize = 16;

#[derive(Debug)]
pub(super) struct Round {
    calls: Vec<Call>,
    /// Why the turn ends after the results.
    pub fault: Option<AnswerFault>,
}

/// Why the calls of an answer are not run, and the turn ends after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerFault {
    /// The answer was cut off at the length limit.
    Cut,
    /// The model refused, or a filter of its provider stopped the answer.
    Refused,
}

/// A call as the provider and the runtime name it.
#[derive(Debug, Clone)]
pub(super) struct CallNames {
    pub id: String,
    pub call_id: CallId,
    pub name: String,
}

#[derive(Debug)]
pub(super) struct Call {
    pub names: CallNames,
    /// The arguments with which the call runs.
    pub args: Box<RawValue>,
    /// The loop guard's remark, which is added to the result of a call that has run.
    pub remark: Option<String>,
    /// The effect of the tool, if the start of the call is in the log.
    pub started: Option<ToolEffect>,
    /// The number of questions that the call has asked.
    pub questions: usize,
    state: CallState,
}

#[derive(Debug)]
enum CallState {
    /// Nothing is decided about the call yet, except that it does not run if it has a refusal.
    Undecided {
        refusal: Option<String>,
    },
    Running {
        ticket: Ticket,
        since: Timestamp,
    },
    Waiting(OpenWait),
    Done {
        text: String,
        error: bool,
    },
}

/// The wait of a call.
#[derive(Debug)]
pub(super) struct OpenWait {
    pub id: CallId,
    pub kind: WaitKind,
    pub digest: String,
    /// Whether the call has run and asks the question.
    pub is_of_run: bool,
    /// A value that the tool which asks gets back with the answer.
    pub state: Option<Box<RawValue>>,
    /// The result of a call that has run and changed protected files.
    pub result: Option<KeptResult>,
}

/// The result of a call, which is kept until a person has decided about the call's changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KeptResult {
    pub text: String,
    pub error: bool,
    pub duration_ms: u64,
}

impl Round {
    /// Reads the calls of an answer, and counts them in the loop guard. Returns `None` if there is
    /// no call.
    pub(super) fn read(
        content: &[Part],
        stop: Option<StopReason>,
        guard: &mut LoopGuard,
        limits: LoopLimits,
    ) -> Option<Self> {
        let fault = stop.and_then(AnswerFault::of);
        let calls = content
            .iter()
            .filter_map(|part| Call::read(part, fault, guard, limits));
        let calls: Vec<Call> = calls.collect();
        (!calls.is_empty()).then_some(Self { calls, fault })
    }

    /// Returns whether a call has no result yet.
    pub(super) fn is_open(&self) -> bool {
        self.calls.iter().any(|call| !call.is_done())
    }

    /// Returns whether no call runs and at least one waits.
    pub(super) fn only_waits(&self) -> bool {
        self.running().next().is_none() && self.waits().next().is_some()
    }

    /// Returns the calls, in the order of the answer.
    pub(super) fn calls(&mut self) -> impl Iterator<Item = &mut Call> {
        self.calls.iter_mut()
    }

    /// Returns the calls that wait, with their waits.
    pub(super) fn waits(&self) -> impl Iterator<Item = (&Call, &OpenWait)> {
        self.calls.iter().filter_map(|call| match &call.state {
            CallState::Waiting(wait) => Some((call, wait)),
            CallState::Undecided { .. } | CallState::Running { .. } | CallState::Done { .. } => {
                None
            }
        })
    }

    /// Ends a wait, and returns it with its call, about which the caller has to decide. Returns
    /// `None` if there is no such wait.
    pub(super) fn take_wait(&mut self, id: &CallId) -> Option<(&mut Call, OpenWait)> {
        let waits =
            |call: &&mut Call| matches!(&call.state, CallState::Waiting(wait) if wait.id == *id);
        let call = self.calls.iter_mut().find(waits)?;
        let wait = call.take_wait()?;
        Some((call, wait))
    }

    pub(super) fn running_call(&mut self, ticket: Ticket) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.is_running(ticket))
    }

    /// Returns whether a running call waits for a person after this outcome.
    fn waits_after(&self, ticket: Ticket, outcome: &ToolOutcome) -> bool {
        let asks = |call: &Call| outcome.question.is_some() && call.questions < MOST_QUESTIONS;
        let running = self.calls.iter().find(|call| call.is_running(ticket));
        running.is_some_and(|call| !outcome.changes.is_empty() || asks(call))
    }

    pub(super) fn runs(&self, ticket: Ticket) -> Option<&CallNames> {
        let running = self.calls.iter().find(|call| call.is_running(ticket));
        running.map(|call| &call.names)
    }

    /// Returns the tickets of the calls that still run.
    pub(super) fn running(&self) -> impl Iterator<Item = Ticket> {
        self.calls.iter().filter_map(|call| match call.state {
            CallState::Running { ticket, .. } => Some(ticket),
            CallState::Undecided { .. } | CallState::Waiting(_) | CallState::Done { .. } => None,
        })
    }

    /// Returns the calls that have their results, each with its text and whether it is an error.
    pub(super) fn ended(&self) -> impl Iterator<Item = (&Call, &str, bool)> {
        self.calls.iter().filter_map(|call| match &call.state {
            CallState::Done { text, error } => Some((call, text.as_str(), *error)),
            CallState::Undecided { .. } | CallState::Running { .. } | CallState::Waiting(_) => None,
        })
    }

    /// Returns the message with the results of all calls, in their order.
    pub(super) fn results(self) -> MessageBody {
        let content = self.calls.into_iter().map(Call::into_part).collect();
        MessageBody {
            role: MessageRole::ToolResult,
            custom: None,
            content,
            metadata: MessageMetadata::default(),
        }
    }

    pub(super) fn snapshot(&self, now: Timestamp) -> Vec<RunningTool> {
        let running = self.calls.iter().filter_map(|call| match call.state {
            CallState::Running { since, .. } => Some(RunningTool {
                call_id: call.names.call_id.clone(),
                name: call.names.name.clone(),
                elapsed_ms: now.millis_since(since),
            }),
            CallState::Undecided { .. } | CallState::Waiting(_) | CallState::Done { .. } => None,
        });
        running.collect()
    }

    pub(super) fn replay_start(&mut self, start: ToolStart) {
        if let Some(call) = self.call(&start.call_id) {
            call.started = Some(start.effect);
            call.args = start.args;
        }
    }

    pub(super) fn replay_end(&mut self, end: ToolEnd) {
        if let Some(call) = self.call(&end.call_id) {
            call.settle(end.result, end.error);
        }
    }

    pub(super) fn replay_wait(&mut self, wait: &WaitOpened) {
        if let Some(call) = self.call(wait.call()) {
            call.wait(wait);
        }
    }

    fn call(&mut self, id: &CallId) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.names.call_id == *id)
    }
}

impl Call {
    fn read(
        part: &Part,
        fault: Option<AnswerFault>,
        guard: &mut LoopGuard,
        limits: LoopLimits,
    ) -> Option<Self> {
        let Part::ToolCall {
            id,
            call_id,
            name,
            args,
            invalid,
            ..
        } = part
        else {
            return None;
        };
        let verdict = guard.judge(name, invalid.as_deref().unwrap_or(args.get()), limits);
        let (remark, refusal) = match (fault, invalid, verdict) {
            (Some(fault), ..) => (None, Some(fault.result().into())),
            (None, Some(text), _) => (None, Some(wrong_args(text))),
            (None, None, LoopVerdict::Refuse(text)) => (None, Some(text)),
            (None, None, LoopVerdict::Remark(remark)) => (Some(remark), None),
            (None, None, LoopVerdict::Run) => (None, None),
        };
        Some(Self {
            names: CallNames {
                id: id.clone(),
                call_id: call_id.clone(),
                name: name.clone(),
            },
            args: args.clone(),
            remark,
            started: None,
            questions: 0,
            state: CallState::Undecided { refusal },
        })
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, CallState::Done { .. })
    }

    /// Returns whether nothing is decided about the call yet.
    pub(super) fn is_undecided(&self) -> bool {
        matches!(self.state, CallState::Undecided { .. })
    }

    /// Returns why the call does not run whatever the permissions say.
    pub(super) fn refusal(&self) -> Option<&str> {
        match &self.state {
            CallState::Undecided { refusal } => refusal.as_deref(),
            CallState::Running { .. } | CallState::Waiting(_) | CallState::Done { .. } => None,
        }
    }

    fn is_running(&self, asked: Ticket) -> bool {
        matches!(self.state, CallState::Running { ticket, .. } if ticket == asked)
    }

    /// Lets the call run.
    pub(super) fn run(
        &mut self,
        ticket: Ticket,
        now: Timestamp,
        is_repeat: bool,
        output: Option<Arc<RawValue>>,
    ) -> ToolRun {
        self.state = CallState::Running { ticket, since: now };
        ToolRun {
            ticket,
            call_id: self.names.call_id.clone(),
            name: self.names.name.clone(),
            args: self.args.clone(),
            is_repeat,
            answer: None,
            output,
        }
    }

    /// Lets the call wait.
    pub(super) fn wait(&mut self, opened: &WaitOpened) {
        let is_of_run = opened.kind == WaitKind::Question && opened.call_id.is_some();
        self.questions += usize::from(is_of_run);
        self.state = CallState::Waiting(OpenWait {
            id: opened.id.clone(),
            kind: opened.kind,
            digest: opened.digest.clone(),
            is_of_run,
            state: opened.state.clone(),
            result: kept_result(opened),
        });
    }

    /// Ends the wait of the call, and returns it.
    pub(super) fn take_wait(&mut self) -> Option<OpenWait> {
        let undecided = CallState::Undecided { refusal: None };
        match std::mem::replace(&mut self.state, undecided) {
            CallState::Waiting(wait) => Some(wait),
            other @ (CallState::Undecided { .. }
            | CallState::Running { .. }
            | CallState::Done { .. }) => {
                self.state = other;
                None
            }
        }
    }

    /// Stores the result of the call, which has run, with the loop guard's remark.
    pub(super) fn finish(&mut self, text: String, error: bool, elapsed: Duration) -> ToolEnd {
        let duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        self.end(remarked(text, self.remark.as_deref()), error, duration_ms)
    }

    /// Stores the result of the call, and returns its `tool_end`.
    pub(super) fn end(&mut self, text: String, error: bool, duration_ms: u64) -> ToolEnd {
        self.settle(text.clone(), error);
        let CallNames { id, call_id, name } = self.names.clone();
        ToolEnd {
            call_id,
            id,
            name,
            result: text,
            error,
            duration_ms,
        }
    }

    pub(super) fn settle(&mut self, text: String, error: bool) {
        self.state = CallState::Done { text, error };
    }

    fn into_part(self) -> Part {
        let CallNames { id, call_id, .. } = self.names;
        let (text, error) = match self.state {
            CallState::Done { text, error } => (text, error),
            CallState::Undecided { .. } | CallState::Running { .. } | CallState::Waiting(_) => {
                ("no result".into(), true)
            }
        };
        Part::ToolResult {
            id,
            call_id,
            text,
            error,
        }
    }
}

impl AnswerFault {
    pub(super) fn of(stop: StopReason) -> Option<Self> {
        match stop {
            StopReason::Length => Some(Self::Cut),
            StopReason::Refusal => Some(Self::Refused),
            StopReason::End | StopReason::ToolUse => None,
        }
    }

    /// Returns the result of the answer's calls.
    fn result(self) -> &'static str {
        match self {
            Self::Cut => "not run: the call was cut off before it was complete",
            Self::Refused => "not run: the answer with the call ended as a refusal",
        }
    }
}

/// Adds the loop guard's remark to a result.
pub(super) fn remarked(text: String, remark: Option<&str>) -> String {
    match remark {
        Some(remark) => format!("{text}\n\n{remark}"),
        None => text,
    }
}

/// Returns the result that a wait about changes keeps, or `None` if its call did not run.
fn kept_result(wait: &WaitOpened) -> Option<KeptResult> {
    #[derive(Deserialize)]
    struct Request {
        result: Option<KeptResult>,
    }
    let is_change = wait.kind == WaitKind::Change;
    let request = is_change.then(|| serde_json::from_str::<Request>(wait.request.get()).ok());
    request.flatten()?.result
}

fn wrong_args(text: &str) -> String {
    let fault = match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => "they are JSON, but not an object".to_owned(),
        Err(error) => error.to_string(),
    };
    format!("not run: the arguments are not a JSON object: {fault}")
}

// The calls of a turn while they run: their progress, their results, and how the turn continues
// after them.

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
        mut turn: Box<Turn>,
        round: Round,
        mut rows: Rows,
        step: &mut StepEffects,
    ) {
        let fault = round.fault;
        if let Some(output) = turn.output.as_mut() {
            output.close(&round);
        }
        rows.message(round.results());
        if let Some(fault) = fault {
            return self.end_turn(&turn, rows, fault.into(), step);
        }
        self.go_on_after(turn, rows, step);
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
        let waits = |activity: &TurnActivity| matches!(activity, TurnActivity::UsingTools(round) if round.waits_after(ticket, &outcome));
        if let Some((turn, TurnActivity::UsingTools(round))) = self.phase.take_if(waits) {
            return self.ask_about((turn, round), ticket, outcome, elapsed, step);
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
