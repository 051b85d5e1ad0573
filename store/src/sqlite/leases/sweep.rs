//! Sweeps: the index and the store's memory list the sessions that may need a host, and the session
//! files show which of them do.

use std::{collections::BTreeMap, time::Duration};

use planck_common::{InputId, NodeId, SessionId, Timestamp, event::json};
use sqlx::query;

use super::stray;
use crate::{
    StoreError, Stray,
    sqlite::{SqliteStore, files::InUse, index::DueWait, waits::hints as waits},
};

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

pub async fn sweep(store: &SqliteStore, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError> {
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
    waits::look(store, file, &hints.waits).await
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
    waits::forget_old(store, session, hints.waits.iter(), now).await
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
