//! Inputs: new inputs, stored inputs, and the queue of inputs that wait for a turn.

use std::{collections::VecDeque, fmt};

use planck_common::{
    AgentId, InputId, Seq, Timestamp,
    command::InputMode,
    event::{InputKind, TurnOutcome, json},
    message::Part,
    message::Sender,
    spec::OutputSpec,
};

/// An input to put into an agent's inbox.
#[derive(Debug, Clone, PartialEq)]
pub struct NewInput {
    pub id: InputId,
    /// The agent into whose inbox the input goes.
    pub agent: AgentId,
    pub kind: InputKind,
    pub mode: InputMode,
    /// The agent that sent the input; `None` for a client or the runtime.
    pub sender: Option<Sender>,
    /// The name of the person or program that sent the prompt, as the prompt says. The store keeps
    /// it only for inputs without a sender.
    pub by: Option<String>,
    /// The task that a response or note is about.
    pub reply_to: Option<InputId>,
    /// The content parts as JSON.
    pub content: String,
    /// Whether the turn that the input opens begins with an empty context.
    pub fresh: bool,
    /// The shape of the answer. The input opens a turn of its own if it has one.
    pub output: Option<OutputSpec>,
    pub at: Timestamp,
}

impl NewInput {
    /// Returns the content parts. Content that this version cannot read is returned as text.
    pub fn parts(&self) -> Vec<Part> {
        serde_json::from_str(&self.content).unwrap_or_else(|_| vec![Part::text(&self.content)])
    }

    /// Returns the shape of the answer as JSON.
    pub fn output_json(&self) -> Option<String> {
        self.output.as_ref().map(json)
    }

    /// Returns the size of what the input brings to an inbox, in bytes.
    pub fn size(&self) -> usize {
        self.content.len() + self.output_json().map_or(0, |output| output.len())
    }

    /// Returns whether the input joins no turn that other inputs opened.
    fn is_alone(&self) -> bool {
        self.fresh || self.output.is_some()
    }

    /// Returns the name of the agent, person or program that sent the input.
    pub fn sender_name(&self) -> Option<&str> {
        match &self.sender {
            Some(sender) => Some(&sender.name),
            None => self.by.as_deref(),
        }
    }
}

/// A row of an inbox.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredInput {
    pub input: NewInput,
    /// The number of the last row in the session's log when the input was added.
    pub head: Seq,
    /// The turn that consumed the input; `None` while the input is unread.
    pub turn: Option<u32>,
    pub outcome: Option<InputOutcome>,
    /// The text that answers a question.
    pub answer: Option<String>,
    /// Whether the input's sender waits for the answer.
    pub waiting: bool,
}

impl StoredInput {
    /// Returns a row that was just added, with the number of the log's last row before it.
    pub fn unread(input: NewInput, head: Seq) -> Self {
        Self {
            input,
            head,
            turn: None,
            outcome: None,
            answer: None,
            waiting: false,
        }
    }

    /// Returns whether no turn has consumed the input and it has no outcome.
    pub fn is_unread(&self) -> bool {
        self.turn.is_none() && self.outcome.is_none()
    }
}

/// The outcome of an input. The store holds its [`name`](Self::name).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputOutcome {
    /// The turn that consumed the input ended with this outcome.
    Turn(TurnOutcome),
    /// The turn that consumed the input failed.
    Failed,
    /// The agent was working, and the input was sent with [`InputMode::Reject`].
    Busy,
    /// The agent ended before it read the input.
    Stopped,
    /// A rewind hid the message that the input became.
    Rewound,
    /// The sender withdrew the input before it was read.
    Withdrawn,
    /// An outcome that only a later version knows.
    Other(String),
}

impl InputOutcome {
    pub fn name(&self) -> &str {
        match self {
            Self::Turn(outcome) => outcome.name(),
            Self::Failed => "error",
            Self::Busy => "busy",
            Self::Stopped => "stopped",
            Self::Rewound => "rewound",
            Self::Withdrawn => "withdrawn",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for InputOutcome {
    fn from(name: &str) -> Self {
        match name {
            "error" => Self::Failed,
            "busy" => Self::Busy,
            "stopped" => Self::Stopped,
            "rewound" => Self::Rewound,
            "withdrawn" => Self::Withdrawn,
            other => TurnOutcome::find(other).map_or_else(|| Self::Other(other.into()), Self::Turn),
        }
    }
}

impl fmt::Display for InputOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The inputs that are not yet in a turn, in order of acceptance.
#[derive(Debug, Default)]
pub(super) struct InputQueue {
    waiting: VecDeque<NewInput>,
    /// Inputs of which one may hold data that cannot be stored. Each gets a turn of its own.
    suspects: Vec<InputId>,
}

impl InputQueue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn holds(&self, id: &InputId) -> bool {
        self.waiting.iter().any(|input| input.id == *id)
    }

    pub(super) fn push(&mut self, input: NewInput) {
        self.waiting.push_back(input);
    }

    pub(super) fn isolate(&mut self, ids: &[InputId]) {
        self.suspects.extend_from_slice(ids);
    }

    /// Removes an input from the queue and returns it. Returns `None` if the queue does not contain
    /// the input.
    pub(super) fn take(&mut self, id: &InputId) -> Option<NewInput> {
        let at = self.waiting.iter().position(|input| input.id == *id)?;
        self.waiting.remove(at)
    }

    pub(super) fn remove(&mut self, ids: &[InputId]) {
        self.waiting.retain(|input| !ids.contains(&input.id));
    }

    pub(super) fn drain(&mut self) -> Vec<NewInput> {
        self.waiting.drain(..).collect()
    }

    /// Takes the inputs of the next turn: the waiting inputs before the first that is fresh, has a
    /// shape or is a suspect. Such an input opens a turn, and one with a shape or a suspect shares
    /// it with no other.
    pub(super) fn take_next(&mut self) -> Vec<NewInput> {
        let suspects = std::mem::take(&mut self.suspects);
        let is_suspect = |input: &NewInput| suspects.contains(&input.id);
        let count = match self.waiting.front() {
            Some(first) if is_suspect(first) || first.output.is_some() => 1,
            _ => {
                let alone = self
                    .waiting
                    .iter()
                    .position(|input| input.is_alone() || is_suspect(input));
                alone.map_or(self.waiting.len(), |at| at.max(1))
            }
        };
        let next = self.waiting.drain(..count).collect();
        self.suspects = suspects.into_iter().filter(|id| self.holds(id)).collect();
        next
    }

    pub(super) fn steers(&self) -> bool {
        self.waiting.iter().any(|input| self.joins(input))
    }

    fn joins(&self, input: &NewInput) -> bool {
        input.mode == InputMode::Steer && !input.is_alone() && !self.suspects.contains(&input.id)
    }

    /// Takes the inputs that join the running turn.
    pub(super) fn take_steered(&mut self) -> Vec<NewInput> {
        let waiting = std::mem::take(&mut self.waiting);
        let (steered, rest): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|input| self.joins(input));
        self.waiting = rest;
        steered.into()
    }

    /// Puts the inputs that could not be consumed back to the front of the queue, except those in
    /// `gone`.
    pub(super) fn put_back(&mut self, taken: Vec<NewInput>, gone: &[InputId]) {
        for input in taken
            .into_iter()
            .rev()
            .filter(|input| !gone.contains(&input.id))
        {
            self.waiting.push_front(input);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_is_read_as_it_was_written() {
        let turns = [
            TurnOutcome::Completed,
            TurnOutcome::Aborted,
            TurnOutcome::Truncated,
            TurnOutcome::Limit,
        ];
        let others = [
            InputOutcome::Failed,
            InputOutcome::Busy,
            InputOutcome::Stopped,
            InputOutcome::Rewound,
            InputOutcome::Withdrawn,
            InputOutcome::Other("postponed".into()),
        ];
        for outcome in turns.map(InputOutcome::Turn).into_iter().chain(others) {
            assert_eq!(InputOutcome::from(outcome.name()), outcome);
        }
    }
}
