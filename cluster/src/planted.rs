//! Faults that a test plants into the product's code, to show that the simulation finds them.
//! `is_planted` is constant and costs nothing in what is shipped, which has neither debug assertions nor
//! the feature `simulation`.

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
    /// No node watches another one (`watchers.rs`).
    NoneWatched,
    /// Tools start while the tools of a dead node may still run (`recovery.rs`).
    ToolsBeforeGraceOfDead,
    /// Tools start while the tools of a node that did not confirm its stop may still run
    /// (`claiming.rs`).
    ToolsBeforeGraceOfSilent,
    /// Tools start before a node that lost only NATS reads in SQL that it lost its lease
    /// (`claiming.rs`, `recovery.rs`).
    ToolsBeforeLossIsSeen,
    /// A node does not drop agents whose leases other nodes took (`recovery.rs`).
    SupersededRunOn,
    /// A session whose close was interrupted continues (`recovery.rs`).
    CloseForgotten,
    /// A sweep does not return agents with answered waits (the simulated store, as the next two).
    AnsweredWaitsUnswept,
    /// A wait that was answered takes another answer.
    SecondAnswerAccepted,
    /// The row of an input keeps no shape of the answer.
    ShapeUnstored,
    /// A sweep finds no agents of dead nodes (`takeover.rs` of `planck-node`, as the following faults).
    SweepBlind,
    /// A sweep does not make agents of its node read their inboxes.
    UnreadUnswept,
    /// Every other holder of a lease counts as dead (`takeover/session.rs`).
    HoldersCountAsGone,
    /// A claim does not ask living nodes to stop the members of the last incarnation
    /// (`takeover/incarnation.rs`).
    StopUnasked,
    /// A close does not end the members (`takeover/close.rs`).
    ClosedMembersRunOn,
    /// A node does not stop the members of a team that is dead (`team_registry.rs`).
    DeadTeamRunsOn,
    /// The record of a team keeps the last node of an orchestrator that has moved
    /// (`team_registry.rs`).
    MoveUnrecorded,
    /// A sweep does not end waits whose time is over (`takeover.rs`).
    ExpiryUnswept,
}

#[cfg(any(test, debug_assertions, feature = "simulation"))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedFault>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault for the current thread, or removes it if `fault` is `None`.
#[cfg(any(test, debug_assertions, feature = "simulation"))]
pub fn plant(fault: Option<PlantedFault>) {
    PLANTED.set(fault);
}

#[cfg(any(test, debug_assertions, feature = "simulation"))]
pub fn is_planted(fault: PlantedFault) -> bool {
    PLANTED.get() == Some(fault)
}

#[cfg(not(any(test, debug_assertions, feature = "simulation")))]
#[inline]
pub const fn is_planted(_: PlantedFault) -> bool {
    false
}
