//! Streams a turn to one client.

use axum::{http::HeaderValue, response::Response};
use serde_json::Value;

use super::{chat::Reply, chunks};
use crate::{
    front::Front,
    problem::Problem,
    sse::{self, Cut, EventSender, Frame, HEARTBEAT},
};

/// The header by which clients recognise the stream.
const HEADER: &str = "x-vercel-ai-ui-message-stream";

pub fn response(front: &Front, reply: Reply) -> Response {
    let mut response = sse::stream(front, |events| async move {
        let mut stream = UiStream {
            events: Some(events),
        };
        if stream.pass_on(reply).await.is_ok() {
            stream.end(None);
        }
    });
    let headers = response.headers_mut();
    headers.insert(HEADER, HeaderValue::from_static("v1"));
    response
}

/// The sending end of a stream. If the front stops, or the client reads too slowly, the last chunk
/// is an error, because a stream that just ends looks complete.
struct UiStream {
    events: Option<EventSender>,
}

impl UiStream {
    async fn pass_on(
        &mut self,
        Reply {
            mut turn,
            mut encoder,
        }: Reply,
    ) -> Result<(), Cut> {
        while !encoder.is_over() {
            let chunks = match tokio::time::timeout(HEARTBEAT, turn.next()).await {
                Ok(Some(Ok(event))) => encoder.take(event),
                Ok(Some(Err(error))) => {
                    let problem = Problem::from(error);
                    return self
                        .send(chunks::error(problem.code(), problem.detail()))
                        .await;
                }
                Ok(None) => return Ok(()),
                Err(_) => {
                    self.frame(Frame::comment()).await?;
                    continue;
                }
            };
            for chunk in chunks {
                self.send(chunk).await?;
            }
        }
        Ok(())
    }

    async fn send(&self, chunk: Value) -> Result<(), Cut> {
        self.frame(Frame::data(None, &chunk.to_string())).await
    }

    async fn frame(&self, frame: Frame) -> Result<(), Cut> {
        match &self.events {
            Some(events) => events.send(frame).await,
            None => Err(Cut::Gone),
        }
    }

    fn end(&mut self, error: Option<Value>) {
        let mut last = Frame::data(None, "[DONE]");
        if let Some(error) = error {
            last = Frame::data(None, &error.to_string()).and(last);
        }
        if let Some(events) = self.events.take() {
            events.end(last);
        }
    }
}

impl Drop for UiStream {
    fn drop(&mut self) {
        let why = "the stream was cut off and the turn goes on; resume the stream";
        self.end(Some(chunks::error("cut_off", why)));
    }
}
