//! Streams of the events of sessions: the log from a place on, and then what happens.

use std::{sync::Arc, time::Duration};

use axum::response::Response;
use futures_util::{StreamExt as _, stream::BoxStream};
use planck_client::{AwaitedOutcome, ClientError};
use planck_common::{InputId, Seq, SessionId, command::Outcome, event::json};
use serde_json::json as value;

use crate::{
    feed::{Cursor, FeedItem},
    front::Front,
    problem::Problem,
    sse::{self, Cut, EventSender, Frame},
};

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
type Items = BoxStream<'static, (usize, Result<Vec<FeedItem>, Problem>)>;

/// A stream to one client.
struct ClientStream {
    sessions: Vec<SentSession>,
    /// Whether ids name the sessions.
    is_of_several: bool,
    items: Items,
    /// The outcome of a prompt, with which the stream ends.
    work: AwaitedOutcome,
}

/// What a stream has to pass on.
enum Next {
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
pub async fn open(
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
        if let Err(Cut::TooSlow) = stream.pass_on(&events).await {
            tracing::info!("cut off a client that reads too slowly");
            events.end(stream.head());
        }
    }))
}

/// Returns the items of a cursor. An error is the last item.
fn items(index: usize, cursor: Cursor) -> Items {
    futures_util::stream::unfold(Some(cursor), move |cursor| async move {
        let mut cursor = cursor?;
        let items = cursor.next_items().await;
        let rest = items.is_ok().then_some(cursor);
        Some(((index, items), rest))
    })
    .boxed()
}

impl ClientStream {
    async fn next(&mut self) -> Next {
        let sent = self.sessions.first().map_or(0, |session| session.sent);
        tokio::select! {
            items = self.items.next() => Next::Items(items),
            over = self.work.reached(|outcome| outcome.head <= sent) => Next::Over(over),
        }
    }

    async fn pass_on(&mut self, events: &EventSender) -> Result<(), Cut> {
        events.send(Frame::retry(RETRY)).await?;
        loop {
            match events.wait_for(self.next()).await? {
                Next::Items(Some((index, Ok(items)))) => {
                    for item in items {
                        if let Some(frame) = self.frame(index, item) {
                            events.send(frame).await?;
                        }
                    }
                }
                Next::Items(Some((_, Err(problem)))) => {
                    events.send(Frame::named("error", &json(&problem))).await?;
                }
                Next::Items(None) => return Ok(()),
                Next::Over(over) => {
                    let frame = match over {
                        Ok(outcome) => Frame::named("outcome", &json(&outcome)),
                        Err(error) => Frame::named("error", &json(&Problem::from(error))),
                    };
                    return events.send(frame).await;
                }
            }
        }
    }

    /// Returns the frame for an item, and records the place of a durable event.
    fn frame(&mut self, index: usize, item: FeedItem) -> Option<Frame> {
        let session = self.sessions.get_mut(index)?;
        let at = |seq: Seq| value!({"session_id": session.id, "seq": seq}).to_string();
        Some(match item {
            FeedItem::Event(event) => match event.seq {
                Some(seq) => {
                    session.sent = seq;
                    Frame::data(Some(&self.place()), &event.json)
                }
                None => Frame::data(None, &event.json),
            },
            FeedItem::Retracted(retracted) => Frame::named("retracted", &at(retracted.seq)),
            FeedItem::CaughtUp => Frame::named("caught_up", &at(session.sent)),
            FeedItem::Retrying => Frame::comment(),
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
    fn head(&self) -> Frame {
        let head = |session: &SentSession| value!({"session_id": session.id, "seq": session.sent});
        let heads: Vec<_> = self.sessions.iter().map(head).collect();
        match heads.first().filter(|_| !self.is_of_several) {
            Some(head) => Frame::named("head", &json(head)),
            None => Frame::named("head", &json(&heads)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(stream.head(), Frame::named("head", expected));
        }
    }
}
