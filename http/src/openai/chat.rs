//! `POST /openai/v1/chat/completions`.

mod ending;
mod request;
mod wire;

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use planck_common::event::json;

pub use request::ChatRequest;
pub use wire::ChatCompletion;

use super::{
    Call,
    error::ApiError,
    hints::aborts_on_disconnect,
    now,
    opening::{self, Opened},
    segment::{EndKind, Segment, SegmentEvent},
    tell,
};
use crate::{
    front::Front,
    sse::{self, Cut, EventSender, Frame},
};
use ending::Ending;
use wire::{ChunkWriter, Completion};

/// The last frame of a stream.
const DONE: &str = "[DONE]";

pub async fn create(
    State(front): State<Arc<Front>>,
    Call {
        caller,
        headers,
        body,
    }: Call<ChatRequest>,
) -> Result<Response, ApiError> {
    let (streams, wants_usage) = (body.stream == Some(true), body.wants_usage());
    let aborts = aborts_on_disconnect(&headers)?;
    let ask = body.ask(&headers)?;
    let (opened, segment) = opening::open(&front, &caller, ask).await?;
    let ending = Ending::of(&opened, front.client(), aborts);
    let mut response = match streams {
        true => stream(&front, &opened, segment, wants_usage, ending),
        false => {
            let response = collect(&opened, segment).await;
            ending.answered().await;
            response?
        }
    };
    tell(&mut response, &opened.id.session, &opened.warnings);
    Ok(response)
}

async fn collect(opened: &Opened, mut segment: Segment) -> Result<Response, ApiError> {
    let mut completion = Completion::new(opened, now());
    while let Some(event) = segment.next().await? {
        if let Some(refusal) = event.refusal() {
            return Err(refusal);
        }
        if let Some(end) = completion.take(event) {
            if let EndKind::Failed { code, reason } = &end.how {
                return Err(ApiError::turn(code, reason));
            }
            return Ok(Json(completion.finish(&end)).into_response());
        }
    }
    Err(ApiError::turn(
        "incomplete",
        "the turn ended without an answer",
    ))
}

fn stream(
    front: &Front,
    opened: &Opened,
    segment: Segment,
    wants_usage: bool,
    ending: Ending,
) -> Response {
    let writer = ChunkWriter::new(opened, now(), wants_usage);
    sse::stream(front, |events| async move {
        let passed = tokio::select! {
            passed = pass_on(segment, writer, &events) => passed,
            () = events.gone() => Err(Cut::Gone),
        };
        match passed {
            Err(Cut::TooSlow) => events.end(error(&ApiError::slow())),
            Ok(()) => events.end(Frame::data(None, DONE)),
            Err(Cut::Gone) => ending.gone().await,
        }
        ending.answered().await;
    })
}

fn error(error: &ApiError) -> Frame {
    Frame::data(None, &json(&error.reply()))
}

async fn pass_on(
    mut segment: Segment,
    mut writer: ChunkWriter,
    events: &EventSender,
) -> Result<(), Cut> {
    events
        .send(Frame::data(None, &json(&writer.first())))
        .await?;
    loop {
        let event = match events.wait_for(segment.next()).await? {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(()),
            Err(problem) => return events.send(error(&problem.into())).await,
        };
        if let Some(refusal) = event.refusal() {
            return events.send(error(&refusal)).await;
        }
        if let SegmentEvent::End(end) = &event
            && let EndKind::Failed { code, reason } = &end.how
        {
            return events.send(error(&ApiError::turn(code, reason))).await;
        }
        for chunk in writer.write(event) {
            events.send(Frame::data(None, &json(&chunk))).await?;
        }
    }
}
