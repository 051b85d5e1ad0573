//! The sections `[limits]` and `[compaction]`.

use planck_common::spec;

use crate::config::setting::{LimitReaction, Size};

section! {
    /// The limits of a turn, an agent, a session, a prompt and an answer. A team, a start or an
    /// orchestrator can lower those of an agent and of a session, and not raise them.
    Limits {
        /// The maximum number of model calls in one turn of an agent.
        max_requests_per_turn: u32 = 200;
        /// The maximum number of tokens that one agent may use.
        max_tokens: Option<u64> = None;
        /// The highest cost of one agent in US dollars.
        max_cost_usd: Option<f64> = None;
        /// The longest duration of one turn in seconds.
        max_turn_seconds: Option<u64> = None;
        /// What happens when an agent reaches `max_requests_per_turn`, `max_tokens` or
        /// `max_cost_usd`: its turn ends (`end`), or waits until a person raises the limit (`ask`).
        on_limit: LimitReaction = LimitReaction::End;
        /// The limits over all agents of a session.
        session: SessionLimits = SessionLimits::default();
        /// The largest prompt, as JSON. NATS refuses prompts beyond its own `max_payload`.
        max_prompt: Size = Size::mebibytes(8);
        /// The limits of inboxes.
        inbox: InboxLimits = InboxLimits::default();
        /// The limits of answers.
        answer: AnswerLimits = AnswerLimits::default();
    }
}

section! {
    /// The limits of unread inputs. An input that exceeds one is refused.
    InboxLimits {
        /// The largest total size of the unread inputs of one agent.
        max_bytes: Size = Size::mebibytes(64);
        /// The maximum number of unread inputs of one agent.
        max_inputs: u32 = 10_000;
        /// The largest total size of the unread inputs of all agents of a session.
        max_session_bytes: Size = Size::mebibytes(256);
    }
}

section! {
    /// The limits of one answer of a model. An answer that exceeds one is cut and discarded, and
    /// the turn ends with an error.
    AnswerLimits {
        /// The largest size of the text, thoughts and arguments of one answer.
        max_bytes: Size = Size::mebibytes(8);
        /// The maximum number of tool calls in one answer.
        max_calls: u32 = 128;
    }
}

section! {
    /// The limits of a session over all its agents.
    SessionLimits {
        /// The maximum number of tokens that all agents of a session may use together.
        max_tokens: Option<u64> = None;
        /// The highest cost of all agents of a session together, in US dollars.
        max_cost_usd: Option<f64> = None;
        /// The maximum number of agents in a session.
        max_agents: u32 = 1_000;
        /// The longest chain of agents that wait for answers to their questions.
        max_ask_depth: u32 = 16;
    }
}

section! {
    /// When and how a conversation that has grown too long is summarised.
    Compaction {
        /// The share of the context window at which a conversation is compacted.
        ratio: f64 = 0.8;
        /// The minimum number of recent messages that are kept unchanged.
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
            on_limit: (self.on_limit == LimitReaction::Ask).then_some(spec::OnLimit::Ask),
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
