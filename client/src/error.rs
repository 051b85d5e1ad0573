//! The errors of calls.

use planck_bus::BusError;
use planck_common::reply::{Code, Refusal};

/// The reason why a call failed. Its text says what failed and, where possible, what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A node refused the command; the refusal has a [`Code`] and a text.
    #[error("{0}")]
    Refused(Refusal),
    /// No node answered, the request is too large, or the NATS servers cannot be reached or used.
    #[error("{0}{way}", way = way_out(.0))]
    Unreachable(BusError),
    /// A node answered in a form that this version cannot read. The node may have executed the
    /// command.
    #[error(
        "cannot read the answer to {to}: {what}; do node and client have neighbouring versions?"
    )]
    Malformed {
        /// The subject of the command.
        to: String,
        /// What is wrong with the answer.
        what: String,
    },
}

/// Returns advice for the errors of the bus whose text has none, otherwise an empty text.
fn way_out(error: &BusError) -> &'static str {
    match error {
        BusError::TimedOut { .. } => {
            "; a node may be dead or overloaded, and `planck nodes ls` shows them all"
        }
        BusError::NoResponders(_)
        | BusError::TooLarge { .. }
        | BusError::Denied(_)
        | BusError::Away(_)
        | BusError::Ended
        | BusError::Unfit(_) => "",
    }
}

/// The effect of a failed attempt, as far as the client can know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailedTry {
    /// No node executed the command.
    NotExecuted,
    /// A node may have executed the command.
    MaybeExecuted,
    /// The reason for the failure is not temporary.
    Final,
}

impl ClientError {
    /// Returns whether a node may have executed the command in the last attempt, although it
    /// failed. If so, look at the session before you repeat a command that is not idempotent.
    pub fn may_have_been_executed(&self) -> bool {
        match self {
            Self::Unreachable(BusError::TimedOut { .. } | BusError::Away(_) | BusError::Ended)
            | Self::Malformed { .. } => true,
            Self::Unreachable(
                BusError::NoResponders(_)
                | BusError::TooLarge { .. }
                | BusError::Denied(_)
                | BusError::Unfit(_),
            ) => false,
            Self::Refused(refusal) => {
                matches!(refusal.code, Code::OutcomeUnknown | Code::Internal)
            }
        }
    }

    pub(super) fn failed_try(&self) -> FailedTry {
        match self {
            Self::Refused(refusal) if refusal.retryable => FailedTry::NotExecuted,
            Self::Unreachable(BusError::NoResponders(_)) => FailedTry::NotExecuted,
            Self::Unreachable(BusError::TimedOut { .. } | BusError::Away(_)) => {
                FailedTry::MaybeExecuted
            }
            Self::Unreachable(
                BusError::TooLarge { .. }
                | BusError::Denied(_)
                | BusError::Ended
                | BusError::Unfit(_),
            )
            | Self::Refused(_)
            | Self::Malformed { .. } => FailedTry::Final,
        }
    }
}
