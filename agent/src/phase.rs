//! The phases of an agent. Each phase holds only the data that is valid in it, and a turn has
//! exactly one owner.

use planck_common::{
    AgentId, CallId, InputId, Timestamp,
    command::AgentState,
    event::{Event, InputKind, TurnInput},
    message::{Part, text_of},
    usage::Usage,
};

use super::{
    Ticket,
    draft::Draft,
    guard::LoopGuard,
    output::TurnOutput,
    round::{AnswerFault, Round},
};

#[derive(Debug)]
pub(super) enum Phase {
    Idle,
    Working(Box<Turn>, TurnActivity),
    /// The agent's end is being saved.
    Stopping(Stopping),
    Stopped,
}

/// How an agent ends.
#[derive(Debug)]
pub(super) struct Stopping {
    pub reason: String,
    pub for_good: bool,
    /// Events to write as the last rows of the agent.
    pub last: Vec<Event>,
}

/// What an open turn waits for.
#[derive(Debug)]
pub(super) enum TurnActivity {
    /// A save. The turn continues when it is committed.
    Saving,
    Streaming {
        ticket: Ticket,
        draft: Draft,
    },
    Retrying {
        ticket: Ticket,
    },
    UsingTools(Round),
    /// Calls that were cancelled. The turn ends when all of them have returned their output so far.
    WindingDown {
        round: Round,
        why: String,
        ending: TurnEnding,
    },
    Compacting {
        ticket: Ticket,
    },
    /// A person who raises the limit that the agent has reached, or ends the turn.
    AtLimit(LimitWait),
}

/// The wait for a decision about a limit.
#[derive(Debug)]
pub(super) struct LimitWait {
    pub id: CallId,
    /// The name of the limit.
    pub limit: &'static str,
}

/// An open turn.
#[derive(Debug)]
pub(super) struct Turn {
    pub inputs: Vec<TurnInput>,
    /// Tasks that got a response from this turn.
    pub responded: Vec<InputId>,
    pub since: Timestamp,
    /// The ticket of the wait that ends the turn after its maximum duration.
    pub deadline: Option<Ticket>,
    pub usage: Usage,
    /// The model's latest text.
    pub text: Option<String>,
    pub output: Option<TurnOutput>,
    pub guard: LoopGuard,
    /// When the first of the waits was opened that are open now. `since` is moved forward by the
    /// time in which waits are open, so that this time does not count towards the turn's duration.
    pub paused_at: Option<Timestamp>,
    /// The number of consecutive failed requests.
    pub failures: u32,
    /// Whether the provider has refused the context as full since the last answer.
    pub overflowed: bool,
}

/// How a turn ends.
#[derive(Debug)]
pub(super) enum TurnEnding {
    Completed,
    Aborted {
        reason: Option<String>,
    },
    /// The turn is aborted because the session closes or the team ends. The senders of unanswered
    /// tasks get no note, because these agents stop as well.
    Closed,
    Truncated,
    /// The model refused to answer, or a filter of its provider stopped the answer.
    Refused,
    Limit(&'static str),
    Failed {
        reason: String,
        /// The text that the asker of a question and the sender of a task get instead of the
        /// reason.
        for_agents: String,
        code: &'static str,
        retryable: bool,
    },
}

impl From<AnswerFault> for TurnEnding {
    fn from(fault: AnswerFault) -> Self {
        match fault {
            AnswerFault::Cut => Self::Truncated,
            AnswerFault::Refused => Self::Refused,
        }
    }
}

impl Turn {
    pub(super) fn new(inputs: Vec<TurnInput>, since: Timestamp) -> Self {
        Self {
            inputs,
            responded: Vec::new(),
            since,
            deadline: None,
            paused_at: None,
            usage: Usage::default(),
            text: None,
            output: None,
            guard: LoopGuard::default(),
            failures: 0,
            overflowed: false,
        }
    }

    /// Stops the turn's clock, unless it is stopped already.
    pub(super) fn pause(&mut self, now: Timestamp) {
        self.paused_at.get_or_insert(now);
    }

    /// Starts the turn's clock again. Returns whether it was stopped.
    pub(super) fn resume(&mut self, now: Timestamp) -> bool {
        let Some(paused_at) = self.paused_at.take() else {
            return false;
        };
        let paused = i64::try_from(now.millis_since(paused_at)).unwrap_or(i64::MAX);
        self.since = Timestamp::from_millis(self.since.millis().saturating_add(paused));
        true
    }

    /// Keeps the text of an answer as the turn's latest text, unless the text is empty.
    pub(super) fn keep_text(&mut self, content: &[Part]) {
        let text = text_of(content);
        if !text.is_empty() {
            self.text = Some(text);
        }
    }

    /// Returns the tasks that agents sent and that got no response, each with its sender.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = (&InputId, &AgentId)> {
        let tasks = self
            .inputs
            .iter()
            .filter(|input| input.kind == InputKind::Task && !self.responded.contains(&input.id));
        tasks.filter_map(|task| Some((&task.id, task.from.as_ref()?)))
    }
}

impl Phase {
    pub(super) fn state(&self) -> AgentState {
        match self {
            Self::Idle => AgentState::Idle,
            Self::Working(_, activity) => activity.state(),
            Self::Stopping(_) | Self::Stopped => AgentState::Stopped,
        }
    }

    pub(super) fn turn(&self) -> Option<&Turn> {
        match self {
            Self::Working(turn, _) => Some(turn),
            Self::Idle | Self::Stopping(_) | Self::Stopped => None,
        }
    }

    /// Returns the calls of the running round, if there is one.
    pub(super) fn round(&self) -> Option<&Round> {
        match self {
            Self::Working(_, activity) => activity.round(),
            Self::Idle | Self::Stopping(_) | Self::Stopped => None,
        }
    }

    /// Takes the turn out of the phase if its activity fits. Otherwise returns `None` and changes
    /// nothing. The caller must put the turn back or end it.
    pub(super) fn take_if(
        &mut self,
        fits: impl FnOnce(&TurnActivity) -> bool,
    ) -> Option<(Box<Turn>, TurnActivity)> {
        match std::mem::replace(self, Self::Idle) {
            Self::Working(turn, activity) if fits(&activity) => Some((turn, activity)),
            other @ (Self::Idle | Self::Working(..) | Self::Stopping { .. } | Self::Stopped) => {
                *self = other;
                None
            }
        }
    }
}

impl TurnActivity {
    fn state(&self) -> AgentState {
        match self {
            Self::Saving | Self::Streaming { .. } | Self::Retrying { .. } => AgentState::Streaming,
            Self::UsingTools(round) if round.only_waits() => AgentState::Waiting,
            Self::UsingTools(_) | Self::WindingDown { .. } => AgentState::ExecutingTools,
            Self::Compacting { .. } => AgentState::Compacting,
            Self::AtLimit(_) => AgentState::Waiting,
        }
    }

    pub(super) fn is_compacting(&self, asked: Ticket) -> bool {
        matches!(self, Self::Compacting { ticket } if *ticket == asked)
    }

    pub(super) fn is_retrying(&self, asked: Ticket) -> bool {
        matches!(self, Self::Retrying { ticket } if *ticket == asked)
    }

    pub(super) fn limit_wait(&self) -> Option<&LimitWait> {
        match self {
            Self::AtLimit(wait) => Some(wait),
            Self::Saving
            | Self::Streaming { .. }
            | Self::Retrying { .. }
            | Self::UsingTools(_)
            | Self::WindingDown { .. }
            | Self::Compacting { .. } => None,
        }
    }

    pub(super) fn is_saving(&self) -> bool {
        matches!(self, Self::Saving)
    }

    pub(super) fn is_winding_down(&self) -> bool {
        matches!(self, Self::WindingDown { .. })
    }

    pub(super) fn round(&self) -> Option<&Round> {
        match self {
            Self::UsingTools(round) | Self::WindingDown { round, .. } => Some(round),
            Self::Saving
            | Self::Streaming { .. }
            | Self::Retrying { .. }
            | Self::Compacting { .. }
            | Self::AtLimit(_) => None,
        }
    }

    pub(super) fn round_mut(&mut self) -> Option<&mut Round> {
        match self {
            Self::UsingTools(round) | Self::WindingDown { round, .. } => Some(round),
            Self::Saving
            | Self::Streaming { .. }
            | Self::Retrying { .. }
            | Self::Compacting { .. }
            | Self::AtLimit(_) => None,
        }
    }

    /// Returns whether the turn uses tools and all calls of the round have their result.
    pub(super) fn is_answered(&self) -> bool {
        self.round().is_some_and(|round| !round.is_open())
    }

    pub(super) fn into_draft(self) -> Draft {
        match self {
            Self::Streaming { draft, .. } => draft,
            Self::Saving
            | Self::Retrying { .. }
            | Self::UsingTools(_)
            | Self::WindingDown { .. }
            | Self::Compacting { .. }
            | Self::AtLimit(_) => Draft::default(),
        }
    }

    pub(super) fn is_streaming(&self, asked: Ticket) -> bool {
        matches!(self, Self::Streaming { ticket, .. } if *ticket == asked)
    }
}
