//! Lists waits in pages. The index, or the file of the session that the request names, gives the
//! order of the waits, and each wait is read from its session's file.

use planck_common::{
    CallId, SessionId, Timestamp,
    command::{ListWaits, WaitRow, Waits as WaitPage},
    wait::WaitState,
};
use sqlx::query;

use super::{FoundWait, find};
use crate::{
    StoreError,
    page::{self, LOG_BYTES, WaitCursor},
    sqlite::{SqliteStore, db::RowReader},
    waits::is_live,
};

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

pub async fn waits(
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
        let row: RowReader<'_> = file.reader(row);
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
