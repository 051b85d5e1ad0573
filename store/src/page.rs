//! The limits of pages, and the cursors of the lists of sessions and of waits.

use planck_common::{
    CallId, SessionId, Timestamp,
    command::{SessionRow, Sessions},
    event::json,
};

use super::StoreError;

/// The maximum number of rows in a page of the log or of messages. Summaries are not counted.
pub const LOG_ROWS: u32 = 500;

/// The maximum number of bytes in a page of the log, of messages, of sessions or of waits. Summaries
/// are not counted, and a single row may be larger.
pub const LOG_BYTES: usize = 512 * 1024;

/// Returns the number of sessions in a page: `limit`, which defaults to 100 and is capped at 1,000.
pub fn sessions(limit: Option<u32>) -> u32 {
    limit.unwrap_or(100).clamp(1, 1_000)
}

/// Returns the number of waits in a page: `limit`, which defaults to 100 and is capped at 500.
pub fn waits(limit: Option<u32>) -> u32 {
    limit.unwrap_or(100).clamp(1, 500)
}

/// The position of a session in the list, which is ordered by creation time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCursor {
    pub created_at: Timestamp,
    pub id: SessionId,
}

impl SessionCursor {
    fn of(row: &SessionRow) -> Self {
        Self {
            created_at: row.created_at,
            id: row.id.clone(),
        }
    }

    /// Parses the `next` of a page. Earlier versions write `.` instead of `_` as the separator on
    /// Postgres, so both are accepted.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let (created_at, id) = position(text, &['_', '.'], |id| SessionId::parse(id).ok())?;
        Ok(Self { created_at, id })
    }
}

impl std::fmt::Display for SessionCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}", self.created_at.millis(), self.id)
    }
}

/// Returns a page of as many of the sessions as fit into [`LOG_BYTES`]. `next` is the position after
/// the last session.
pub fn fit(mut sessions: Vec<SessionRow>, mut next: Option<String>) -> Sessions {
    let (mut bytes, mut count) = (0, 0);
    for row in &sessions {
        bytes += json(row).len() + 1;
        if bytes > LOG_BYTES && count > 0 {
            break;
        }
        count += 1;
    }
    if count < sessions.len() {
        sessions.truncate(count);
        next = sessions
            .last()
            .map(|last| SessionCursor::of(last).to_string());
    }
    Sessions { sessions, next }
}

/// The position of a wait in the list, which is ordered by the time at which the waits were opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitCursor {
    pub opened_at: Timestamp,
    pub id: CallId,
}

impl WaitCursor {
    /// Parses the `next` of a page.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let (opened_at, id) = position(text, &['_'], |id| CallId::parse(id).ok())?;
        Ok(Self { opened_at, id })
    }
}

impl std::fmt::Display for WaitCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}", self.opened_at.millis(), self.id)
    }
}

fn position<I>(
    text: &str,
    separators: &[char],
    id: impl Fn(&str) -> Option<I>,
) -> Result<(Timestamp, I), StoreError> {
    let parsed = text
        .split_once(separators)
        .and_then(|(at, rest)| Some((Timestamp::from_millis(at.parse().ok()?), id(rest)?)));
    parsed.ok_or_else(|| {
        StoreError::BadRequest(format!("`after` is not the `next` of a page: `{text}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_is_read_as_it_was_written() {
        let cursor = SessionCursor {
            created_at: Timestamp::from_millis(1_767_268_800_000),
            id: SessionId::mint(),
        };
        let text = cursor.to_string();
        assert_eq!(SessionCursor::parse(&text).unwrap(), cursor);
        let earlier = text.replacen('_', ".", 1);
        assert_eq!(SessionCursor::parse(&earlier).unwrap(), cursor);
        for malformed in ["", "7", "x_y", "7_"] {
            let refused = SessionCursor::parse(malformed).unwrap_err().to_string();
            assert!(refused.contains(malformed), "{refused}");
        }
    }

    #[test]
    fn cursor_of_waits_is_read_as_it_was_written() {
        let cursor = WaitCursor {
            opened_at: Timestamp::from_millis(1_767_268_800_000),
            id: CallId::parse("call_a-b_c").unwrap(),
        };
        assert_eq!(WaitCursor::parse(&cursor.to_string()).unwrap(), cursor);
        for malformed in ["", "7", "x_y", "7_"] {
            let refused = WaitCursor::parse(malformed).unwrap_err().to_string();
            assert!(refused.contains(malformed), "{refused}");
        }
    }
}
