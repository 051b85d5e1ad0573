//! The index of waits. A row may be out of date, but every wait that is open or answered has a row
//! whose `due` is not null.

use planck_common::{CallId, SessionId, Timestamp, command::ListWaits, event::json};
use sqlx::query;

use super::Index;
use crate::{StoreError, page::WaitCursor, sqlite::db::SqliteRowReader};

/// A wait to write to the index.
#[derive(Debug)]
pub struct WaitHint {
    pub id: CallId,
    pub opened_at: Timestamp,
    /// When a sweep has to look at the wait, in milliseconds since 1970, or `None` if it has ended.
    pub due: Option<i64>,
}

/// A wait at which a sweep has to look.
#[derive(Debug)]
pub struct DueWait {
    pub session: SessionId,
    pub id: CallId,
    /// When the wait was announced. Each announcement has a later time.
    pub at: Timestamp,
    pub due: i64,
}

impl Index {
    /// Adds waits to the index, or replaces them. The caller does so before it changes them in the
    /// session's file.
    pub async fn announce_waits(
        &self,
        session: &SessionId,
        hints: &[WaitHint],
        at: Timestamp,
    ) -> Result<(), StoreError> {
        const ANNOUNCE: &str = "INSERT INTO waits (session_id, id, opened_at, at, due)
            SELECT ?1, value->>0, value->>1, ?2, value->>2 FROM json_each(?3) WHERE true
            ON CONFLICT (session_id, id) DO UPDATE
              SET opened_at = excluded.opened_at, at = max(excluded.at, at + 1), due = excluded.due";
        let fields: Vec<_> = hints
            .iter()
            .map(|hint| (&hint.id, hint.opened_at.millis(), hint.due))
            .collect();
        let statement = query(ANNOUNCE)
            .bind(session.as_str())
            .bind(at.millis())
            .bind(json(&fields));
        self.execute(statement).await.map(drop)
    }

    /// Returns the waits at which a sweep has to look now.
    pub async fn due_waits(&self, now: Timestamp) -> Result<Vec<DueWait>, StoreError> {
        const DUE: &str = "SELECT session_id, id, at, due FROM waits
            WHERE due IS NOT NULL AND due <= ?1 ORDER BY session_id";
        let due = |row: SqliteRowReader<'_>| {
            Ok(DueWait {
                session: row.parse("session_id")?,
                id: row.parse("id")?,
                at: row.timestamp("at")?,
                due: row.get("due")?,
            })
        };
        self.read(query(DUE).bind(now.millis()), due).await
    }

    /// Records when a sweep has to look again at waits, or `None` for those that have ended. Leaves
    /// out waits that were announced again meanwhile.
    pub async fn looked_at_waits(
        &self,
        session: &SessionId,
        waits: &[(&DueWait, Option<i64>)],
    ) -> Result<(), StoreError> {
        const LOOKED: &str = "UPDATE waits SET due = l.value->>2 FROM json_each(?2) l
            WHERE session_id = ?1 AND waits.id = l.value->>0 AND at = l.value->>1";
        if waits.is_empty() {
            return Ok(());
        }
        let fields: Vec<_> = waits
            .iter()
            .map(|(wait, due)| (&wait.id, wait.at.millis(), due))
            .collect();
        let statement = query(LOOKED).bind(session.as_str()).bind(json(&fields));
        self.execute(statement).await.map(drop)
    }

    /// Removes waits from the index, except those that were announced again meanwhile.
    pub async fn forget_waits(
        &self,
        session: &SessionId,
        waits: &[&DueWait],
    ) -> Result<(), StoreError> {
        const FORGET: &str = "DELETE FROM waits WHERE session_id = ?1
            AND (id, at) IN (SELECT value->>0, value->>1 FROM json_each(?2))";
        if waits.is_empty() {
            return Ok(());
        }
        let fields: Vec<_> = waits
            .iter()
            .map(|wait| (&wait.id, wait.at.millis()))
            .collect();
        let statement = query(FORGET).bind(session.as_str()).bind(json(&fields));
        self.execute(statement).await.map(drop)
    }

    /// Returns waits after a position in the list, in the order of the filter: those that may be open
    /// or answered if `is_live` is set, otherwise all.
    pub async fn waits_after(
        &self,
        after: Option<&WaitCursor>,
        is_live: bool,
        filter: &ListWaits,
        limit: u32,
    ) -> Result<Vec<(SessionId, WaitCursor)>, StoreError> {
        const LIVE: &str = "SELECT session_id, id, opened_at FROM waits
            WHERE due IS NOT NULL AND (opened_at, id) > (?1, ?2) AND substr(id, 1, length(?4)) = ?4 ORDER BY opened_at, id LIMIT ?3";
        const ALL: &str = "SELECT session_id, id, opened_at FROM waits
            WHERE (opened_at, id) > (?1, ?2) AND substr(id, 1, length(?4)) = ?4 ORDER BY opened_at, id LIMIT ?3";
        const NEWEST_LIVE: &str = "SELECT session_id, id, opened_at FROM waits
            WHERE due IS NOT NULL AND (opened_at, id) < (?1, ?2) AND substr(id, 1, length(?4)) = ?4 ORDER BY opened_at DESC, id DESC LIMIT ?3";
        const NEWEST: &str = "SELECT session_id, id, opened_at FROM waits
            WHERE (opened_at, id) < (?1, ?2) AND substr(id, 1, length(?4)) = ?4 ORDER BY opened_at DESC, id DESC LIMIT ?3";
        let (text, first) = match (filter.newest, is_live) {
            (false, true) => (LIVE, -1),
            (false, false) => (ALL, -1),
            (true, true) => (NEWEST_LIVE, i64::MAX),
            (true, false) => (NEWEST, i64::MAX),
        };
        let statement = query(text)
            .bind(after.map_or(first, |after| after.opened_at.millis()))
            .bind(after.map_or(String::new(), |after| after.id.to_string()))
            .bind(limit)
            .bind(filter.id.clone().unwrap_or_default());
        let wait = |row: SqliteRowReader<'_>| {
            let at = WaitCursor {
                opened_at: row.timestamp("opened_at")?,
                id: row.parse("id")?,
            };
            Ok((row.parse::<SessionId>("session_id")?, at))
        };
        self.read(statement, wait).await
    }
}
