//! The events of sessions: as pages of the log, or as a stream.

use std::sync::Arc;

use axum::{
    Json,
    extract::{RawQuery, State},
    http::{HeaderMap, header},
    response::{IntoResponse as _, Response},
};
use planck_common::{InputId, Seq, command::ReadEvents};
use schemars::JsonSchema;
use serde::Deserialize;

use super::stream::{self, Position};
use crate::{
    body::{self, Arguments, Id},
    front::Front,
    problem::Problem,
};

/// The maximum number of sessions in one stream.
const SESSIONS: usize = 32;

/// What a reader of a session's events asks for.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ReadOrFollow {
    #[serde(default)]
    from: Option<Seq>,
    /// For a page only. A stream with it is refused.
    #[serde(default)]
    limit: Option<u32>,
    /// For a page only. A stream with it is refused.
    #[serde(default)]
    agent: Option<String>,
    /// For a stream: it ends with the event `outcome` when the work on this prompt is over.
    #[serde(default)]
    prompt: Option<InputId>,
}

/// Answers with a page of the log, or, if the client accepts `text/event-stream`, with a stream.
pub async fn of_session(
    State(front): State<Arc<Front>>,
    Id(session): Id,
    headers: HeaderMap,
    Arguments(read): Arguments<ReadOrFollow>,
) -> Result<Response, Problem> {
    if !wants_stream(&headers) {
        if read.prompt.is_some() {
            return Err(Problem::bad_request(
                "`prompt` is for streams; send `Accept: text/event-stream`",
            ));
        }
        let page = ReadEvents {
            from: read.from,
            limit: read.limit,
            agent: read.agent,
        };
        let page = front.client().events(&session, &page).await?;
        return Ok(Json(page).into_response());
    }
    if read.agent.is_some() || read.limit.is_some() {
        return Err(Problem::bad_request(
            "a stream takes only `from` and `prompt`; `agent` and `limit` are for pages",
        ));
    }
    let last = last_event_id(&headers)?;
    let from = match last {
        Some(id) => Some(place(id)? + 1),
        None => read.from,
    };
    let position = Position {
        session,
        from: from.unwrap_or(1),
    };
    stream::open(&front, vec![position], false, read.prompt).await
}

/// Streams the events of several sessions. The id of an event says the place in each of them.
pub async fn of_sessions(
    State(front): State<Arc<Front>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let sessions = named_sessions(query.as_deref().unwrap_or_default())?;
    let last = last_event_id(&headers)?
        .map(places)
        .transpose()?
        .unwrap_or_default();
    let position = |session: String| {
        let known = last.iter().find(|(id, _)| *id == session);
        Position {
            from: known.map_or(1, |(_, seq)| seq + 1),
            session,
        }
    };
    let positions = sessions.into_iter().map(position).collect();
    stream::open(&front, positions, true, None).await
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = headers
        .get(header::ACCEPT)
        .and_then(|kinds| kinds.to_str().ok());
    accepted.is_some_and(|kinds| kinds.contains("text/event-stream"))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let id = headers.get("last-event-id").map(|id| id.to_str());
    id.transpose().map_err(|_| malformed(""))
}

fn malformed(id: &str) -> Problem {
    Problem::bad_request(format!(
        "malformed `Last-Event-ID` `{}`: send the `id` of the last event that you received",
        id.chars().take(80).collect::<String>()
    ))
}

fn place(id: &str) -> Result<Seq, Problem> {
    let seq = id.parse().ok().filter(|seq| (0..Seq::MAX).contains(seq));
    seq.ok_or_else(|| malformed(id))
}

/// Parses the places in several sessions, as `a:12,b:7`.
fn places(id: &str) -> Result<Vec<(String, Seq)>, Problem> {
    let one = |part: &str| {
        let (session, seq) = part.split_once(':').ok_or_else(|| malformed(id))?;
        body::id(session)?;
        Ok((session.to_owned(), place(seq)?))
    };
    id.split(',').take(SESSIONS).map(one).collect()
}

/// Returns the sessions that a query names, as `session=a&session=b` or `session=a,b`.
fn named_sessions(query: &str) -> Result<Vec<String>, Problem> {
    let values = query
        .split('&')
        .filter_map(|pair| pair.strip_prefix("session="));
    let mut sessions: Vec<String> = Vec::new();
    for session in values.flat_map(|value| value.split(',')) {
        body::id(session)?;
        if !sessions.iter().any(|known| known == session) {
            sessions.push(session.to_owned());
        }
    }
    if sessions.is_empty() || sessions.len() > SESSIONS {
        return Err(Problem::bad_request(format!(
            "name 1 to {SESSIONS} sessions: `/v1/events?session=a&session=b`"
        )));
    }
    Ok(sessions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_named_once() {
        let named = |query| named_sessions(query).ok();
        assert_eq!(named("session=a&session=b,a&x=1").unwrap(), ["a", "b"]);
        for wrong in ["", "session=", "session=a.b", "session=*", "session=%2a"] {
            assert_eq!(named(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ids_of_events_are_read_as_they_were_written() {
        assert_eq!(
            places("a:1,b:22").unwrap(),
            [("a".into(), 1), ("b".into(), 22)]
        );
        for wrong in ["", "a", "a:", "a:x", "a:-1", ":1"] {
            assert!(places(wrong).is_err(), "{wrong}");
        }
        assert_eq!(place("0").unwrap(), 0);
        assert!(place("-1").is_err() && place("9223372036854775807").is_err());
    }
}
