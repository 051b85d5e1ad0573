//! The promises that are checked.

use serde::Serialize;

use crate::evidence::FaultKind;

/// A promise that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    Answered,
    Dense,
    Once,
    Same,
    Verdict,
    GoesOn,
    NoFalseVerdict,
    FrozenWritesNothing,
    TeamEnds,
    Drain,
    NatsAway,
    NatsWiped,
    ServerLost,
    StoreAway,
    DecidedOnce,
    NothingRefused,
    NothingLeft,
}

impl Promise {
    pub const ALL: [Self; 17] = [
        Self::Answered,
        Self::Once,
        Self::Dense,
        Self::Same,
        Self::Verdict,
        Self::GoesOn,
        Self::NoFalseVerdict,
        Self::FrozenWritesNothing,
        Self::TeamEnds,
        Self::Drain,
        Self::NatsAway,
        Self::NatsWiped,
        Self::ServerLost,
        Self::StoreAway,
        Self::DecidedOnce,
        Self::NothingRefused,
        Self::NothingLeft,
    ];

    /// Returns the faults that test the promise, the usual one first.
    pub const fn faults(self) -> &'static [FaultKind] {
        match self {
            Self::FrozenWritesNothing => &[FaultKind::Freeze],
            Self::Drain => &[FaultKind::Drain],
            Self::NatsAway => &[FaultKind::NatsAway, FaultKind::NatsKilled],
            Self::NatsWiped => &[FaultKind::NatsWiped],
            Self::ServerLost => &[FaultKind::LeaderKilled],
            Self::StoreAway => &[FaultKind::StoreAway, FaultKind::StoreCut],
            Self::Verdict | Self::GoesOn => &[FaultKind::Kill],
            Self::TeamEnds => &[FaultKind::Team],
            Self::Answered
            | Self::Once
            | Self::Dense
            | Self::Same
            | Self::NoFalseVerdict
            | Self::DecidedOnce
            | Self::NothingRefused
            | Self::NothingLeft => &[],
        }
    }

    /// Returns the promise as a sentence.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Answered => "a prompt that was accepted is answered, once",
            Self::Once => "no tool call runs twice",
            Self::Dense => "the log of a session has no gap",
            Self::Same => "a late reader reads what an early one read",
            Self::Verdict => "a dead node is found",
            Self::GoesOn => "a session goes on after its node died",
            Self::NoFalseVerdict => "no node that works is given up",
            Self::FrozenWritesNothing => "a node that was given up writes nothing",
            Self::TeamEnds => "a team ends with its orchestrator's node",
            Self::Drain => "a node that leaves hands its work over",
            Self::NatsAway => "NATS may be away",
            Self::NatsWiped => "NATS may lose its data",
            Self::ServerLost => "NATS may lose one of its servers",
            Self::StoreAway => "the database may be away",
            Self::DecidedOnce => "a wait is decided once",
            Self::NothingRefused => "no provider would refuse a request",
            Self::NothingLeft => "no process is left behind",
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Once => "once",
            Self::Dense => "dense",
            Self::Same => "same",
            Self::Verdict => "verdict",
            Self::GoesOn => "goes-on",
            Self::NoFalseVerdict => "no-false-verdict",
            Self::FrozenWritesNothing => "frozen-writes-nothing",
            Self::TeamEnds => "team-ends",
            Self::Drain => "drain",
            Self::NatsAway => "nats-away",
            Self::NatsWiped => "nats-wiped",
            Self::ServerLost => "server-lost",
            Self::StoreAway => "store-away",
            Self::DecidedOnce => "decided-once",
            Self::NothingRefused => "nothing-refused",
            Self::NothingLeft => "nothing-left",
        }
    }
}
