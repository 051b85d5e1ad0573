//! Reads the registry from NATS.

use anyhow::{Context, Result};
use planck_common::{
    NodeId,
    registry::{Key, NodeRecord},
};
use serde_json::Value;

use crate::caller::Caller;

/// Returns the value of a key in the registry, or `None` if the key has none.
pub async fn value(caller: &Caller, key: &Key) -> Result<Option<Value>> {
    let registry = async_nats::jetstream::new(caller.nats.clone())
        .get_key_value("planck_registry")
        .await?;
    let value = registry.get(key.to_string()).await?;
    value
        .map(|value| serde_json::from_slice(&value).context("a record"))
        .transpose()
}

/// Returns a node's record in the registry, or `None` if there is none.
pub async fn record(caller: &Caller, node: &NodeId) -> Result<Option<NodeRecord>> {
    let value = value(caller, &Key::Node(node.clone())).await?;
    value
        .map(|value| serde_json::from_value(value).context("a record"))
        .transpose()
}
