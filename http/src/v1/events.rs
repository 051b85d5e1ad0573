//! The events of sessions: as pages of the log, or as a stream.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{RawQuery, State},
    http::{HeaderMap, header},
    response::{IntoResponse as _, Response},
};
use futures_util::{StreamExt as _, stream::BoxStream};
use planck_client::{AwaitedOutcome, ClientError};
use planck_common::{
    InputId, Seq, SessionId,
    command::{Outcome, ReadEvents},
    event::json,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json as value;

use crate::{
    body::{self, Id, QueryArguments},
    feed::{Cursor, FeedItem},
    front::Front,
    problem::Problem,
    sse::{self, EventFrame, EventSender, StreamCut},
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
    QueryArguments(read): QueryArguments<ReadOrFollow>,
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
    open_stream(&front, vec![position], false, read.prompt).await
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
    open_stream(&front, positions, true, None).await
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
    let mut sessions: Vec<String> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        body::check_parameter(name, &["session"])?;
        for session in value.split(',') {
            body::id(session)?;
            if !sessions.iter().any(|known| known == session) {
                sessions.push(session.to_owned());
            }
        }
    }
    if sessions.is_empty() || sessions.len() > SESSIONS {
        return Err(Problem::bad_request(format!(
            "name 1 to {SESSIONS} sessions: `/v1/events?session=a&session=b`"
        )));
    }
    Ok(sessions)
}

/// How long a client waits before it connects again.
const RETRY: Duration = Duration::from_secs(1);
/// How long an event may be late that the log has. A lost event must not keep the outcome back.
const LATE: Duration = Duration::from_secs(2);

/// A session, by id or name, and the number of the first event to send.
#[derive(Debug)]
pub struct Position {
    pub session: String,
    pub from: Seq,
}

/// The items of the sessions of a stream, each with the session's index.
type SessionItems = BoxStream<'static, (usize, Result<Vec<FeedItem>, Problem>)>;

/// A stream to one client.
struct ClientStream {
    sessions: Vec<SentSession>,
    /// Whether ids name the sessions.
    is_of_several: bool,
    items: SessionItems,
    /// The outcome of a prompt, with which the stream ends.
    work: AwaitedOutcome,
}

/// What a stream has to pass on.
enum StreamNews {
    Items(Option<(usize, Result<Vec<FeedItem>, Problem>)>),
    Over(Result<Outcome, ClientError>),
}

/// A session, and the number of the last event that was sent.
struct SentSession {
    id: SessionId,
    /// The name or id by which the client knows the session.
    asked: String,
    sent: Seq,
}

/// Answers with the events of sessions, from the given places on. With a prompt, which is one of the
/// first session, the stream ends with the prompt's outcome.
async fn open_stream(
    front: &Arc<Front>,
    positions: Vec<Position>,
    is_of_several: bool,
    prompt: Option<InputId>,
) -> Result<Response, Problem> {
    let mut sessions = Vec::new();
    let mut cursors = Vec::new();
    for (index, position) in positions.into_iter().enumerate() {
        let id = match front.fed_session(&position.session) {
            Some(id) => id,
            None => front.client().session(&position.session).await?.id,
        };
        let sent = position.from.max(1) - 1;
        let cursor = Cursor::after(sent, front.client().clone(), front.feed(&id)).await?;
        cursors.push(items(index, cursor));
        sessions.push(SentSession {
            id,
            asked: position.session,
            sent,
        });
    }
    let work = match (sessions.first(), prompt) {
        (Some(session), Some(prompt)) => {
            let (client, session) = (front.client(), &session.id);
            // A prompt that is unknown is refused before the stream begins.
            client.outcome(session, &prompt, Duration::ZERO).await?;
            AwaitedOutcome::of_prompt(client, session, &prompt, LATE)
        }
        (_, _) => AwaitedOutcome::new(std::future::pending(), LATE),
    };
    let mut stream = ClientStream {
        sessions,
        is_of_several,
        items: futures_util::stream::select_all(cursors).boxed(),
        work,
    };
    Ok(sse::stream(front, |events| async move {
        if let Err(StreamCut::TooSlow) = stream.pass_on(&events).await {
            tracing::info!("cut off a client that reads too slowly");
            events.end(stream.head());
        }
    }))
}

/// Returns the items of a cursor. An error is the last item.
fn items(index: usize, cursor: Cursor) -> SessionItems {
    futures_util::stream::unfold(Some(cursor), move |cursor| async move {
        let mut cursor = cursor?;
        let items = cursor.next_items().await;
        let rest = items.is_ok().then_some(cursor);
        Some(((index, items), rest))
    })
    .boxed()
}

impl ClientStream {
    async fn next(&mut self) -> StreamNews {
        let sent = self.sessions.first().map_or(0, |session| session.sent);
        tokio::select! {
            items = self.items.next() => StreamNews::Items(items),
            over = self.work.reached(|outcome| outcome.head <= sent) => StreamNews::Over(over),
        }
    }

    async fn pass_on(&mut self, events: &EventSender) -> Result<(), StreamCut> {
        events.send(EventFrame::retry(RETRY)).await?;
        loop {
            match events.wait_for(self.next()).await? {
                StreamNews::Items(Some((index, Ok(items)))) => {
                    for item in items {
                        if let Some(frame) = self.frame(index, item) {
                            events.send(frame).await?;
                        }
                    }
                }
                StreamNews::Items(Some((_, Err(problem)))) => {
                    events
                        .send(EventFrame::named("error", &json(&problem)))
                        .await?;
                }
                StreamNews::Items(None) => return Ok(()),
                StreamNews::Over(over) => {
                    let frame = match over {
                        Ok(outcome) => EventFrame::named("outcome", &json(&outcome)),
                        Err(error) => EventFrame::named("error", &json(&Problem::from(error))),
                    };
                    return events.send(frame).await;
                }
            }
        }
    }

    /// Returns the frame for an item, and records the place of a durable event.
    fn frame(&mut self, index: usize, item: FeedItem) -> Option<EventFrame> {
        let session = self.sessions.get_mut(index)?;
        let at = |seq: Seq| value!({"session_id": session.id, "seq": seq}).to_string();
        Some(match item {
            FeedItem::Event(event) => match event.seq {
                Some(seq) => {
                    session.sent = seq;
                    EventFrame::data(Some(&self.place()), &event.json)
                }
                None => EventFrame::data(None, &event.json),
            },
            FeedItem::Retracted(retracted) => EventFrame::named("retracted", &at(retracted.seq)),
            FeedItem::CaughtUp => EventFrame::named("caught_up", &at(session.sent)),
            FeedItem::Retrying => EventFrame::comment(),
        })
    }

    /// Returns the place from which the client continues.
    fn place(&self) -> String {
        let one = |session: &SentSession| match self.is_of_several {
            true => format!("{}:{}", session.asked, session.sent),
            false => session.sent.to_string(),
        };
        self.sessions.iter().map(one).collect::<Vec<_>>().join(",")
    }

    /// Returns the last frame of a stream that was cut off.
    fn head(&self) -> EventFrame {
        let head = |session: &SentSession| value!({"session_id": session.id, "seq": session.sent});
        let heads: Vec<_> = self.sessions.iter().map(head).collect();
        match heads.first().filter(|_| !self.is_of_several) {
            Some(head) => EventFrame::named("head", &json(head)),
            None => EventFrame::named("head", &json(&heads)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_named_once() {
        let named = |query| named_sessions(query).ok();
        assert_eq!(named("session=a&&session=b,a").unwrap(), ["a", "b"]);
        for wrong in [
            "",
            "session=",
            "session=a.b",
            "session=*",
            "session=%2a",
            "session=a&x=1",
        ] {
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

    #[test]
    fn head_is_an_object_for_one_session_and_a_list_for_several() {
        let sessions = |ids: &[&str]| {
            let sent = |id: &&str| SentSession {
                id: SessionId::parse(id).unwrap(),
                asked: (*id).to_owned(),
                sent: 7,
            };
            ids.iter().map(sent).collect()
        };
        for (ids, is_of_several, expected) in [
            (&["a"][..], false, r#"{"seq":7,"session_id":"a"}"#),
            (&["a"], true, r#"[{"seq":7,"session_id":"a"}]"#),
            (
                &["a", "b"],
                true,
                r#"[{"seq":7,"session_id":"a"},{"seq":7,"session_id":"b"}]"#,
            ),
        ] {
            let stream = ClientStream {
                sessions: sessions(ids),
                is_of_several,
                items: futures_util::stream::empty().boxed(),
                work: AwaitedOutcome::new(std::future::pending(), LATE),
            };
            assert_eq!(stream.head(), EventFrame::named("head", expected));
        }
    }
}
