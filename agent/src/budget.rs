//! Limits that ask: the turn waits until a person raises the limit or ends the turn.

use serde_json::{json, value::to_raw_value};

use planck_common::{
    CallId,
    event::Event,
    spec::{AgentLimits, OnLimit},
    wait::{WaitAnswer, WaitDecision, WaitKind, WaitOpened},
};

use super::{
    Agent, Effect, StepEffects,
    phase::{LimitWait, Phase, Turn, TurnActivity, TurnEnding},
    saves::Rows,
    waiting::{closed, withdrawn},
};
use crate::waiting::digest_of_call;

/// The part of a call's place that no call of an answer has. It stands for a limit.
const NO_PART: usize = usize::MAX;

impl Agent {
    /// Ends a turn that has reached a limit, or lets it wait for a decision about the limit.
    pub(super) fn at_limit(
        &mut self,
        mut turn: Box<Turn>,
        mut rows: Rows,
        limit: &'static str,
        step: &mut StepEffects,
    ) {
        let asks = self.config.spec.limits.on_limit == Some(OnLimit::Ask);
        let Some((max, used)) = self.reached(limit).filter(|_| asks) else {
            return self.end_turn(&turn, rows, TurnEnding::Limit(limit), step);
        };
        let opened = self.limit_question(limit, max, used, step);
        let id = opened.id.clone();
        rows.event(&Event::WaitOpened(opened));
        turn.pause(step.now);
        self.stop_clock(&mut turn, step);
        self.phase = Phase::Working(turn, TurnActivity::AtLimit(LimitWait { id, limit }));
        self.save(rows, self.phase.state(), step);
        step.act(Effect::CheckWaits);
    }

    /// Returns the value of one of the agent's own limits, and what the agent has used of it.
    /// Returns `None` for a limit of the session, which no answer raises.
    fn reached(&self, limit: &str) -> Option<(f64, f64)> {
        let AgentLimits {
            max_requests_per_turn,
            max_tokens,
            max_cost_usd,
            ..
        } = self.config.spec.limits;
        match limit {
            "max_requests_per_turn" => {
                let max = max_requests_per_turn.unwrap_or(self.settings.max_requests_per_turn);
                Some((f64::from(max), f64::from(self.counters.request)))
            }
            "max_tokens" => Some((max_tokens? as f64, self.totals.agent.tokens() as f64)),
            "max_cost_usd" => Some((max_cost_usd?, self.totals.agent.cost_usd)),
            _ => None,
        }
    }

    fn limit_question(&self, limit: &str, max: f64, used: f64, step: &StepEffects) -> WaitOpened {
        let request = json!({ "limit": limit, "max": max, "used": used });
        let kind = if is_counted(limit) {
            "integer"
        } else {
            "number"
        };
        let schema = json!({ "type": kind, "exclusiveMinimum": used.max(max) });
        let id = &self.identity;
        let (turn, request_number) = (self.counters.turn, self.counters.request);
        WaitOpened {
            id: CallId::of(
                &id.session,
                &id.agent,
                id.epoch,
                turn,
                request_number,
                NO_PART,
            ),
            call_id: None,
            kind: WaitKind::Budget,
            title: format!("{limit} is reached: {used} of {max}"),
            digest: digest_of_call("limit", limit, &request.to_string()),
            request: to_raw_value(&request).unwrap_or_default(),
            options: None,
            schema: to_raw_value(&schema).ok(),
            rule: None,
            state: None,
            expires_at: self.expiry(step.now),
        }
    }

    pub(super) fn decides_limit(&self, id: &CallId) -> bool {
        matches!(&self.phase, Phase::Working(_, TurnActivity::AtLimit(wait)) if wait.id == *id)
    }

    /// Continues the turn with the raised limit, or ends the turn.
    pub(super) fn limit_decided(&mut self, answer: &WaitAnswer, step: &mut StepEffects) {
        let at_limit = |activity: &TurnActivity| activity.limit_wait().is_some();
        let Some((mut turn, TurnActivity::AtLimit(LimitWait { id, limit }))) =
            self.phase.take_if(at_limit)
        else {
            return;
        };
        let mut rows = Rows::at(self.place(step.now));
        rows.event(&closed(id, None, answer));
        let raised = (answer.decision == WaitDecision::Allow)
            .then(|| serde_json::from_str(answer.value.as_ref()?.get()).ok())
            .flatten();
        let is_raised = raised.is_some_and(|max| self.raise(limit, max));
        if !is_raised {
            return self.end_turn(&turn, rows, TurnEnding::Limit(limit), step);
        }
        step.act(Effect::RecordSpec);
        if turn.resume(step.now) {
            self.set_deadline(&mut turn, step);
        }
        self.go_on(turn, rows, step);
    }

    /// Sets a limit to a higher value. Returns whether the value is higher than what the agent has
    /// used.
    fn raise(&mut self, limit: &str, max: f64) -> bool {
        let max = if is_counted(limit) { max.floor() } else { max };
        if self.reached(limit).is_none_or(|(_, used)| max <= used) {
            return false;
        }
        let limits = &mut self.config.spec.limits;
        match limit {
            "max_requests_per_turn" => limits.max_requests_per_turn = Some(max as u32),
            "max_tokens" => limits.max_tokens = Some(max as u64),
            "max_cost_usd" => limits.max_cost_usd = Some(max),
            _ => return false,
        }
        true
    }

    /// Waits on for the decision about a limit after the agent was loaded. If the limit is no
    /// longer reached, the wait is withdrawn and the turn continues.
    pub(super) fn wait_at_limit(
        &mut self,
        mut turn: Box<Turn>,
        id: CallId,
        step: &mut StepEffects,
    ) {
        step.act(Effect::Turn { open: true });
        if let Some(limit) = self.limit_reached() {
            self.phase = Phase::Working(turn, TurnActivity::AtLimit(LimitWait { id, limit }));
            return;
        }
        let mut rows = Rows::at(self.place(step.now));
        rows.event(&withdrawn(id, None, "the limit is no longer reached"));
        turn.resume(step.now);
        self.set_deadline(&mut turn, step);
        self.go_on(turn, rows, step);
    }
}

/// Returns whether a limit is a number of something, and not an amount of money.
fn is_counted(limit: &str) -> bool {
    limit != "max_cost_usd"
}
