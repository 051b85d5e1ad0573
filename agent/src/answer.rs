//! Handles the model's reply: publishes it while it streams, saves it when it is complete, and
//! decides what the turn does next.

use planck_common::{
    CallId,
    command::Prices,
    event::{Event, EventKind, UsageDelta, Warning},
    message::{MessageBody, MessageMetadata, MessageRole, Part, StopReason},
    usage::Usage,
};

use super::{
    Agent, AgentIdentity, Counters, StepEffects, Ticket,
    draft::Draft,
    phase::{Phase, Turn, TurnActivity, TurnEnding},
    round::{AnswerFault, Round},
    saves::Rows,
};
use crate::model::{Chunk, Failure, Finish};

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
        let content = self.content(draft);
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
        let ending = AnswerFault::of(stop).map_or(TurnEnding::Completed, TurnEnding::from);
        self.end_turn(&turn, rows, ending, step);
    }

    fn content(&self, draft: Draft) -> Vec<Part> {
        let AgentIdentity {
            session,
            agent,
            epoch,
        } = &self.identity;
        let Counters { turn, request, .. } = self.counters;
        draft.content(|part| CallId::of(session, agent, *epoch, turn, request, part))
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
