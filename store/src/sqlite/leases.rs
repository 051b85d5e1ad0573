//! The leases of agents, in SQLite.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use sqlx::query;

use planck_common::{AgentId, InputId, NodeId, SessionId, Timestamp, event::json};

use super::{SqliteStore, db::SqliteRowReader, files::InUse, lock};
use crate::{
    HeldLease, LeaseClaim, LeaseRelease, Leases, StoreError, Stray, no_agent,
    sqlite::{
        index::DueWait,
        waits::{forget_old, look},
    },
    stale_lease,
};

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
        sweep(self, alive).await
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
        None => Err(no_agent(&release.agent, &file.id)),
        Some(record) if record.node.is_none() && record.epoch == release.epoch + 1 => Ok(()),
        Some(_) => Err(stale_lease(&release.agent)),
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
    let record = record.ok_or_else(|| no_agent(agent, &file.id))?;
    let lease = HeldLease {
        epoch: record.epoch,
        last_seq: record.last_seq,
        incarnation: record.incarnation,
    };
    Ok(lease.of_lost_claim(record.node.as_ref(), seen, node))
}

fn stray(file: &InUse, row: SqliteRowReader<'_>) -> Result<Stray, StoreError> {
    Ok(Stray {
        session: file.id.clone(),
        agent: row.parse("id")?,
        node: row.parse_optional("node_id")?,
        epoch: row.number("epoch")?,
    })
}

// Sweeps: the index and the store's memory list the sessions that may need a host, and the session
// files show which of them do.

/// How long, in milliseconds, an input may be in the index without being in the session's file. An
/// input that is missing for longer counts as never put.
const ANNOUNCED_MS: u64 = 60_000;

/// How long a session file must be unused for a sweep to close it.
const UNUSED: Duration = Duration::from_secs(20);

const STRAYS: &str = "SELECT id, node_id, epoch FROM agents WHERE node_id NOT IN (SELECT value FROM json_each(?1))
    UNION ALL SELECT a.id, a.node_id, a.epoch FROM agents a
      WHERE (a.node_id IS NULL OR a.node_id IN (SELECT value FROM json_each(?1))) AND a.state <> 'stopped'
      AND (EXISTS (SELECT 1 FROM inputs i WHERE i.agent_id = a.id AND i.outcome IS NULL AND i.turn IS NULL)
        OR EXISTS (SELECT 1 FROM waits w WHERE w.agent_id = a.id AND w.state IN ('open', 'answered') AND w.state = 'answered'))";

/// The index entries of one session that a sweep checks: the nodes with leases that are not alive,
/// the inputs that may be unread, and the waits at which the sweep has to look.
#[derive(Default)]
struct Hints {
    nodes: Vec<NodeId>,
    inputs: Vec<(InputId, Timestamp)>,
    waits: Vec<DueWait>,
}

async fn sweep(store: &SqliteStore, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError> {
    store.files.close_unused(UNUSED);
    let mut hints: BTreeMap<SessionId, Hints> = BTreeMap::new();
    for (session, node) in store.index.leases(alive, None).await? {
        hints.entry(session).or_default().nodes.push(node);
    }
    for (session, input, at) in store.index.all_pending().await? {
        hints.entry(session).or_default().inputs.push((input, at));
    }
    for wait in store.index.due_waits(Timestamp::now()).await? {
        let session = wait.session.clone();
        hints.entry(session).or_default().waits.push(wait);
    }
    let to_sweep = store.to_sweep().clone();
    for session in to_sweep {
        hints.entry(session).or_default();
    }
    let mut strays = vec![];
    for (session, hints) in hints {
        // An input that is put from here on adds the session again.
        store.to_sweep().remove(&session);
        match strays_of(store, &session, &hints, alive).await {
            Ok(found) if found.is_empty() => {}
            Ok(found) => {
                strays.extend(found);
                store.to_sweep().insert(session);
            }
            Err(StoreError::NotFound(_)) => forget_gone(store, &session, &hints).await?,
            Err(error) => {
                store.to_sweep().insert(session.clone());
                tracing::warn!(%session, %error, "left a session out of the sweep: its file cannot be read")
            }
        }
    }
    Ok(strays)
}

async fn strays_of(
    store: &SqliteStore,
    session: &SessionId,
    hints: &Hints,
    alive: &[NodeId],
) -> Result<Vec<Stray>, StoreError> {
    let file = store.file(session).await?;
    let rows = file.db.rows(query(STRAYS).bind(json(&alive))).await?;
    let strays = rows.iter().map(|row| stray(&file, file.reader(row)));
    let strays: Vec<Stray> = strays.collect::<Result<_, _>>()?;
    tidy(store, &file, hints, strays.is_empty()).await?;
    Ok(strays)
}

/// Removes those index entries of a session that are obsolete according to the session's file, and
/// records when to look at its waits again. Leases stay until the session is settled. One of them
/// may be all that leads to an unread input, because a node does not add to the index what it puts
/// for its own agents.
async fn tidy(
    store: &SqliteStore,
    file: &InUse,
    hints: &Hints,
    is_settled: bool,
) -> Result<(), StoreError> {
    if is_settled && !hints.nodes.is_empty() {
        store.index.unleased(&file.id, &hints.nodes).await?;
    }
    let over = over(file, hints).await?;
    store
        .settled(&file.id, &over.iter().collect::<Vec<_>>())
        .await;
    look(store, file, &hints.waits).await
}

/// Removes from the index a session whose file was not created within [`ANNOUNCED_MS`], and the old
/// inputs and waits of any session without a file.
async fn forget_gone(
    store: &SqliteStore,
    session: &SessionId,
    hints: &Hints,
) -> Result<(), StoreError> {
    if store
        .index
        .abandoned(
            session,
            Timestamp::now().millis() - ANNOUNCED_MS.cast_signed(),
        )
        .await?
    {
        store.index.forget(session).await?;
    }
    let now = Timestamp::now();
    let old: Vec<&InputId> = hints
        .inputs
        .iter()
        .filter(|(_, at)| now.millis_since(*at) > ANNOUNCED_MS)
        .map(|(id, _)| id)
        .collect();
    store.settled(session, &old).await;
    forget_old(store, session, hints.waits.iter(), now).await
}

/// Returns the announced inputs that were consumed or ended, or that were never put.
async fn over(file: &InUse, hints: &Hints) -> Result<Vec<InputId>, StoreError> {
    if hints.inputs.is_empty() {
        return Ok(vec![]);
    }
    const THERE: &str = "SELECT id, outcome IS NOT NULL OR turn IS NOT NULL AS over FROM inputs
        WHERE id IN (SELECT value FROM json_each(?1))";
    let ids: Vec<&InputId> = hints.inputs.iter().map(|(id, _)| id).collect();
    let mut there = BTreeMap::new();
    for row in &file.db.rows(query(THERE).bind(json(&ids))).await? {
        let row = file.reader(row);
        there.insert(row.parse::<InputId>("id")?, row.get::<bool>("over")?);
    }
    let now = Timestamp::now();
    let is_over = |(id, at): &&(InputId, Timestamp)| match there.get(id) {
        Some(over) => *over,
        None => now.millis_since(*at) > ANNOUNCED_MS,
    };
    Ok(hints
        .inputs
        .iter()
        .filter(is_over)
        .map(|(id, _)| id.clone())
        .collect())
}
