//! The leases of agents, in SQLite.

mod sweep;

use std::collections::BTreeSet;

use async_trait::async_trait;
use planck_common::{AgentId, NodeId, SessionId, event::json};
use sqlx::query;

use super::{SqliteStore, db::RowReader, files::InUse, lock};
use crate::{HeldLease, LeaseClaim, LeaseRelease, Leases, StoreError, Stray, refusal};

const CLAIM_LEAD: &str = "UPDATE agents SET node_id = ?1, epoch = epoch + 1, incarnation = incarnation + ?4
    WHERE id = ?2 AND epoch = ?3 AND id = (SELECT lead FROM sessions) RETURNING epoch, last_seq, incarnation";

const CLAIM_MEMBER: &str = "UPDATE agents SET node_id = ?1, epoch = epoch + 1
    WHERE id = ?2 AND epoch = ?3 AND EXISTS (
      SELECT 1 FROM sessions s JOIN agents l ON l.id = s.lead WHERE l.id = ?4 AND l.incarnation = ?5)
    RETURNING epoch, last_seq, incarnation";

#[async_trait]
impl Leases for SqliteStore {
    /// Claims a lease. The index records the lease before the file does, and once more afterwards,
    /// because a sweep may have removed the entry in between.
    async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentId,
        seen: i64,
        claim: LeaseClaim,
        node: &NodeId,
    ) -> Result<Option<HeldLease>, StoreError> {
        let file = self.file(session).await?;
        self.index.leased(session, node).await?;
        let under = match &claim {
            LeaseClaim::Lead { .. } => None,
            LeaseClaim::Member(under) => Some(under),
        };
        let raised = i64::from(matches!(claim, LeaseClaim::Lead { after_death: true }));
        let statement = query(if under.is_some() {
            CLAIM_MEMBER
        } else {
            CLAIM_LEAD
        });
        let statement = statement
            .bind(node.as_str())
            .bind(agent.as_str())
            .bind(seen);
        let statement = match under {
            None => statement.bind(raised),
            Some(under) => statement.bind(under.lead.as_str()).bind(under.incarnation),
        };
        let Some(row) = file.db.row(statement).await? else {
            return current(&file, agent, seen, node).await;
        };
        self.index.leased(session, node).await?;
        file.reader(&row).lease().map(Some)
    }

    async fn release_all(
        &self,
        session: &SessionId,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        const RELEASE: &str =
            "UPDATE agents SET node_id = NULL, epoch = agents.epoch + 1,
                state = CASE WHEN r.value->>2 THEN 'stopped' WHEN state IN ('stopped', 'waiting') THEN state ELSE 'idle' END
            FROM json_each(?1) r WHERE agents.id = r.value->>0 AND agents.epoch = r.value->>1 RETURNING id";
        let file = self.file(session).await?;
        let fields: Vec<(&AgentId, i64, bool)> = releases
            .iter()
            .map(|release| (&release.agent, release.epoch, release.stopped))
            .collect();
        let rows = file.db.rows(query(RELEASE).bind(json(&fields))).await?;
        let released = rows
            .iter()
            .map(|row| file.reader(row).parse::<AgentId>("id"));
        let released: BTreeSet<AgentId> = released.collect::<Result<_, _>>()?;
        let mut results = Vec::with_capacity(releases.len());
        for release in releases {
            results.push(match released.contains(&release.agent) {
                true => Ok(()),
                false => was_released(&file, release).await,
            });
        }
        Ok(results)
    }

    async fn sweep(&self, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError> {
        sweep::sweep(self, alive).await
    }

    async fn held_by(&self, node: &NodeId) -> Result<Vec<Stray>, StoreError> {
        let sessions = self.index.leases(&[], Some(node)).await?;
        let sessions: Vec<SessionId> = sessions.into_iter().map(|(session, _)| session).collect();
        self.held_in(node, &sessions).await
    }

    async fn held_in(
        &self,
        node: &NodeId,
        sessions: &[SessionId],
    ) -> Result<Vec<Stray>, StoreError> {
        let mut held = vec![];
        for session in sessions {
            match self.held_in_file(session, node).await {
                Ok(found) => held.extend(found),
                // A damaged file must not hide the leases in the other files.
                Err(StoreError::Broken(error)) => {
                    tracing::warn!(%session, error, "left a session out of the node's leases: its file cannot be read")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(held)
    }

    async fn node_lives(&self, node: &NodeId) -> Result<Option<bool>, StoreError> {
        lock::lives(&self.folder, node).map(Some)
    }

    async fn end_stopped_node(&self, node: &NodeId) -> Result<bool, StoreError> {
        let (folder, node) = (self.folder.clone(), node.clone());
        let ended = tokio::task::spawn_blocking(move || lock::end_stopped(&folder, &node)).await;
        ended.map_err(|error| StoreError::Away(error.to_string()))?
    }
}

impl SqliteStore {
    async fn held_in_file(
        &self,
        session: &SessionId,
        node: &NodeId,
    ) -> Result<Vec<Stray>, StoreError> {
        const HELD: &str = "SELECT id, node_id, epoch FROM agents WHERE node_id = ?1 ORDER BY n";
        let Some(file) = self.file_if_any(session).await? else {
            return Ok(vec![]);
        };
        let rows = file.db.rows(query(HELD).bind(node.as_str())).await?;
        rows.iter()
            .map(|row| stray(&file, file.reader(row)))
            .collect()
    }
}

/// Succeeds if a release that changed nothing is a repetition. Otherwise returns why it was
/// refused.
async fn was_released(file: &InUse, release: &LeaseRelease) -> Result<(), StoreError> {
    match file.agent(&release.agent).await? {
        None => Err(refusal::no_agent(&release.agent, &file.id)),
        Some(record) if record.node.is_none() && record.epoch == release.epoch + 1 => Ok(()),
        Some(_) => Err(refusal::stale_lease(&release.agent)),
    }
}

/// Returns the lease of the agent if this node took it by an earlier claim whose answer was lost.
/// The caller uses this function after a claim that changed nothing.
async fn current(
    file: &InUse,
    agent: &AgentId,
    seen: i64,
    node: &NodeId,
) -> Result<Option<HeldLease>, StoreError> {
    let record = file.agent(agent).await?;
    let record = record.ok_or_else(|| refusal::no_agent(agent, &file.id))?;
    let lease = HeldLease {
        epoch: record.epoch,
        last_seq: record.last_seq,
        incarnation: record.incarnation,
    };
    Ok(lease.of_lost_claim(record.node.as_ref(), seen, node))
}

fn stray(file: &InUse, row: RowReader<'_>) -> Result<Stray, StoreError> {
    Ok(Stray {
        session: file.id.clone(),
        agent: row.parse("id")?,
        node: row.parse_optional("node_id")?,
        epoch: row.number("epoch")?,
    })
}
