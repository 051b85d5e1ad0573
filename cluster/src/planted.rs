//! Faults that a test plants into the product's code, to show that the simulation finds them.
//! Without `cfg(test)`, `is_planted` is constant and costs nothing.

/// A fault that a test can plant. Each comment names the files whose code the fault changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedFault {
    /// A claim takes the lease even if its epoch has changed since it was read (`claiming.rs`).
    ClaimAtAnyEpoch,
    /// A claim neither stops the members of the last incarnation nor waits for them
    /// (`claiming.rs`).
    ClaimWithoutStop,
    /// An agent can be claimed although a living node holds its lease (`recovery.rs`).
    ClaimFromTheLiving,
    /// A death is written without the condition on the observer's own record
    /// (`registry/nodes.rs`).
    DeathWithoutProof,
    /// A node continues to work without a recent proof (`membership.rs`).
    WorkWithoutProof,
    /// An observer counts silence up to now, not up to its newest own heartbeat that came back
    /// (`membership/failure_detector.rs`).
    SilenceBeyondEcho,
    /// Tools start while the tools of a dead node may still run (`recovery.rs`).
    ToolsBeforeGraceOfDead,
    /// Tools start while the tools of a node that did not confirm its stop may still run
    /// (`claiming.rs`).
    ToolsBeforeGraceOfSilent,
    /// Tools start before a node that lost only NATS reads in SQL that it lost its lease
    /// (`claiming.rs`, `recovery.rs`).
    ToolsBeforeLossIsSeen,
    /// The tools of a member that its node claims again do not wait for those of the previous
    /// incarnation (`recovery.rs`).
    ToolsBeforeGraceOfMember,
    /// The end of an incarnation stops the later ones too (`cascade.rs`).
    EndOfAllIncarnations,
    /// A team is marked dead at any revision of its record (`registry/teams.rs`).
    EndOfMovedTeam,
    /// A node does not drop agents whose leases other nodes took (`recovery.rs`).
    SupersededRunOn,
    /// A session whose close was interrupted continues (`recovery.rs`).
    CloseForgotten,
    /// A sweep does not return agents with answered waits. This fault and the following ones about
    /// waits change the simulated store or the simulated agents.
    #[cfg(any(test, feature = "simulation"))]
    AnsweredWaitsUnswept,
    /// A wait that was answered takes another answer (simulation).
    #[cfg(any(test, feature = "simulation"))]
    SecondAnswerAccepted,
    /// A wait that has expired, but that no sweep has seen yet, takes an answer (simulation).
    #[cfg(any(test, feature = "simulation"))]
    AnswerAfterExpiry,
    /// The row that opened a wait opens it again if an agent repeats the append (simulation).
    #[cfg(any(test, feature = "simulation"))]
    RepeatedRowReopens,
    /// A new host starts a call that waits for an answer (simulation).
    #[cfg(any(test, feature = "simulation"))]
    OpenWaitForgotten,
    /// The row that ends a turn for an abort does not withdraw the wait (simulation).
    #[cfg(any(test, feature = "simulation"))]
    AbortKeepsWait,
    /// A sweep of SQLite does not see the inputs that its node put for agents of its own
    /// (simulation).
    #[cfg(any(test, feature = "simulation"))]
    OwnPutsUnswept,
    /// Members have no records in the registry (simulation). This variant and `NoTeamRecords` are
    /// experiments and not faults. See `docs/decisions/team-records.md`.
    #[cfg(any(test, feature = "simulation"))]
    NoMemberRecords,
    /// Neither teams nor members have records in the registry (`claiming.rs` and the simulation).
    NoTeamRecords,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedFault>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault for the current thread, or removes it if `fault` is `None`. Returns `true`,
/// because this build can plant faults.
#[cfg(test)]
pub fn plant(fault: Option<PlantedFault>) -> bool {
    PLANTED.set(fault);
    true
}

/// Does nothing, because only tests of this crate can plant a fault. Returns whether `fault` is
/// `None`.
#[cfg(all(not(test), feature = "simulation"))]
pub const fn plant(fault: Option<PlantedFault>) -> bool {
    fault.is_none()
}

#[cfg(test)]
pub fn is_planted(fault: PlantedFault) -> bool {
    PLANTED.get() == Some(fault)
}

#[cfg(not(test))]
#[inline]
pub const fn is_planted(_: PlantedFault) -> bool {
    false
}
