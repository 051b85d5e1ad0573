//! Nodes: their records, their proofs of life, and verdicts.

use futures_util::{StreamExt, stream::BoxStream};
use planck_common::{
    NodeId,
    event::json,
    registry::{Key, Keys, NodeRecord},
};

use super::{FINAL, Found, REMOVED, Registry, RegistryError, readable};
use crate::bus::records::{Hint, Write};

/// That a judge convicts a node. Both live by the registry's word, or nothing is written.
#[derive(Debug)]
pub struct Sentence<'a> {
    pub judge: &'a NodeId,
    /// At which revision the judge's own record must be.
    pub own: u64,
    pub convict: &'a NodeId,
    /// At which the convict's; `None` where it has none.
    pub expects: Option<u64>,
    /// The convict's record as it is to stand: dead.
    pub record: &'a NodeRecord,
}

/// What a watch of nodes tells.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeHint {
    Restarted,
    Changed(NodeId, Option<Box<Found<NodeRecord>>>),
}

impl Registry {
    pub async fn node(&self, node: &NodeId) -> Result<Option<Found<NodeRecord>>, RegistryError> {
        self.find(&Key::Node(node.clone())).await
    }

    pub async fn nodes(&self) -> Result<Vec<(NodeId, Found<NodeRecord>)>, RegistryError> {
        let found = self.find_all(&Keys::Nodes).await?.into_iter();
        Ok(found
            .filter_map(|(key, found)| Some((node_of(key)?, found)))
            .collect())
    }

    /// Writes a node's own record. A final one is kept for a day. Without a revision it is written
    /// where none stands: a verdict does, and a record of this process, but not another node's
    /// record under this node's key.
    pub async fn write_node(
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

    /// The revision of a node's newest proof; `None` where there is none.
    pub async fn proof(&self, node: &NodeId) -> Result<Option<u64>, RegistryError> {
        let record = self.0.read(&Key::Proof(node.clone()).to_string()).await?;
        Ok(record.value.map(|_| record.revision))
    }

    /// Proves that a node can write and was convicted by nobody: its record is at `own` still.
    pub async fn prove(&self, node: &NodeId, own: u64) -> Result<(), RegistryError> {
        self.0.write(vec![proof(node, own)]).await?;
        Ok(())
    }

    pub async fn convict(&self, sentence: Sentence<'_>) -> Result<u64, RegistryError> {
        let key = Key::Node(sentence.convict.clone());
        let expects = match sentence.expects {
            Some(revision) => revision,
            None => self.vacancy(&key, |_: &NodeRecord| true).await?,
        };
        let verdict = Write::put(key.to_string(), json(sentence.record))
            .at(expects)
            .lasting(FINAL);
        Ok(self
            .0
            .write(vec![proof(sentence.judge, sentence.own), verdict])
            .await?)
    }

    /// Changes of nodes' records; a hint that may be late or left out.
    pub fn watch_nodes(&self) -> BoxStream<'static, NodeHint> {
        let hints = self.0.watch(&Keys::Nodes.to_string());
        hints
            .filter_map(|hint| std::future::ready(node_hint(hint)))
            .boxed()
    }
}

/// Of a node that is gone its proof vanishes.
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
