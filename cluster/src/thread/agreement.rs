//! What the nodes of a cluster must agree on: its store, and its times. A node with other times
//! would declare living nodes dead, or start tools too early.

use std::time::Duration;

use bytes::Bytes;
use planck_common::{
    NodeId,
    command::NodeVerb,
    registry::{NodeRecord, StoreRecord},
    subject::Address,
};

use super::JoinError;
use crate::registry::ClusterRegistry;
use planck_bus::{Bus, BusError};

/// How long a node may take to answer the request that shows that it is alive.
const ANSWERED: Duration = Duration::from_secs(2);

/// Fails if this node's times differ from those of a living node. Succeeds without a comparison if
/// the registry does not answer now.
pub(super) async fn check(
    mine: &NodeRecord,
    registry: &ClusterRegistry,
    bus: &dyn Bus,
) -> Result<(), JoinError> {
    let records = match registry.nodes().await {
        Ok(records) => records,
        Err(error) if error.is_passing() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for (node, found) in records {
        if let Some(what) = difference(mine, &found.record)
            && lives(&node, bus).await
        {
            return Err(JoinError::OtherTimes {
                node: found.record.name,
                what,
            });
        }
    }
    Ok(())
}

/// Records this node's store as the one that the cluster shares, in place of `theirs`. Fails while
/// a node that has neither left nor died is connected, even if that node does not answer, because
/// it may be frozen and later continue with the store `theirs`.
pub(super) async fn take_over(
    theirs: Box<StoreRecord>,
    mine: &StoreRecord,
    registry: &ClusterRegistry,
    bus: &dyn Bus,
) -> Result<(), JoinError> {
    for (node, found) in registry.nodes().await? {
        if !found.record.state.is_final() && is_connected(&node, bus).await {
            return Err(JoinError::OtherStore {
                mine: Box::new(mine.clone()),
                theirs,
                node: found.record.name,
            });
        }
    }
    registry.replace_store(&theirs, mine).await?;
    tracing::warn!(
        "this node takes the cluster over with its store {mine}: no node is there that shares the former store, {theirs}"
    );
    Ok(())
}

/// Returns whether a node answers a request. Its record is not enough, because after a crash of all
/// nodes the records of dead ones still say `alive`.
async fn lives(node: &NodeId, bus: &dyn Bus) -> bool {
    ask(node, bus).await.is_ok()
}

async fn is_connected(node: &NodeId, bus: &dyn Bus) -> bool {
    !matches!(ask(node, bus).await, Err(BusError::NoResponders(_)))
}

async fn ask(node: &NodeId, bus: &dyn Bus) -> Result<Bytes, BusError> {
    bus.request(
        &Address::node(node, NodeVerb::Info.name()),
        "{}".into(),
        ANSWERED,
    )
    .await
}

/// Returns which times differ between two nodes, or `None` if none differ or the other node left or
/// died.
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
