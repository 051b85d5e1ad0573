//! Streams of the events of sessions: the log from a place on, and then what happens.

use std::{sync::Arc, time::Duration};

use axum::response::Response;
use futures_util::{StreamExt as _, stream::BoxStream};
use planck_client::{ClientError, Follow, FollowEvent};
use planck_common::{Seq, SessionId, event::json};

use crate::{
    front::Front,
    problem::Problem,
    sse::{self, Cut, EventSender, Frame, HEARTBEAT},
};

/// How long a client waits before it connects again.
const RETRY: Duration = Duration::from_secs(1);

/// A session, by id or name, and the number of the first event to send.
#[derive(Debug)]
pub struct Position {
    pub session: String,
    pub from: Seq,
}

/// The items of the sessions of a stream, each with the session's index.
type Items = BoxStream<'static, (usize, Result<FollowEvent, ClientError>)>;

/// A stream to one client.
struct ClientStream {
    sessions: Vec<SentSession>,
    /// Whether ids name the sessions.
    is_of_several: bool,
    items: Items,
}

/// A session, and the number of the last event that was sent.
struct SentSession {
    id: SessionId,
    /// The name or id by which the client knows the session.
    asked: String,
    sent: Seq,
}

/// Answers with the events of sessions, from the given places on.
pub async fn open(
    front: &Arc<Front>,
    positions: Vec<Position>,
    is_of_several: bool,
) -> Result<Response, Problem> {
    let mut sessions = Vec::new();
    let mut followers = Vec::new();
    for (index, position) in positions.into_iter().enumerate() {
        let info = front.client().session(&position.session).await?;
        if position.from > info.head + 1 {
            return Err(Problem::bad_request(format!(
                "session `{}` has {} events; the place {} is beyond them",
                position.session,
                info.head,
                position.from - 1
            )));
        }
        let follower = front.client().follow(&info.id, position.from).await?;
        followers.push(items(index, follower));
        sessions.push(SentSession {
            id: info.id,
            asked: position.session,
            sent: position.from.max(1) - 1,
        });
    }
    let mut stream = ClientStream {
        sessions,
        is_of_several,
        items: futures_util::stream::select_all(followers).boxed(),
    };
    Ok(sse::stream(front, |events| async move {
        if let Err(Cut::TooSlow) = stream.pass_on(&events).await {
            tracing::info!("cut off a client that reads too slowly");
            events.end(stream.head());
        }
    }))
}

/// Returns the items of a follower. An error is the last item.
fn items(index: usize, follower: Follow) -> Items {
    futures_util::stream::unfold(Some(follower), move |follower| async move {
        let mut follower = follower?;
        let item = follower.next().await;
        let rest = item.is_ok().then_some(follower);
        Some(((index, item), rest))
    })
    .boxed()
}

impl ClientStream {
    async fn pass_on(&mut self, events: &EventSender) -> Result<(), Cut> {
        events.send(Frame::retry(RETRY)).await?;
        loop {
            match tokio::time::timeout(HEARTBEAT, self.items.next()).await {
                Ok(Some((index, item))) => {
                    if let Some(frame) = self.frame(index, item) {
                        events.send(frame).await?;
                    }
                }
                Ok(None) => return Ok(()),
                Err(_) => events.send(Frame::comment()).await?,
            }
        }
    }

    /// Returns the frame for an item, and records the place of a durable event.
    fn frame(&mut self, index: usize, item: Result<FollowEvent, ClientError>) -> Option<Frame> {
        let frame = match item {
            Ok(FollowEvent::Durable(event)) => {
                if let (Some(session), Some(seq)) = (self.sessions.get_mut(index), event.seq) {
                    session.sent = seq;
                }
                Frame::data(Some(&self.place()), &json(&event))
            }
            Ok(FollowEvent::Live(event)) => Frame::data(None, &json(&event)),
            Ok(FollowEvent::Retracted(retracted)) => {
                let session = self.sessions.get(index)?;
                let gone = serde_json::json!({"session_id": session.id, "seq": retracted.seq});
                Frame::named("retracted", &gone.to_string())
            }
            Ok(FollowEvent::CaughtUp) => {
                let session = self.sessions.get(index)?;
                let head = serde_json::json!({"session_id": session.id, "seq": session.sent});
                Frame::named("caught_up", &head.to_string())
            }
            Ok(FollowEvent::Retrying(_)) => Frame::comment(),
            Err(error) => Frame::named("error", &json(&Problem::from(error))),
        };
        Some(frame)
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
        let heads: Vec<_> = self
            .sessions
            .iter()
            .map(|session| serde_json::json!({"session_id": session.id, "seq": session.sent}))
            .collect();
        Frame::named("head", &json(&heads))
    }
}
