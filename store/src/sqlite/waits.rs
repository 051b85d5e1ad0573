//! The waits of agents, in SQLite.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use serde::Deserialize;
use sqlx::query;

use planck_common::{
    AgentId, CallId, SessionId, Timestamp,
    command::{ListWaits, WaitRow, Waits as WaitPage},
    event::{EventKind, json},
    wait::{WaitAnswer, WaitState},
};

use super::{SqliteStore, db::SqliteRowReader, files::InUse, index::WaitHint};
use crate::{
    AnswerOutcome, Batch, SessionRule, StoreError, Waits,
    page::{self, LOG_BYTES, WaitCursor},
    sqlite::index::DueWait,
    waits::{EXPIRE_MOST, WaitAndAnswer, is_live, session_rule},
};

/// Builds a query for waits from its `WHERE` clause.
macro_rules! waits {
    ($which:literal) => {
        concat!(
            "SELECT w.id, w.agent_id, w.seq, w.state, w.opened_at, w.answer, l.body, a.state = 'stopped' AS stopped
            FROM waits w JOIN log l ON l.seq = w.seq JOIN agents a ON a.id = w.agent_id ",
            $which
        )
    };
}

const WAIT: &str = waits!("WHERE w.id = ?1");

/// The query for the waits that may have added a rule. It searches the answers as text, so that it
/// reads few of them.
const RULES: &str = waits!(
    r#"WHERE w.state IN ('answered', 'closed') AND instr(w.answer, '"scope":"session"') AND l.hidden_by IS NULL ORDER BY w.seq"#
);

const ANSWER: &str = "UPDATE waits SET state = 'answered', answer = ?3 WHERE id = ?1 AND digest = ?2 AND state = 'open'
      AND (expires_at IS NULL OR expires_at > CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER))
      AND EXISTS (SELECT 1 FROM agents a WHERE a.id = waits.agent_id AND a.state <> 'stopped')
    RETURNING agent_id, (SELECT a.node_id FROM agents a WHERE a.id = waits.agent_id) AS node_id";

#[async_trait]
impl Waits for SqliteStore {
    async fn waits(
        &self,
        session: Option<&SessionId>,
        filter: &ListWaits,
    ) -> Result<WaitPage, StoreError> {
        waits(self, session, filter).await
    }

    async fn wait(&self, session: &SessionId, id: &CallId) -> Result<Option<WaitRow>, StoreError> {
        let Some(file) = self.file_if_any(session).await? else {
            return Ok(None);
        };
        Ok(find(&file, id).await?.map(|found| found.wait.0))
    }

    /// Stores an answer. The index is told first, so that a sweep finds the answer even if the
    /// process ends right after the file has it.
    async fn answer(
        &self,
        session: &SessionId,
        id: &CallId,
        digest: &str,
        answer: &WaitAnswer,
    ) -> Result<AnswerOutcome, StoreError> {
        const OPEN: &str = "SELECT opened_at FROM waits WHERE id = ?1 AND state = 'open'";
        let Some(file) = self.file_if_any(session).await? else {
            return Ok(AnswerOutcome::NotFound);
        };
        if let Some(row) = file.db.row(query(OPEN).bind(id.as_str())).await? {
            let hint = WaitHint {
                id: id.clone(),
                opened_at: file.reader(&row).timestamp("opened_at")?,
                due: Some(0),
            };
            self.index
                .announce_waits(session, &[hint], Timestamp::now())
                .await?;
            let statement = query(ANSWER)
                .bind(id.as_str())
                .bind(digest)
                .bind(json(answer));
            if let Some(row) = file.db.row(statement).await? {
                let row = file.reader(&row);
                return Ok(AnswerOutcome::Answered {
                    agent: row.parse("agent_id")?,
                    node: row.parse_optional("node_id")?,
                });
            }
        }
        let found = find(&file, id).await?.filter(|found| !found.is_stopped);
        Ok(found.map_or(AnswerOutcome::NotFound, |found| {
            let (row, answer) = found.wait;
            AnswerOutcome::Refused {
                row: Box::new(row),
                answer: answer.map(Box::new),
            }
        }))
    }

    async fn answers(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<(CallId, WaitAnswer)>, StoreError> {
        const ANSWERS: &str = "SELECT id, answer, opened_at, expires_at FROM waits
            WHERE agent_id = ?1 AND state IN ('open', 'answered') AND state = 'answered' ORDER BY seq";
        let Some(file) = self.file_if_any(session).await? else {
            return Ok(vec![]);
        };
        let rows = file.db.rows(query(ANSWERS).bind(agent.as_str())).await?;
        rows.iter().map(|row| file.reader(row).answer()).collect()
    }

    async fn session_rules(&self, session: &SessionId) -> Result<Vec<SessionRule>, StoreError> {
        let Some(file) = self.file_if_any(session).await? else {
            return Ok(vec![]);
        };
        let rows = file.db.rows(query(RULES)).await?;
        let found: Vec<FoundWait> = rows
            .iter()
            .map(|row| found(&file, file.reader(row)))
            .collect::<Result<_, _>>()?;
        let rules = found.into_iter().map(|found| session_rule(found.wait));
        Ok(rules.flatten().collect())
    }

    async fn expire_waits(&self) -> Result<u64, StoreError> {
        expire(self).await
    }
}

/// A wait in a session's file.
struct FoundWait {
    wait: WaitAndAnswer,
    is_stopped: bool,
    /// The bytes of the body and the answer.
    size: usize,
}

async fn find(file: &InUse, id: &CallId) -> Result<Option<FoundWait>, StoreError> {
    let row = file.db.row(query(WAIT).bind(id.as_str())).await?;
    row.map(|row| found(file, file.reader(&row))).transpose()
}

fn found(file: &InUse, row: SqliteRowReader<'_>) -> Result<FoundWait, StoreError> {
    let (body, answer): (&str, Option<&str>) = (row.get("body")?, row.get("answer")?);
    Ok(FoundWait {
        wait: row.wait(&file.id)?,
        is_stopped: row.get("stopped")?,
        size: body.len() + answer.map_or(0, str::len),
    })
}

// Keeps the index of waits in step with the session files, and expires waits. The index has each
// wait before its session's file has it, and says when a sweep has to look at the wait.

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
struct OpenedWait {
    id: CallId,
    expires_at: Option<Timestamp>,
}

/// Adds the waits that an append opens to the index. The caller does so before it writes them to
/// the session's file.
pub async fn announce_waits(
    store: &SqliteStore,
    session: &SessionId,
    batches: &[Batch],
) -> Result<(), StoreError> {
    let entries = batches.iter().flat_map(Batch::entries);
    let opening = entries.filter(|entry| entry.kind == EventKind::WaitOpened);
    let now = Timestamp::now();
    // A malformed body is left to the file, which refuses its batch.
    let hints = opening.filter_map(|entry| {
        let opened: OpenedWait = serde_json::from_str(&entry.body).ok()?;
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

// Lists waits in pages. The index, or the file of the session that the request names, gives the
// order of the waits, and each wait is read from its session's file.

/// The number of waits that are looked up at once.
const CANDIDATES: u32 = 200;

/// An estimate of the bytes that a wait has besides the body of its event and its answer.
const AROUND: usize = 400;

/// A wait that a page may show.
struct Candidate {
    session: SessionId,
    at: WaitCursor,
}

/// The waits of a page so far.
#[derive(Default)]
struct Page {
    waits: Vec<WaitRow>,
    bytes: usize,
    /// The position of the last wait.
    last: Option<WaitCursor>,
}

async fn waits(
    store: &SqliteStore,
    session: Option<&SessionId>,
    filter: &ListWaits,
) -> Result<WaitPage, StoreError> {
    let limit = usize::try_from(page::waits(filter.limit)).unwrap_or(usize::MAX);
    let state = filter.state.unwrap_or(WaitState::Open);
    let mut after = filter.after.as_deref().map(WaitCursor::parse).transpose()?;
    let mut page = Page::default();
    loop {
        let candidates = candidates(store, session, state, filter, after.as_ref()).await?;
        for candidate in &candidates {
            let found = match read(store, candidate).await {
                Err(error) if session.is_none() => {
                    tracing::warn!(session = %candidate.session, %error, "left a wait out of the list: it cannot be read");
                    continue;
                }
                found => found?,
            };
            let Some(found) = found.filter(|found| is_listed(found, state, filter)) else {
                continue;
            };
            let size = found.size + AROUND;
            let is_full = page.waits.len() >= limit || page.bytes + size > LOG_BYTES;
            if is_full && page.last.is_some() {
                return Ok(WaitPage {
                    waits: page.waits,
                    next: page.last.map(|last| last.to_string()),
                });
            }
            page.bytes += size;
            page.last = Some(candidate.at.clone());
            page.waits.push(found.wait.0);
        }
        let is_over = candidates.len() < usize::try_from(CANDIDATES).unwrap_or(usize::MAX);
        after = candidates.into_iter().next_back().map(|last| last.at);
        if is_over {
            return Ok(WaitPage {
                waits: page.waits,
                next: None,
            });
        }
    }
}

/// Returns the next waits after a position. Those from the index may be in any state, and some may
/// not exist.
async fn candidates(
    store: &SqliteStore,
    session: Option<&SessionId>,
    state: WaitState,
    filter: &ListWaits,
    after: Option<&WaitCursor>,
) -> Result<Vec<Candidate>, StoreError> {
    const OF_SESSION: &str = "SELECT id, opened_at FROM waits
        WHERE state = ?1 AND (opened_at, id) > (?2, ?3) AND substr(id, 1, length(?5)) = ?5 ORDER BY opened_at, id LIMIT ?4";
    const NEWEST_OF_SESSION: &str = "SELECT id, opened_at FROM waits
        WHERE state = ?1 AND (opened_at, id) < (?2, ?3) AND substr(id, 1, length(?5)) = ?5 ORDER BY opened_at DESC, id DESC LIMIT ?4";
    let Some(session) = session else {
        let hints = store
            .index
            .waits_after(after, is_live(state), filter, CANDIDATES)
            .await?;
        let candidate = |(session, at)| Candidate { session, at };
        return Ok(hints.into_iter().map(candidate).collect());
    };
    let Some(file) = store.file_if_any(session).await? else {
        return Ok(vec![]);
    };
    let (text, first) = match filter.newest {
        true => (NEWEST_OF_SESSION, i64::MAX),
        false => (OF_SESSION, -1),
    };
    let statement = query(text)
        .bind(state.name())
        .bind(after.map_or(first, |after| after.opened_at.millis()))
        .bind(after.map_or("", |after| after.id.as_str()))
        .bind(CANDIDATES)
        .bind(filter.id.as_deref().unwrap_or_default());
    let rows = file.db.rows(statement).await?;
    let candidate = |row| {
        let row: SqliteRowReader<'_> = file.reader(row);
        let (id, opened_at): (CallId, Timestamp) =
            (row.parse::<CallId>("id")?, row.timestamp("opened_at")?);
        Ok(Candidate {
            session: session.clone(),
            at: WaitCursor { opened_at, id },
        })
    };
    rows.iter().map(candidate).collect()
}

async fn read(store: &SqliteStore, candidate: &Candidate) -> Result<Option<FoundWait>, StoreError> {
    let Some(file) = store.file_if_any(&candidate.session).await? else {
        return Ok(None);
    };
    find(&file, &candidate.at.id).await
}

fn is_listed(found: &FoundWait, state: WaitState, filter: &ListWaits) -> bool {
    let (row, _) = &found.wait;
    row.state == state
        && filter.kind.is_none_or(|kind| kind == row.kind)
        && !(found.is_stopped && is_live(state))
}
