//! `/openai/v1/responses`: create a response, read it again, continue its stream, and cancel it.

mod deletion;
mod item;
mod request;
mod wire;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{FromRequestParts, Path, Query, State},
    http::request::Parts,
    response::{IntoResponse as _, Response},
};
use planck_common::event::json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use deletion::DeletedResponse;
pub use request::ResponsesRequest;
pub use wire::Response as ResponseObject;

use super::{
    Call,
    error::ApiError,
    ids::ResponseId,
    now, opening,
    segment::{Segment, SegmentEvent},
    tell,
};
use crate::{
    front::Front,
    key::Caller,
    problem::Problem,
    route::Argument,
    sse::{self, Cut, EventSender, Frame},
    until::{self, Until},
};
use wire::{Echo, Numbered, ResponseWriter, rest};

/// How long aborted work may take to end.
const ABORT: Duration = Duration::from_secs(30);

pub async fn create(
    State(front): State<Arc<Front>>,
    Call {
        caller,
        headers,
        body,
    }: Call<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let ask = body.ask(&headers)?;
    let (opened, mut segment) = opening::open(&front, &caller, ask).await?;
    let writer = ResponseWriter::new(&opened, now(), echo(&body, &opened.warnings));
    let mut response = if body.stream == Some(true) {
        stream(&front, segment, writer, None)
    } else if body.background == Some(true) {
        Json(loaded(&mut segment, writer).await?.response()).into_response()
    } else {
        Json(collected(segment, writer).await?).into_response()
    };
    tell(&mut response, &opened.id.session, &opened.warnings);
    Ok(response)
}

fn echo(body: &ResponsesRequest, warnings: &[String]) -> Echo {
    let mut echo = Echo {
        metadata: body.metadata.clone().unwrap_or_default(),
        ..Echo::default()
    };
    let text = |text: &Option<String>| text.clone().map_or(Value::Null, Value::String);
    let fields = [
        ("instructions", text(&body.instructions)),
        ("previous_response_id", text(&body.previous_response_id)),
        ("background", Value::Bool(body.background == Some(true))),
        ("tools", Value::Array(body.tools_written())),
    ];
    for (name, value) in fields {
        echo.fields.insert(name.to_owned(), value);
    }
    if !warnings.is_empty() {
        let warning = Value::String(warnings.join("; "));
        echo.metadata.insert("planck_warning".to_owned(), warning);
    }
    echo
}

/// Reads the segment to its end, and returns the response.
async fn collected(
    mut segment: Segment,
    mut writer: ResponseWriter,
) -> Result<ResponseObject, ApiError> {
    while let Some(event) = segment.next().await? {
        if let Some(refusal) = event.refusal() {
            return Err(refusal);
        }
        writer.write(event);
    }
    Ok(writer.response())
}

/// Reads what has happened so far.
async fn loaded(
    segment: &mut Segment,
    mut writer: ResponseWriter,
) -> Result<ResponseWriter, ApiError> {
    for event in segment.load().await? {
        if let Some(refusal) = event.refusal() {
            return Err(refusal);
        }
        writer.write(event);
    }
    Ok(writer)
}

/// The id of a response in a path.
pub struct Named {
    id: ResponseId,
    caller: Caller,
    until: Until,
}

impl Argument for Named {}

impl Named {
    /// Finds the response.
    async fn opened(&self, front: &Front) -> Result<opening::Opened, ApiError> {
        let opened = opening::find(front, &self.id).await?;
        let until = self.until;
        Ok(opening::Opened { until, ..opened })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(id) = path.map_err(|error| Problem::bad_request(error.body_text()))?;
        Ok(Self {
            id: ResponseId::parse(&id)?,
            caller,
            until: until::read(&parts.headers)?,
        })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct Reading {
    stream: Option<bool>,
    /// The number of the last event that the client has. Only with `stream`.
    starting_after: Option<u64>,
}

pub async fn find(
    State(front): State<Arc<Front>>,
    named: Named,
    reading: Result<Query<Reading>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(reading) = reading.map_err(|error| Problem::bad_request(error.body_text()))?;
    let opened = named.opened(&front).await?;
    let mut segment = Segment::open(&front, &opened).await?;
    segment.find().await?;
    let writer = || ResponseWriter::new(&opened, now(), Echo::default());
    let mut response = if reading.stream == Some(true) {
        let events = segment.load().await?;
        check_place(&events, writer(), reading.starting_after)?;
        segment.put_back(events);
        stream(&front, segment, writer(), reading.starting_after)
    } else {
        Json(loaded(&mut segment, writer()).await?.response()).into_response()
    };
    tell(&mut response, &opened.id.session, &[]);
    Ok(response)
}

/// Refuses to continue a stream after an event that it cannot have had.
fn check_place(
    events: &[SegmentEvent],
    mut writer: ResponseWriter,
    after: Option<u64>,
) -> Result<(), ApiError> {
    let mut last = writer.first().last().map_or(0, |event| event.number);
    for event in events {
        let written = writer.write(event.clone());
        last = written.last().map_or(last, |event| event.number);
    }
    // The client may have read pieces of a reply that this front has not seen yet.
    let most = if writer.is_over() {
        last
    } else {
        wire::unsaved(last)
    };
    match after {
        Some(after) if after > most => Err(ApiError::parameter(
            "starting_after",
            format!("`starting_after` is {after}, and the last event has the number {last}"),
        )),
        Some(_) | None => Ok(()),
    }
}

pub async fn cancel(State(front): State<Arc<Front>>, named: Named) -> Result<Response, ApiError> {
    let opened = named.opened(&front).await?;
    let mut segment = Segment::open(&front, &opened).await?;
    segment.find().await?;
    let writer = || ResponseWriter::new(&opened, now(), Echo::default());
    let now = loaded(&mut segment, writer()).await?;
    if now.is_over() && segment.open_calls().is_empty() {
        return Ok(Json(now.response()).into_response());
    }
    let (session, input) = (&opened.id.session, &opened.input);
    let reason = named.caller.reason(None);
    front.client().abort_session(session, input, reason).await?;
    let segment = Segment::open(&front, &opened).await?;
    let ended = tokio::time::timeout(ABORT, collected(segment, writer())).await;
    let response = ended.map_err(|_| ApiError::late())??;
    Ok(Json(response).into_response())
}

pub async fn delete(
    State(front): State<Arc<Front>>,
    Named { id, caller, .. }: Named,
) -> Result<Json<DeletedResponse>, ApiError> {
    deletion::delete(&front, &id, caller).await.map(Json)
}

fn stream(front: &Front, segment: Segment, writer: ResponseWriter, after: Option<u64>) -> Response {
    sse::stream(front, move |events| async move {
        if let Err(Cut::TooSlow) = pass_on(segment, writer, after, &events).await {
            events.end(error(&ApiError::slow()));
        }
    })
}

fn error(error: &ApiError) -> Frame {
    let body = error.body();
    let event = serde_json::json!({"type": "error", "code": body.code, "message": body.message,
        "param": body.param, "sequence_number": 0});
    Frame::named("error", &event.to_string())
}

async fn pass_on(
    mut segment: Segment,
    mut writer: ResponseWriter,
    after: Option<u64>,
    events: &EventSender,
) -> Result<(), Cut> {
    send(events, writer.first(), after).await?;
    loop {
        match events.wait_for(segment.next()).await? {
            Ok(Some(event)) => match event.refusal() {
                Some(refusal) => return events.send(error(&refusal)).await,
                None => send(events, writer.write(event), after).await?,
            },
            Ok(None) => return Ok(()),
            Err(problem) => return events.send(error(&problem.into())).await,
        }
    }
}

async fn send(events: &EventSender, written: Vec<Numbered>, after: Option<u64>) -> Result<(), Cut> {
    for Numbered { event, .. } in written.into_iter().filter_map(|event| rest(event, after)) {
        let name = event.get("type").and_then(Value::as_str);
        let name = name.unwrap_or_default().to_owned();
        events.send(Frame::named(&name, &json(&event))).await?;
    }
    Ok(())
}
