//! `[limits]` and `[compaction]`

use planck_common::spec;

use crate::config::setting::Size;

section! {
    /// What ends a turn early, and what bounds a session.
    Limits {
        /// Model calls in one turn of an agent.
        max_requests_per_turn: u32 = 200;
        /// Tokens of one agent.
        max_tokens: Option<u64> = None;
        /// US dollars of one agent.
        max_cost_usd: Option<f64> = None;
        /// Seconds of one turn.
        max_turn_seconds: Option<u64> = None;
        /// Over all agents of a session.
        session: SessionLimits = SessionLimits::default();
        /// The largest prompt, as JSON; more than NATS' `max_payload` never arrives.
        max_prompt: Size = Size::mebibytes(8);
        /// Inboxes.
        inbox: InboxLimits = InboxLimits::default();
        /// Answers.
        answer: AnswerLimits = AnswerLimits::default();
    }
}

section! {
    /// What may wait unread; what is over is refused.
    InboxLimits {
        /// Unread inputs of one agent, all together.
        max_bytes: Size = Size::mebibytes(64);
        /// Unread inputs of one agent.
        max_inputs: u32 = 10_000;
        /// Unread inputs of all agents of a session, all together.
        max_session_bytes: Size = Size::mebibytes(256);
    }
}

section! {
    /// What one answer of a model may hold; what is over is cut, none of it is kept, and the turn
    /// ends with an error.
    AnswerLimits {
        /// Text, thoughts and arguments of one answer.
        max_bytes: Size = Size::mebibytes(8);
        /// Tool calls of one answer.
        max_calls: u32 = 128;
    }
}

section! {
    /// What bounds a session over all its agents.
    SessionLimits {
        /// Tokens of all agents of a session.
        max_tokens: Option<u64> = None;
        /// US dollars of all agents of a session.
        max_cost_usd: Option<f64> = None;
        /// Agents of a session.
        max_agents: u32 = 1_000;
        /// How deep questions may ask in turn.
        max_ask_depth: u32 = 16;
    }
}

section! {
    /// When and how a conversation that has grown too long is summarised.
    Compaction {
        /// The share of the context window at which it happens.
        ratio: f64 = 0.8;
        /// Messages that stay as they are, at least.
        keep_recent: u32 = 10;
    }
}

impl Limits {
    pub fn of_agent(&self) -> spec::AgentLimits {
        spec::AgentLimits {
            max_requests_per_turn: Some(self.max_requests_per_turn),
            max_tokens: self.max_tokens,
            max_cost_usd: self.max_cost_usd,
            max_turn_seconds: self.max_turn_seconds,
        }
    }

    pub fn of_session(&self) -> spec::SessionLimits {
        spec::SessionLimits {
            max_tokens: self.session.max_tokens,
            max_cost_usd: self.session.max_cost_usd,
            max_agents: Some(self.session.max_agents),
            max_ask_depth: Some(self.session.max_ask_depth),
        }
    }
}
