//! Nodes: their records, their proofs of life, and their deaths.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream::BoxStream};
use planck_common::{
    NodeId, Timestamp,
    event::json,
    registry::{Key, Keys, NodeRecord, NodeStanding},
};

use super::{ClusterRegistry, FINAL, REMOVED, RegistryError, StoredRecord, readable};
use crate::planted::{PlantedFault, is_planted};
use planck_bus::records::{Hint, Write};

/// Returns a record with placeholders for all fields but the name and the state.
pub fn placeholder_record(name: &str, state: NodeStanding) -> NodeRecord {
    NodeRecord {
        name: name.to_owned(),
        state,
        version: String::new(),
        labels: serde_json::Map::new(),
        capacity: 0,
        workspaces: Vec::new(),
        providers: Vec::new(),
        started_at: Timestamp::default(),
        nonce: String::new(),
        times: BTreeMap::new(),
        verdict: None,
    }
}

/// A declaration that a node is dead. It is written only if the records of the observer and of that
/// node are unchanged.
#[derive(Debug)]
pub(crate) struct NodeDeath<'a> {
    pub observer: &'a NodeId,
    /// The revision at which the observer's own record must be.
    pub own: u64,
    pub suspect: &'a NodeId,
    /// The revision at which the suspect's record must be; `None` if it has none.
    pub expects: Option<u64>,
    /// The suspect's new record, which says that it is dead.
    pub record: &'a NodeRecord,
}

impl NodeDeath<'_> {
    /// Returns the writes of the declaration, which form one atomic batch. The first is the
    /// observer's proof of life, on condition that the observer's record is at `own`. The second is
    /// the suspect's record, on condition that it is at `expects`.
    pub(crate) fn batch(&self, expects: u64) -> Vec<Write> {
        let death = Write::put(
            Key::Node(self.suspect.clone()).to_string(),
            json(self.record),
        )
        .at(expects)
        .lasting(FINAL);
        if is_planted(PlantedFault::DeathWithoutProof) {
            return vec![death];
        }
        vec![proof(self.observer, self.own), death]
    }
}

/// A report from a watch of the nodes' records.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NodeHint {
    Restarted,
    Changed(NodeId, Option<Box<StoredRecord<NodeRecord>>>),
}

impl ClusterRegistry {
    pub(crate) async fn node(
        &self,
        node: &NodeId,
    ) -> Result<Option<StoredRecord<NodeRecord>>, RegistryError> {
        self.find(&Key::Node(node.clone())).await
    }

    pub(crate) async fn nodes(
        &self,
    ) -> Result<Vec<(NodeId, StoredRecord<NodeRecord>)>, RegistryError> {
        let found = self.find_all(&Keys::Nodes).await?.into_iter();
        Ok(found
            .filter_map(|(key, found)| Some((node_of(key)?, found)))
            .collect())
    }

    /// Writes a node's own record. A final record is kept for a day. Without `expects`, the write
    /// is refused if there is a final record or a record of this process. It replaces a record that
    /// another process wrote under this node's key.
    pub(crate) async fn write_node(
        &self,
        node: &NodeId,
        record: &NodeRecord,
        expects: Option<u64>,
    ) -> Result<u64, RegistryError> {
        let key = Key::Node(node.clone());
        let stands = |found: &NodeRecord| found.state.is_final() || found.nonce == record.nonce;
        let expects = match expects {
            Some(revision) => revision,
            None => self.vacancy(&key, stands).await?,
        };
        let lasts = record.state.is_final().then_some(FINAL);
        self.put(&key, record, Some(expects), lasts).await
    }

    /// Returns the revision of a node's newest proof, or `None` if there is none.
    pub(crate) async fn proof(&self, node: &NodeId) -> Result<Option<u64>, RegistryError> {
        let record = self.0.read(&Key::Proof(node.clone()).to_string()).await?;
        Ok(record.value.map(|_| record.revision))
    }

    /// Writes a proof of life, on condition that the node's record is still at `own`. An accepted
    /// proof shows that the node can write and was not declared dead.
    pub(crate) async fn prove(&self, node: &NodeId, own: u64) -> Result<(), RegistryError> {
        self.0.write(vec![proof(node, own)]).await?;
        Ok(())
    }

    /// Marks a node dead, and returns the revision of its new record. Fails if the record of the
    /// observer or of the suspect has changed.
    pub(crate) async fn mark_node_dead(&self, death: NodeDeath<'_>) -> Result<u64, RegistryError> {
        let expects = match death.expects {
            Some(revision) => revision,
            None => {
                let key = Key::Node(death.suspect.clone());
                self.vacancy(&key, |_: &NodeRecord| true).await?
            }
        };
        Ok(self.0.write(death.batch(expects)).await?)
    }

    /// Watches the nodes' records. A change may be reported late, or not at all.
    pub(crate) fn watch_nodes(&self) -> BoxStream<'static, NodeHint> {
        let hints = self.0.watch(&Keys::Nodes.to_string());
        hints
            .filter_map(|hint| std::future::ready(node_hint(hint)))
            .boxed()
    }
}

/// Returns the write that proves a node's life, on condition that its record is at `own`. The proof
/// of a node that is gone expires.
fn proof(node: &NodeId, own: u64) -> Write {
    let (proof, record) = (Key::Proof(node.clone()), Key::Node(node.clone()));
    Write::put(proof.to_string(), "")
        .while_at(record.to_string(), own)
        .lasting(REMOVED)
}

fn node_of(key: Key) -> Option<NodeId> {
    match key {
        Key::Node(node) => Some(node),
        Key::Store | Key::Proof(_) | Key::Team(..) | Key::Member(..) => None,
    }
}

fn node_hint(hint: Hint) -> Option<NodeHint> {
    match hint {
        Hint::Restarted => Some(NodeHint::Restarted),
        Hint::Changed(record) => {
            let node = node_of(Key::parse(&record.key)?)?;
            match record.value {
                None => Some(NodeHint::Changed(node, None)),
                Some(_) => Some(NodeHint::Changed(node, Some(Box::new(readable(record)?)))),
            }
        }
    }
}
