//! Server-sent events: a response that a task fills, with bounded memory for each client.

use std::{fmt::Display, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use super::front::Front;
use crate::health::FrontCounters;

/// The maximum number of bytes that wait for one client.
const ROOM: usize = 1 << 20;
/// The part of [`ROOM`] that a small frame takes, so that the number of frames is bounded too.
const LEAST: usize = 4 << 10;
/// How long a client may take to make room. A slower client is cut off, and continues by the id of
/// the last event that it received.
const SLOWEST: Duration = Duration::from_secs(10);
/// The time between two comments, which keep proxies from closing an idle connection.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The client is gone, the front stops, or the client reads too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamCut {
    Gone,
    TooSlow,
}

/// The sending end of a stream of events.
pub struct EventSender {
    sender: mpsc::Sender<(Bytes, Option<OwnedSemaphorePermit>)>,
    room: Arc<Semaphore>,
    counters: Arc<FrontCounters>,
}

impl EventSender {
    /// Sends a frame, and waits for room if necessary.
    pub async fn send(&self, frame: EventFrame) -> Result<(), StreamCut> {
        let size = frame.0.len().clamp(LEAST, ROOM);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(size);
        let place = tokio::select! {
            place = tokio::time::timeout(SLOWEST, room) => place.map_err(|_| self.cut_off())?.ok(),
            () = self.sender.closed() => return Err(StreamCut::Gone),
        };
        self.counters.sent_frame();
        let frame = (Bytes::from(frame.0), place);
        self.sender.send(frame).await.map_err(|_| StreamCut::Gone)
    }

    /// Waits for the result of `work`. Comments keep the connection open meanwhile.
    pub async fn wait_for<T>(&self, work: impl Future<Output = T>) -> Result<T, StreamCut> {
        let mut work = std::pin::pin!(work);
        loop {
            match tokio::time::timeout(HEARTBEAT, &mut work).await {
                Ok(result) => return Ok(result),
                Err(_) => self.send(EventFrame::comment()).await?,
            }
        }
    }

    fn cut_off(&self) -> StreamCut {
        self.counters.cut_off();
        StreamCut::TooSlow
    }

    /// Sends the last frame, for which there is always a place.
    pub fn end(self, frame: EventFrame) {
        let _ = self.sender.try_send((Bytes::from(frame.0), None));
    }

    /// Waits until the client is gone.
    pub async fn gone(&self) {
        self.sender.closed().await;
    }
}

/// A frame of a stream of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventFrame(String);

impl EventFrame {
    /// A comment, which clients ignore.
    pub fn comment() -> Self {
        Self(":\n\n".into())
    }

    /// Tells the client how long to wait before it connects again.
    pub fn retry(pause: Duration) -> Self {
        Self(format!("retry: {}\n\n", pause.as_millis()))
    }

    /// An event without a name, whose data is JSON. `id` is the place from which a client continues.
    pub fn data(id: Option<&dyn Display>, json: &str) -> Self {
        Self::write(id, None, json)
    }

    /// An event with a name.
    pub fn named(name: &str, json: &str) -> Self {
        Self::write(None, Some(name), json)
    }

    /// Appends another frame, which is sent with this one.
    pub fn and(self, next: Self) -> Self {
        Self(self.0 + &next.0)
    }

    fn write(id: Option<&dyn Display>, name: Option<&str>, json: &str) -> Self {
        let mut text = String::with_capacity(json.len() + 48);
        if let Some(id) = id {
            text.push_str(&format!("id: {id}\n"));
        }
        if let Some(name) = name {
            text.push_str(&format!("event: {name}\n"));
        }
        text.push_str("data: ");
        // A line end in JSON is whitespace between tokens, so a space can replace it.
        text.extend(
            json.chars()
                .map(|c| if matches!(c, '\n' | '\r') { ' ' } else { c }),
        );
        text.push_str("\n\n");
        Self(text)
    }
}

/// Returns a response that `fill` fills in a task of its own. The task ends when the client is gone
/// or the front stops.
pub fn stream<F>(front: &Front, fill: impl FnOnce(EventSender) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    // One place is for the last frame.
    let (sender, receiver) = mpsc::channel(ROOM / LEAST + 1);
    let filling = fill(EventSender {
        sender,
        room: Arc::new(Semaphore::new(ROOM)),
        counters: Arc::clone(front.counters()),
    });
    let (stop, open) = (front.stop().clone(), front.counters().opened());
    front.tasks().spawn(async move {
        let _open = open;
        let _ = stop.run_until_cancelled(filling).await;
    });
    let frames =
        ReceiverStream::new(receiver).map(|(frame, _place)| Ok::<_, std::io::Error>(frame));
    let mut response = Body::from_stream(frames).into_response();
    let headers = response.headers_mut();
    let values = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // nginx holds responses back otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    for (name, value) in values {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_one_line_of_data() {
        let frame = EventFrame::data(Some(&7), "{\"a\":\n1}");
        assert_eq!(frame.0, "id: 7\ndata: {\"a\": 1}\n\n");
        assert_eq!(
            EventFrame::named("head", "{}").0,
            "event: head\ndata: {}\n\n"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn slow_client_is_cut_off_and_gets_the_last_frame() {
        let (sender, mut receiver) = mpsc::channel(ROOM / LEAST + 1);
        let events = EventSender {
            sender,
            room: Arc::new(Semaphore::new(ROOM)),
            counters: Arc::default(),
        };
        let mut sent = 0;
        let cut = loop {
            match events.send(EventFrame::data(None, "{}")).await {
                Ok(()) => sent += 1,
                Err(cut) => break cut,
            }
        };
        assert_eq!((cut, sent), (StreamCut::TooSlow, ROOM / LEAST));
        events.end(EventFrame::named("head", "{}"));
        let mut frames = Vec::new();
        while let Some((frame, _)) = receiver.recv().await {
            frames.push(frame);
        }
        assert_eq!(frames.len(), sent + 1);
        assert!(frames.last().unwrap().starts_with(b"event: head"));
    }
}
