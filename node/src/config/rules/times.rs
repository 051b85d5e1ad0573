//! The rules for the times that concern a cluster.

use super::BrokenRule;
use crate::config::{Cluster, setting::Period};

/// A rule that one time must be at least `times` times another.
struct AtLeast {
    key: &'static str,
    value: Period,
    times: u32,
    other: (&'static str, Period),
    why: &'static str,
}

pub fn check(cluster: &Cluster) -> Vec<BrokenRule> {
    let least = at_least(cluster).into_iter().filter_map(AtLeast::check);
    least.chain(not_below(cluster)).collect()
}

fn at_least(cluster: &Cluster) -> [AtLeast; 9] {
    let rule = |key, value, times, other, why| AtLeast {
        key,
        value,
        times,
        other,
        why,
    };
    let c = cluster;
    let heartbeat = ("heartbeat", c.heartbeat);
    let suspicion = ("suspicion", c.suspicion);
    let proof = ("proof_every", c.proof_every);
    let reap = ("reap_after", c.reap_after);
    let [fast, check, second] = [
        ("50ms", Period::millis(50)),
        ("250ms", Period::millis(250)),
        ("1s", Period::seconds(1)),
    ];
    let drown = "faster ones drown the bus";
    let healthy = "a few lost heartbeats would kill a healthy node";
    let one_lost = "a node would suspend itself over one lost heartbeat";
    let away = "an observer that was away would declare dead the nodes that it could not hear";
    let young = "no observer's proof would be young enough";
    let election = "nodes would suspend themselves during every election";
    let busy = "a busy node's tools would be killed";
    let writing = "a dead node's tools could still write";
    let database = "sweeps would load the database";
    [
        rule("heartbeat", c.heartbeat, 1, fast, drown),
        rule("suspicion", c.suspicion, 4, heartbeat, healthy),
        rule("echo_limit", c.echo_limit, 3, heartbeat, one_lost),
        rule("settle", c.settle, 1, suspicion, away),
        rule("proof_fresh", c.proof_fresh, 2, proof, young),
        rule("proof_limit", c.proof_limit, 3, proof, election),
        rule("reap_after", c.reap_after, 4, check, busy),
        rule("tool_grace", c.tool_grace, 1, reap, writing),
        rule("sweep", c.sweep, 1, second, database),
    ]
}

/// Checks the pairs of times of which one must be strictly longer than the other.
fn not_below(cluster: &Cluster) -> Vec<BrokenRule> {
    let mut broken = Vec::new();
    if cluster.proof_limit.0 <= cluster.proof_fresh.0 {
        broken.push(BrokenRule::new(
            "cluster.proof_limit",
            "not above `cluster.proof_fresh`: a node would be suspended before it stops declaring others dead",
            format!("write more than {}", cluster.proof_fresh),
        ));
    }
    if cluster.echo_limit.0 >= cluster.suspicion.0 {
        broken.push(BrokenRule::new(
            "cluster.echo_limit",
            "not below `cluster.suspicion`: a node would work on after its peers gave it up",
            format!("write less than {}", cluster.suspicion),
        ));
    }
    broken
}

impl AtLeast {
    fn check(self) -> Option<BrokenRule> {
        let Self {
            key,
            value,
            times,
            other: (name, other),
            why,
        } = self;
        let least = other.0.saturating_mul(times);
        let what = || match times {
            1 => format!("{value} is less than {name}: {why}"),
            times => format!("{value} is less than {times} times `{name}`: {why}"),
        };
        (value.0 < least).then(|| {
            BrokenRule::new(
                &format!("cluster.{key}"),
                what(),
                format!("write {} or more", Period(least)),
            )
        })
    }
}
