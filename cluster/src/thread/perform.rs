//! Performs the requests of membership to the registry, and returns their outcomes.

use std::time::Duration;

use futures_util::stream::BoxStream;
use planck_bus::Delivery;
use planck_common::{
    NodeId,
    registry::{DeathRecord, NodeRecord, NodeStanding, StoreRecord},
};
use tokio::time::Instant;

use super::open;
use crate::{
    membership::{MembershipInput, Revision},
    moment::Moment,
    registry::{ClusterRegistry, NodeDeath, RegistryError, StoredRecord, placeholder_record},
};
use planck_telemetry::metrics;

/// How long to try to open the registry again.
const REOPENING: Duration = Duration::from_secs(10);

/// The performer of one request to the registry.
#[derive(Clone)]
pub(super) struct RegistryJob {
    pub registry: ClusterRegistry,
    pub node: NodeId,
    pub record: NodeRecord,
    pub store: StoreRecord,
}

/// The outcome of a request.
pub(super) enum JobResult {
    /// There is no answer. If the request is still needed, it is repeated later.
    Nothing,
    Happened(MembershipInput),
    /// The heartbeats of a node arrive in this stream from now on.
    Watching(NodeId, BoxStream<'static, Delivery>),
    Read(NodeId, Option<StoredRecord<NodeRecord>>),
    ReadAll(Vec<(NodeId, u64, NodeRecord)>),
    /// A node was declared dead after it had been silent for this long.
    DeclaredDead(NodeId, Duration),
    /// The registry was opened and has this age.
    Opened(Duration),
    /// The registry could not be opened. The next request that finds no registry causes another
    /// attempt.
    NotOpened,
    /// There is no registry. The input, if any, tells the state machine that the request failed.
    Missing(Option<MembershipInput>),
    /// This node may not be in this cluster, for the reason in the text.
    Refused(String),
}

impl RegistryJob {
    pub async fn prove(self, sent_at: Moment, expects: Revision) -> JobResult {
        match self.registry.prove(&self.node, expects).await {
            Ok(()) => JobResult::Happened(MembershipInput::ProofCommitted { sent_at }),
            Err(error) if error.is_refused() => {
                JobResult::Happened(MembershipInput::ProofRefused { sent_at })
            }
            Err(error) => failed(&error, Some(MembershipInput::ProofUnknown { sent_at })),
        }
    }

    pub async fn write(self, standing: NodeStanding, expects: Option<Revision>) -> JobResult {
        let record = NodeRecord {
            state: standing,
            ..self.record
        };
        match self.registry.write_node(&self.node, &record, expects).await {
            Ok(revision) => JobResult::Happened(MembershipInput::Written { revision, standing }),
            Err(error) => failed(&error, Some(MembershipInput::NotWritten)),
        }
    }

    pub async fn read(self, node: NodeId) -> JobResult {
        match self.registry.node(&node).await {
            Ok(Some(found)) if self.is_foreign(&node, &found.record) => {
                tracing::warn!(
                    "this node's record in the registry is another's; it is written again"
                );
                JobResult::Read(node, Some(found))
            }
            Ok(found) => JobResult::Read(node, found),
            Err(error) => failed(&error, None),
        }
    }

    /// Returns whether `record` is stored under this node's id but was written by another process.
    /// A final record does not count, because an observer may have written it.
    fn is_foreign(&self, node: &NodeId, record: &NodeRecord) -> bool {
        *node == self.node && !record.state.is_final() && record.nonce != self.record.nonce
    }

    pub async fn read_proof(self, node: NodeId, asked_at: Moment) -> JobResult {
        match self.registry.proof(&node).await {
            Ok(proof) => JobResult::Happened(MembershipInput::Proof {
                node,
                asked_at,
                proof,
            }),
            Err(error) => failed(&error, None),
        }
    }

    /// Reads the records of all nodes. Also checks that the registry names this
    /// node's store, logs if it names another one, and writes the record again if it was lost.
    pub async fn read_all(self) -> JobResult {
        match self.registry.check_store(&self.store).await {
            Err(error) if !error.is_passing() && !error.is_missing() => {
                tracing::warn!(%error, "the record of the store is wrong")
            }
            Ok(()) | Err(_) => {}
        }
        match self.registry.nodes().await {
            Ok(found) => JobResult::ReadAll(
                found
                    .into_iter()
                    .map(|(node, found)| (node, found.revision, found.record))
                    .collect(),
            ),
            Err(error) => failed(&error, None),
        }
    }

    /// Declares a node dead. The new record keeps the other fields of the record at `expects`. If
    /// the node has no record, the other fields are placeholders.
    pub async fn declare_dead(
        self,
        suspect: NodeId,
        expects: Option<Revision>,
        own: Revision,
        silent: Duration,
        known: Option<(u64, NodeRecord)>,
    ) -> JobResult {
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
            (None, None) => placeholder_record(suspect.as_str(), NodeStanding::Dead),
            (None, Some(_)) => match self.registry.node(&suspect).await {
                Ok(Some(found)) if Some(found.revision) == expects => found.record,
                Ok(_) | Err(_) => {
                    return JobResult::Happened(MembershipInput::NotDeclaredDead { node: suspect });
                }
            },
        };
        let record = NodeRecord {
            state: NodeStanding::Dead,
            verdict: Some(verdict),
            ..record
        };
        let death = NodeDeath {
            observer: &self.node,
            own,
            suspect: &suspect,
            expects,
            record: &record,
        };
        match self.registry.mark_node_dead(death).await {
            Ok(_) => {
                metrics::meters().judged();
                JobResult::DeclaredDead(suspect, silent)
            }
            Err(error) => failed(
                &error,
                Some(MembershipInput::NotDeclaredDead { node: suspect }),
            ),
        }
    }

    pub async fn reopen(self) -> JobResult {
        match open(&self.registry, &self.store, Instant::now() + REOPENING).await {
            Ok(age) => JobResult::Opened(age),
            Err(error) if error.is_passing() || error.is_missing() => {
                tracing::warn!(%error, "cannot open the registry anew yet");
                JobResult::NotOpened
            }
            Err(error) => JobResult::Refused(error.to_string()),
        }
    }
}

fn failed(error: &RegistryError, input: Option<MembershipInput>) -> JobResult {
    if error.is_missing() {
        return JobResult::Missing(input);
    }
    if !error.is_passing() {
        tracing::warn!(%error, "the registry refuses this node something");
    }
    input.map_or(JobResult::Nothing, JobResult::Happened)
}
