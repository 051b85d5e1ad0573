//! Keeps the index of waits in step with the session files, and expires waits. The index has each
//! wait before its session's file has it, and says when a sweep has to look at the wait.

use std::collections::{BTreeMap, BTreeSet};

use planck_common::{CallId, SessionId, Timestamp, event::EventKind, event::json};
use serde::Deserialize;
use sqlx::query;

use crate::{
    Batch, StoreError,
    sqlite::{
        SqliteStore,
        files::InUse,
        index::{DueWait, WaitHint},
    },
    waits::EXPIRE_MOST,
};

/// How long, in milliseconds, a wait may be in the index without being in the session's file. A
/// wait that is missing for longer counts as never opened.
const ANNOUNCED_MS: i64 = 60_000;

/// After how many milliseconds a sweep looks again at a wait that is open, in case the log ended it.
const RECHECK_MS: i64 = 3_600_000;

const EXPIRE: &str = "UPDATE waits SET state = 'answered', answer = json_object('decision', 'expired',
      'reason', 'nobody answered in time', 'at', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    WHERE id IN (SELECT id FROM waits WHERE state IN ('open', 'answered') AND state = 'open'
      AND expires_at <= CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) ORDER BY opened_at LIMIT ?1)";

/// The part of the data of `wait_opened` that the index needs.
#[derive(Deserialize)]
struct Opened {
    id: CallId,
    expires_at: Option<Timestamp>,
}

/// Adds the waits that an append opens to the index. The caller does so before it writes them to
/// the session's file.
pub async fn announce(
    store: &SqliteStore,
    session: &SessionId,
    batches: &[Batch],
) -> Result<(), StoreError> {
    let entries = batches.iter().flat_map(Batch::entries);
    let opening = entries.filter(|entry| entry.kind == EventKind::WaitOpened);
    let now = Timestamp::now();
    // A malformed body is left to the file, which refuses its batch.
    let hints = opening.filter_map(|entry| {
        let opened: Opened = serde_json::from_str(&entry.body).ok()?;
        let look = now.millis() + ANNOUNCED_MS;
        Some(WaitHint {
            id: opened.id,
            opened_at: entry.place.at,
            due: Some(opened.expires_at.map_or(look, |at| look.min(at.millis()))),
        })
    });
    let hints: Vec<WaitHint> = hints.collect();
    if hints.is_empty() {
        return Ok(());
    }
    store.index.announce_waits(session, &hints, now).await
}

/// Expires open waits whose time is over, at most [`EXPIRE_MOST`].
pub async fn expire(store: &SqliteStore) -> Result<u64, StoreError> {
    let due = store.index.due_waits(Timestamp::now()).await?;
    let sessions: BTreeSet<SessionId> = due.into_iter().map(|wait| wait.session).collect();
    let mut expired = 0;
    for session in sessions {
        let left = u64::from(EXPIRE_MOST) - expired;
        if left == 0 {
            break;
        }
        match expire_in(store, &session, left).await {
            Ok(count) => expired += count,
            Err(StoreError::NotFound(_)) => {}
            Err(error) => {
                tracing::warn!(%session, %error, "cannot expire the waits of a session: its file cannot be written")
            }
        }
    }
    Ok(expired)
}

async fn expire_in(store: &SqliteStore, session: &SessionId, most: u64) -> Result<u64, StoreError> {
    let file = store.file(session).await?;
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    Ok(file.db.execute(query(EXPIRE).bind(most)).await?)
}

/// Looks at waits of one session that are due, and records in the index when a sweep has to look at
/// them again.
pub async fn look(store: &SqliteStore, file: &InUse, due: &[DueWait]) -> Result<(), StoreError> {
    const THERE: &str = "SELECT w.id, CASE WHEN a.state = 'stopped' THEN 'withdrawn' ELSE w.state END AS state, w.expires_at
        FROM waits w JOIN agents a ON a.id = w.agent_id WHERE w.id IN (SELECT value FROM json_each(?1))";
    if due.is_empty() {
        return Ok(());
    }
    let now = Timestamp::now();
    let ids: Vec<&CallId> = due.iter().map(|wait| &wait.id).collect();
    let mut next = BTreeMap::new();
    for row in &file.db.rows(query(THERE).bind(json(&ids))).await? {
        let row = file.reader(row);
        let recheck = now.millis() + RECHECK_MS;
        let expires_at: Option<i64> = row.get("expires_at")?;
        let look_at = match row.get::<&str>("state")? {
            "open" => Some(expires_at.map_or(recheck, |at| recheck.min(at))),
            "answered" => Some(0),
            _ended => None,
        };
        next.insert(row.parse::<CallId>("id")?, look_at);
    }
    let looked: Vec<(&DueWait, Option<i64>)> = due
        .iter()
        .filter_map(|wait| Some((wait, *next.get(&wait.id)?)))
        .filter(|(wait, look_at)| *look_at != Some(wait.due))
        .collect();
    store.index.looked_at_waits(&file.id, &looked).await?;
    let missing = due.iter().filter(|wait| !next.contains_key(&wait.id));
    forget_old(store, &file.id, missing, now).await
}

/// Removes waits that are not in a file from the index, except those that were announced lately.
pub async fn forget_old(
    store: &SqliteStore,
    session: &SessionId,
    missing: impl Iterator<Item = &DueWait>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let old: Vec<&DueWait> = missing
        .filter(|wait| now.millis() - wait.at.millis() > ANNOUNCED_MS)
        .collect();
    store.index.forget_waits(session, &old).await
}
