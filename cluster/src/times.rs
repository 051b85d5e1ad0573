//! The times by which nodes judge themselves and each other. They follow from the settings
//! `cluster.suspicion` and `cluster.sweep`, so no configuration can break the rules between them.

use std::{ops::RangeInclusive, time::Duration};

/// How often a node tells the reapers of its tools that it runs.
pub const REAPER_BEAT: Duration = Duration::from_millis(250);

/// The times by which a node judges itself and its peers.
#[derive(Debug, Clone, Copy)]
pub struct ClusterTimes {
    /// How often a node publishes a heartbeat. A node misses several before it becomes a suspect.
    pub heartbeat: Duration,
    /// How long a node must be silent to become a suspect.
    pub suspicion: Duration,
    /// How often a node proves in the registry that it can write.
    pub proof_every: Duration,
    /// The greatest age of an observer's own proof. An observer may miss one proof.
    pub proof_fresh: Duration,
    /// The age of a node's own proof at which it suspends itself. An election of JetStream's leader
    /// is shorter. A node stops to declare others dead long before it suspends itself.
    pub proof_limit: Duration,
    /// How long a node's own heartbeats may fail to come back before it suspends itself. It is
    /// below `suspicion`, so that a node stops its work before its peers give it up.
    pub echo_limit: Duration,
    /// How long an observer's own connection must have been without a gap. A shorter time would let
    /// an observer that was away declare dead the nodes that it could not hear.
    pub settle: Duration,
    /// How long a node must be silent before the reapers kill its tool processes.
    pub reap_after: Duration,
    /// How long the sessions of a dead node start no tool on other nodes, counted from its last
    /// heartbeat. By then its reapers have killed its tools, and so has a node that reaches neither
    /// NATS nor SQL.
    pub tool_grace: Duration,
    /// How often records and leases are compared with the agents that run.
    pub sweep: Duration,
}

impl ClusterTimes {
    /// The values of `cluster.suspicion` that a cluster can have. With a shorter one, nodes would
    /// suspend themselves during an election of JetStream's leader, and a node without NATS and SQL
    /// would kill its tools too late. With a longer one, the list of nodes would miss living nodes.
    pub const SUSPICION: RangeInclusive<Duration> =
        RangeInclusive::new(Duration::from_millis(2_500), Duration::from_secs(10));

    /// Returns the times that follow from the two settings. They are whole milliseconds, as the
    /// clock of the decisions is.
    pub fn new(suspicion: Duration, sweep: Duration) -> Self {
        let millis = u64::try_from(suspicion.as_millis()).unwrap_or(u64::MAX);
        let tenths = |count: u64| Duration::from_millis(millis.saturating_mul(count) / 10);
        Self {
            heartbeat: tenths(2),
            suspicion: tenths(10),
            proof_every: tenths(8),
            proof_fresh: tenths(16),
            proof_limit: tenths(48),
            echo_limit: tenths(8),
            settle: tenths(12),
            reap_after: tenths(10),
            tool_grace: tenths(18),
            sweep,
        }
    }
}

/// The simulation checks the decisions with these times.
impl Default for ClusterTimes {
    fn default() -> Self {
        Self::new(Duration::from_millis(2_500), Duration::from_secs(10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        liveness::SILENCE,
        membership::{REGISTRY_FILLS, SQL_SILENCE},
    };

    /// The longest election of JetStream's leader that was measured.
    const ELECTION: Duration = Duration::from_secs(10);

    #[test]
    fn every_admitted_suspicion_keeps_the_rules_between_the_times() {
        let (from, to) = (
            ClusterTimes::SUSPICION.start().as_millis(),
            ClusterTimes::SUSPICION.end().as_millis(),
        );
        for millis in from..=to {
            let suspicion = Duration::from_millis(millis.try_into().unwrap());
            let t = ClusterTimes::new(suspicion, Duration::from_secs(10));
            assert_eq!(t.suspicion, suspicion);
            for (rule, holds) in [
                (
                    "heartbeats do not drown the bus",
                    t.heartbeat >= Duration::from_millis(50),
                ),
                (
                    "a few lost heartbeats kill no healthy node",
                    t.suspicion >= 4 * t.heartbeat,
                ),
                (
                    "one lost heartbeat suspends no node",
                    t.echo_limit >= 3 * t.heartbeat,
                ),
                (
                    "a node stops its work before its peers give it up",
                    t.echo_limit < t.suspicion,
                ),
                (
                    "an observer that was away first hears its peers",
                    t.settle >= t.suspicion,
                ),
                (
                    "an observer may miss a proof",
                    t.proof_fresh >= 2 * t.proof_every,
                ),
                (
                    "a node stops to declare others dead before it is suspended",
                    t.proof_limit > t.proof_fresh,
                ),
                (
                    "an election suspends no node",
                    t.proof_limit >= 3 * t.proof_every && t.proof_limit >= t.proof_every + ELECTION,
                ),
                (
                    "a busy node's tools are not killed",
                    t.reap_after >= 4 * REAPER_BEAT,
                ),
                (
                    "a stopped node's tools are killed in time",
                    t.tool_grace >= t.reap_after + t.heartbeat + Duration::from_secs(1),
                ),
                (
                    "the tools of a node without NATS and SQL are killed in time",
                    t.tool_grace >= t.echo_limit + SQL_SILENCE + t.heartbeat,
                ),
                (
                    "a node is listed although two heartbeats were lost",
                    SILENCE > 2 * t.heartbeat,
                ),
                (
                    "each node finds a lost registry while others wait for its record",
                    REGISTRY_FILLS >= t.proof_every + Duration::from_secs(5),
                ),
            ] {
                assert!(holds, "{rule}: {t:?}");
            }
        }
    }

    #[test]
    fn defaults_are_the_documented_times() {
        let times = ClusterTimes::default();
        let millis = [
            times.heartbeat,
            times.proof_every,
            times.proof_fresh,
            times.proof_limit,
            times.echo_limit,
            times.settle,
            times.reap_after,
            times.tool_grace,
        ]
        .map(|time| time.as_millis());
        assert_eq!(
            millis,
            [500, 2_000, 4_000, 12_000, 2_000, 3_000, 2_500, 4_500]
        );
    }
}
