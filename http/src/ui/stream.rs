//! Streams an answer to one client.

use axum::{http::HeaderValue, response::Response};
use serde_json::Value;

use super::{chat::Reply, chunks};
use crate::{
    front::Front,
    sse::{self, Cut, EventSender, Frame},
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
            let chunks = match self.events()?.wait_for(turn.next()).await? {
                Some(Ok(event)) => encoder.take(event),
                Some(Err(problem)) => {
                    let error = chunks::error(problem.code(), problem.detail());
                    return self.send(error).await;
                }
                None => return Ok(()),
            };
            for chunk in chunks {
                self.send(chunk).await?;
            }
        }
        Ok(())
    }

    async fn send(&self, chunk: Value) -> Result<(), Cut> {
        let frame = Frame::data(None, &chunk.to_string());
        self.events()?.send(frame).await
    }

    fn events(&self) -> Result<&EventSender, Cut> {
        self.events.as_ref().ok_or(Cut::Gone)
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
        let why = "the stream was cut off and the work goes on; resume the stream";
        self.end(Some(chunks::error("cut_off", why)));
    }
}
