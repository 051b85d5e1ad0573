//! The nodes of a cluster must agree on its times: who counts others would convict the living, or start tools too early.

use std::time::Duration;

use planck_common::{NodeId, command::NodeVerb, registry::NodeRecord, subject::Address};

use super::JoinError;
use crate::{
    bus::{Bus, NatsBus},
    cluster::registry::Registry,
};

/// How long a node has to show that it lives.
const ANSWERED: Duration = Duration::from_secs(2);

/// Refuses a node whose times are others than those of a node that lives.
pub(super) async fn check(mine: &NodeRecord, registry: &Registry, bus: &NatsBus) -> Result<(), JoinError> {
    let records = match registry.nodes().await {
        Ok(records) => records,
        Err(error) if error.is_passing() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for (node, found) in records {
        if let Some(what) = difference(mine, &found.record)
            && lives(&node, bus).await
        {
            return Err(JoinError::OtherTimes { node: found.record.name, what });
        }
    }
    Ok(())
}

/// A record stands until somebody convicts its node: after a crash of all, nobody has yet.
async fn lives(node: &NodeId, bus: &NatsBus) -> bool {
    let ask = Address::node(node, NodeVerb::Info.name());
    bus.request(&ask, "{}".into(), ANSWERED).await.is_ok()
}

/// What two nodes that are to work together do not agree on.
pub(super) fn difference(mine: &NodeRecord, theirs: &NodeRecord) -> Option<String> {
    if theirs.state.is_final() {
        return None;
    }
    let other = |(key, mine): (&String, &String)| {
        let theirs = theirs.times.get(key).filter(|theirs| *theirs != mine)?;
        Some(format!("cluster.{key} is {mine} here and {theirs} there"))
    };
    let differences: Vec<String> = mine.times.iter().filter_map(other).collect();
    (!differences.is_empty()).then(|| differences.join(", "))
}
