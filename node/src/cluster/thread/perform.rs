//! What membership asks of the registry, done, and what came of it.

use std::{collections::BTreeMap, time::Duration};

use planck_common::{
    NodeId, Timestamp,
    registry::{DeathRecord, NodeRecord, NodeStanding, StoreRecord},
};
use tokio::time::Instant;

use super::open;
use crate::{
    cluster::{
        membership::{Input, Revision},
        moment::Moment,
        registry::{Found, Registry, RegistryError, Sentence},
    },
    telemetry::metrics,
};

/// How long it is tried to open the registry anew.
const REOPENING: Duration = Duration::from_secs(10);

/// Does one thing and is gone.
#[derive(Clone)]
pub(super) struct Performer {
    pub registry: Registry,
    pub node: NodeId,
    pub record: NodeRecord,
    pub store: StoreRecord,
}

/// What came of it.
pub(super) enum Done {
    /// No answer; who asked waits only so long.
    Nothing,
    Happened(Input),
    Read(NodeId, Option<Found<NodeRecord>>),
    ReadAll(Vec<(NodeId, u64, NodeRecord)>),
    /// A node not heard for so long.
    Convicted(NodeId, Duration),
    /// The registry, of this age.
    Opened(Duration),
    /// It could not be opened; whoever misses it next tries again.
    NotOpened,
    /// The registry is not there.
    Missing(Option<Input>),
    /// This node has no place in the cluster.
    Refused(String),
}

impl Performer {
    pub async fn prove(self, sent_at: Moment, expects: Revision) -> Done {
        match self.registry.prove(&self.node, expects).await {
            Ok(()) => Done::Happened(Input::ProofCommitted { sent_at }),
            Err(error) if error.is_refused() => Done::Happened(Input::ProofRefused { sent_at }),
            Err(error) => failed(&error, Some(Input::ProofUnknown { sent_at })),
        }
    }

    pub async fn write(self, standing: NodeStanding, expects: Option<Revision>) -> Done {
        let record = NodeRecord {
            state: standing,
            ..self.record
        };
        match self.registry.write_node(&self.node, &record, expects).await {
            Ok(revision) => Done::Happened(Input::Written { revision, standing }),
            Err(error) => failed(&error, Some(Input::NotWritten)),
        }
    }

    pub async fn read(self, node: NodeId) -> Done {
        match self.registry.node(&node).await {
            Ok(Some(found)) if self.is_foreign(&node, &found.record) => {
                tracing::warn!(
                    "this node's record in the registry is another's; it is written again"
                );
                Done::Read(node, Some(found))
            }
            Ok(found) => Done::Read(node, found),
            Err(error) => failed(&error, None),
        }
    }

    /// Whether a node's own record was written by something else than this process and its judges.
    fn is_foreign(&self, node: &NodeId, record: &NodeRecord) -> bool {
        *node == self.node && !record.state.is_final() && record.nonce != self.record.nonce
    }

    pub async fn read_proof(self, node: NodeId, asked_at: Moment) -> Done {
        match self.registry.proof(&node).await {
            Ok(proof) => Done::Happened(Input::Proof {
                node,
                asked_at,
                proof,
            }),
            Err(error) => failed(&error, None),
        }
    }

    /// The record of the store is looked at as well: if it is lost, a node that works on the store
    /// names it again.
    pub async fn read_all(self) -> Done {
        match self.registry.check_store(&self.store).await {
            Err(error) if !error.is_passing() && !error.is_missing() => {
                tracing::warn!(%error, "the record of the store is wrong")
            }
            Ok(()) | Err(_) => {}
        }
        match self.registry.nodes().await {
            Ok(found) => Done::ReadAll(
                found
                    .into_iter()
                    .map(|(node, found)| (node, found.revision, found.record))
                    .collect(),
            ),
            Err(error) => failed(&error, None),
        }
    }

    /// The convict's record is rewritten as it stands, where it is known and has not changed.
    pub async fn convict(
        self,
        convict: NodeId,
        expects: Option<Revision>,
        own: Revision,
        silent: Duration,
        known: Option<(u64, NodeRecord)>,
    ) -> Done {
        let verdict = DeathRecord {
            by: self.node.clone(),
            reason: "it was not heard".into(),
            silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
        };
        let known = known
            .filter(|(revision, _)| Some(*revision) == expects)
            .map(|(_, record)| record);
        let record = match (known, expects) {
            (Some(record), _) => record,
            (None, None) => unknown(&convict),
            (None, Some(_)) => match self.registry.node(&convict).await {
                Ok(Some(found)) if Some(found.revision) == expects => found.record,
                Ok(_) | Err(_) => return Done::Happened(Input::NotConvicted { node: convict }),
            },
        };
        let record = NodeRecord {
            state: NodeStanding::Dead,
            verdict: Some(verdict),
            ..record
        };
        let sentence = Sentence {
            judge: &self.node,
            own,
            convict: &convict,
            expects,
            record: &record,
        };
        match self.registry.convict(sentence).await {
            Ok(_) => {
                metrics::meters().judged();
                Done::Convicted(convict, silent)
            }
            Err(error) => failed(&error, Some(Input::NotConvicted { node: convict })),
        }
    }

    pub async fn reopen(self) -> Done {
        match open(&self.registry, &self.store, Instant::now() + REOPENING).await {
            Ok(age) => Done::Opened(age),
            Err(error) if error.is_passing() || error.is_missing() => {
                tracing::warn!(%error, "cannot open the registry anew yet");
                Done::NotOpened
            }
            Err(error) => Done::Refused(error.to_string()),
        }
    }
}

fn failed(error: &RegistryError, input: Option<Input>) -> Done {
    if error.is_missing() {
        return Done::Missing(input);
    }
    if !error.is_passing() {
        tracing::warn!(%error, "the registry refuses this node something");
    }
    input.map_or(Done::Nothing, Done::Happened)
}

/// Of a node of which nothing is known but that it holds leases.
fn unknown(node: &NodeId) -> NodeRecord {
    NodeRecord {
        name: node.to_string(),
        state: NodeStanding::Dead,
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
