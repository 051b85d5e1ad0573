//! Decides how an open turn continues: it ends at a limit, takes the inputs that join it, compacts
//! the context, or calls the model. The module also handles failed model calls.

use std::{sync::Arc, time::Duration};

use planck_common::{
    Seq,
    command::AgentState,
    event::{Event, Retry, Warning},
    message::MessageBody,
};

use super::{
    Agent, Effect, NewInput, StepEffects, Ticket,
    draft::Draft,
    effect::Change,
    phase::{Phase, Turn, TurnActivity, TurnEnding},
    saves::{OnCommit, Rows},
    speech,
};
use crate::model::{Failure, FailureKind};

impl Agent {
    /// Saves `rows`, and decides what an open turn does next.
    pub(super) fn go_on(&mut self, turn: Box<Turn>, rows: Rows, step: &mut StepEffects) {
        if let Some(limit) = self.limit_reached() {
            return self.at_limit(turn, rows, limit, step);
        }
        let is_due = self.is_compaction_due(rows.tokens());
        if is_due {
            self.save(rows, AgentState::Compacting, step);
        } else {
            self.save_beside(rows, AgentState::Streaming, step);
        }
        if self.inbox.steers() {
            self.phase = Phase::Working(turn, TurnActivity::Saving);
            return self.join(step);
        }
        match self.compaction_if(is_due) {
            Some(material) => self.compact(turn, &material, step),
            None => self.call_model(turn, step),
        }
    }

    pub(super) fn limit_reached(&self) -> Option<&'static str> {
        let (limits, session) = (&self.config.spec.limits, &self.limits);
        let requests = limits
            .max_requests_per_turn
            .unwrap_or(self.settings.max_requests_per_turn);
        let reached = [
            ("max_requests_per_turn", self.counters.request >= requests),
            (
                "max_tokens",
                limits
                    .max_tokens
                    .is_some_and(|max| self.totals.agent.tokens() >= max),
            ),
            (
                "max_cost_usd",
                limits
                    .max_cost_usd
                    .is_some_and(|max| self.totals.agent.cost_usd >= max),
            ),
            (
                "session.max_tokens",
                session
                    .max_tokens
                    .is_some_and(|max| self.totals.session.tokens() >= max),
            ),
            (
                "session.max_cost_usd",
                session
                    .max_cost_usd
                    .is_some_and(|max| self.totals.session.cost_usd >= max),
            ),
        ];
        reached
            .into_iter()
            .find_map(|(name, is_reached)| is_reached.then_some(name))
    }

    fn join(&mut self, step: &mut StepEffects) {
        let inputs = self.inbox.take_steered();
        let mut rows = Rows::at(self.place(step.now));
        for input in &inputs {
            rows.message(speech::message(input));
            rows.mark(
                &input.id,
                Change::Consumed {
                    turn: self.counters.turn,
                },
            );
        }
        self.save_then(rows, self.phase.state(), OnCommit::Join(inputs), step);
    }

    pub(super) fn joined(
        &mut self,
        inputs: Vec<NewInput>,
        messages: Vec<(usize, Arc<MessageBody>)>,
        ids: &[Seq],
        step: &mut StepEffects,
    ) {
        self.show(messages, ids);
        if let Some((mut turn, _)) = self.phase.take_if(TurnActivity::is_saving) {
            turn.inputs.extend(inputs.iter().map(speech::turn_input));
            if let Some(output) = &mut turn.output {
                let about = inputs.iter().filter_map(|input| input.reply_to.as_ref());
                about.for_each(|task| output.heard(task));
            }
            self.go_on(turn, Rows::at(self.place(step.now)), step);
        }
    }

    /// Decides again what the turn does next, because inputs that were about to join are gone.
    pub(super) fn rejoin(&mut self, step: &mut StepEffects) {
        if let Some((turn, _)) = self.phase.take_if(TurnActivity::is_saving) {
            self.go_on(turn, Rows::at(self.place(step.now)), step);
        }
    }

    fn call_model(&mut self, turn: Box<Turn>, step: &mut StepEffects) {
        self.counters.request += 1;
        let ticket = self.counters.ticket();
        self.phase = Phase::Working(
            turn,
            TurnActivity::Streaming {
                ticket,
                draft: Draft::default(),
            },
        );
        step.act(Effect::CallModel { ticket });
    }

    /// Handles a failed model call. `draft` is the part of the answer received before the failure.
    pub(super) fn failed(
        &mut self,
        mut turn: Box<Turn>,
        draft: Draft,
        failure: Failure,
        jitter: f64,
        step: &mut StepEffects,
    ) {
        turn.failures += 1;
        match failure.kind {
            FailureKind::Transient if turn.failures < self.config.card.retry.tries => {
                self.retry(turn, &failure, jitter, step)
            }
            FailureKind::ContextFull if !turn.overflowed => {
                self.overflow(turn, draft, failure, step)
            }
            FailureKind::Transient
            | FailureKind::ContextFull
            | FailureKind::Auth
            | FailureKind::Refused
            | FailureKind::AnswerLimit => self.give_up(&turn, draft, failure, step),
        }
    }

    /// Ends the turn with an error. The text received so far is saved, unless the answer was over a
    /// limit.
    fn give_up(&mut self, turn: &Turn, draft: Draft, failure: Failure, step: &mut StepEffects) {
        let (code, retryable) = match failure.kind {
            FailureKind::Transient => ("provider", true),
            FailureKind::Refused => ("provider", false),
            FailureKind::ContextFull => ("context_full", false),
            FailureKind::Auth => ("auth", false),
            FailureKind::AnswerLimit => ("answer_limit", false),
        };
        let mut rows = Rows::at(self.place(step.now));
        if let Some(partial) = draft
            .partial()
            .filter(|_| failure.kind != FailureKind::AnswerLimit)
        {
            rows.message(partial);
        }
        let for_agents = failure.for_agents().to_owned();
        self.end_turn(
            turn,
            rows,
            TurnEnding::Failed {
                reason: failure.message,
                for_agents,
                code,
                retryable,
            },
            step,
        );
    }

    fn retry(&mut self, turn: Box<Turn>, failure: &Failure, jitter: f64, step: &mut StepEffects) {
        let delay = self.back_off(turn.failures, failure.retry_after, jitter);
        let attempt = turn.failures + 1;
        let ticket = self.counters.ticket();
        self.phase = Phase::Working(turn, TurnActivity::Retrying { ticket });
        let mut rows = Rows::at(self.place(step.now));
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        rows.event(&Event::Retry(Retry {
            attempt,
            delay_ms,
            reason: failure.message.clone(),
        }));
        self.save(rows, AgentState::Streaming, step);
        step.act(Effect::StartTimer { ticket, delay });
    }

    /// Returns the wait before the next try. The wait doubles with every failure up to `cap`, and
    /// is then shortened at random by up to half. If the provider asked for a longer wait, the
    /// result is that wait, but at most `cap`.
    fn back_off(&self, failures: u32, asked: Option<Duration>, jitter: f64) -> Duration {
        let rules = self.config.card.retry;
        let whole = rules
            .base
            .saturating_mul(1 << failures.saturating_sub(1).min(16))
            .min(rules.cap);
        whole
            .mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
            .max(asked.unwrap_or_default().min(rules.cap))
    }

    /// Handles a prompt that does not fit. Compacts the history once, whatever its estimated size,
    /// and repeats the request. Ends the turn if compaction would gain nothing.
    fn overflow(
        &mut self,
        mut turn: Box<Turn>,
        draft: Draft,
        failure: Failure,
        step: &mut StepEffects,
    ) {
        let Some(material) = self.compaction_if(!self.is_futile()) else {
            return self.give_up(&turn, draft, failure, step);
        };
        turn.overflowed = true;
        let mut rows = Rows::at(self.place(step.now));
        rows.event(&Event::Warning(Warning::new(
            "context_full",
            failure.message,
        )));
        self.save(rows, AgentState::Compacting, step);
        self.compact(turn, &material, step);
    }

    pub(super) fn timer_ended(&mut self, ticket: Ticket, step: &mut StepEffects) {
        if let Some((turn, _)) = self.phase.take_if(|activity| activity.is_retrying(ticket)) {
            return self.go_on(turn, Rows::at(self.place(step.now)), step);
        }
        if self
            .phase
            .turn()
            .is_some_and(|turn| turn.deadline == Some(ticket))
        {
            self.interrupt(
                "the turn's time is up",
                TurnEnding::Limit("max_turn_seconds"),
                step,
            );
        }
    }
}
