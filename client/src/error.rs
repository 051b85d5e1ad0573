//! Why a call came to nothing.

use planck_common::reply::Refusal;

use planck_bus::BusError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A node answered, and refused.
    #[error("{0}")]
    Refused(Refusal),
    /// No node answered, or NATS is away.
    #[error("{0}")]
    Unreachable(BusError),
    /// An answer that this version does not understand.
    #[error(
        "cannot read the answer to {to}: {what}; do node and client have neighbouring versions?"
    )]
    Malformed { to: String, what: String },
}

/// What a caller that may repeat itself knows of a failed try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// It was not done.
    NotDone,
    /// It may have been done.
    Unknown,
    /// Trying again is no use.
    Never,
}

impl ClientError {
    pub(super) fn again(&self) -> Again {
        match self {
            Self::Refused(refusal) if refusal.retryable => Again::NotDone,
            Self::Unreachable(BusError::NoResponders(_)) => Again::NotDone,
            Self::Unreachable(BusError::TimedOut { .. } | BusError::Away(_)) => Again::Unknown,
            Self::Unreachable(
                BusError::TooLarge { .. } | BusError::Denied(_) | BusError::Unfit(_),
            )
            | Self::Refused(_)
            | Self::Malformed { .. } => Again::Never,
        }
    }
}
