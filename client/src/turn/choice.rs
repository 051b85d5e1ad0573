//! Which turn of an agent is read.

use planck_common::{
    InputId,
    event::{TurnStart, Warning},
    message::Message,
};

/// The code of the warning that an input was refused because the agent was busy.
pub(super) const REJECTED: &str = "input_rejected";

/// Which turn of an agent a reader returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnChoice {
    /// The turn that takes this input, whether the input opens the turn or joins it.
    Of(InputId),
    /// The turn with this number.
    Number(u32),
}

impl TurnChoice {
    /// Returns whether this event opens the turn.
    pub(super) fn is_opened(&self, start: &TurnStart) -> bool {
        match self {
            Self::Of(input) => start.inputs.iter().any(|known| known.id == *input),
            Self::Number(number) => start.index == *number,
        }
    }

    /// Returns whether the wanted input joins a running turn with this message.
    pub(super) fn is_joined(&self, message: &Message) -> bool {
        self.input()
            .is_some_and(|input| message.metadata.inputs.contains(input))
    }

    /// Returns whether this warning says that the wanted input was refused.
    pub(super) fn is_refused(&self, warning: &Warning) -> bool {
        let refused = |input| warning.inputs.contains(input);
        warning.code == REJECTED && self.input().is_some_and(refused)
    }

    /// Returns the input whose turn is wanted.
    pub(super) fn input(&self) -> Option<&InputId> {
        match self {
            Self::Of(input) => Some(input),
            Self::Number(_) => None,
        }
    }
}
