//! `/openai/v1/responses`: create a response, read it again, continue its stream, cancel it, and
//! delete it.

mod object;
mod request;
mod wire;

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{FromRequestParts, Path, Query, State},
    http::request::Parts,
    response::{IntoResponse as _, Response},
};
use planck_common::{Seq, event::json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wire::{Echo, NumberedEvent, ResponseWriter, rest};

use super::{
    OpenAiRequest,
    error::OpenAiError,
    history::{LoggedTurns, turn_after},
    ids::ResponseId,
    now,
    opening::{self, KnownSession, known},
    segment::{Segment, SegmentEvent},
    tell,
};
use crate::{
    front::Front,
    key::{Caller, Role},
    problem::Problem,
    route::RouteArgument,
    sse::{self, EventFrame, EventSender, StreamCut},
    turn::{self, Until},
};

pub use request::ResponsesRequest;
pub use wire::Response as ResponseObject;

/// How long aborted work may take to end.
const ABORT: Duration = Duration::from_secs(30);

pub async fn create(
    State(front): State<Arc<Front>>,
    OpenAiRequest {
        caller,
        headers,
        body,
    }: OpenAiRequest<ResponsesRequest>,
) -> Result<Response, OpenAiError> {
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
) -> Result<ResponseObject, OpenAiError> {
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
) -> Result<ResponseWriter, OpenAiError> {
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

impl RouteArgument for Named {}

impl Named {
    /// Finds the response.
    async fn opened(&self, front: &Front) -> Result<opening::OpenedResponse, OpenAiError> {
        let opened = opening::find(front, &self.id).await?;
        let until = self.until;
        Ok(opening::OpenedResponse { until, ..opened })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = OpenAiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, OpenAiError> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(id) = path.map_err(|error| Problem::bad_request(error.body_text()))?;
        Ok(Self {
            id: ResponseId::parse(&id)?,
            caller,
            until: turn::read_until(&parts.headers)?,
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
) -> Result<Response, OpenAiError> {
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
) -> Result<(), OpenAiError> {
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
        Some(after) if after > most => Err(OpenAiError::parameter(
            "starting_after",
            format!("`starting_after` is {after}, and the last event has the number {last}"),
        )),
        Some(_) | None => Ok(()),
    }
}

pub async fn cancel(
    State(front): State<Arc<Front>>,
    named: Named,
) -> Result<Response, OpenAiError> {
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
    let response = ended.map_err(|_| OpenAiError::late())??;
    Ok(Json(response).into_response())
}

pub async fn delete(
    State(front): State<Arc<Front>>,
    Named { id, caller, .. }: Named,
) -> Result<Json<DeletedResponse>, OpenAiError> {
    delete_turn(&front, &id, caller).await.map(Json)
}

fn stream(front: &Front, segment: Segment, writer: ResponseWriter, after: Option<u64>) -> Response {
    sse::stream(front, move |events| async move {
        if let Err(StreamCut::TooSlow) = pass_on(segment, writer, after, &events).await {
            events.end(error(&OpenAiError::slow()));
        }
    })
}

fn error(error: &OpenAiError) -> EventFrame {
    let body = error.body();
    let event = serde_json::json!({"type": "error", "code": body.code, "message": body.message,
        "param": body.param, "sequence_number": 0});
    EventFrame::named("error", &event.to_string())
}

async fn pass_on(
    mut segment: Segment,
    mut writer: ResponseWriter,
    after: Option<u64>,
    events: &EventSender,
) -> Result<(), StreamCut> {
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

async fn send(
    events: &EventSender,
    written: Vec<NumberedEvent>,
    after: Option<u64>,
) -> Result<(), StreamCut> {
    for NumberedEvent { event, .. } in written.into_iter().filter_map(|event| rest(event, after)) {
        let name = event.get("type").and_then(Value::as_str);
        let name = name.unwrap_or_default().to_owned();
        events.send(EventFrame::named(&name, &json(&event))).await?;
    }
    Ok(())
}

/// The answer to a deletion.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DeletedResponse {
    id: String,
    /// Always `response`.
    object: &'static str,
    deleted: bool,
}

/// The way in which a response is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deletion {
    /// The session is deleted with it.
    Session,
    /// The session is rewound to this message.
    Rewind(Seq),
}

/// Deletes the turn of a response.
async fn delete_turn(
    front: &Front,
    id: &ResponseId,
    caller: Caller,
) -> Result<DeletedResponse, OpenAiError> {
    let client = front.client();
    // The turn may have no such response, for example if it called no tools.
    Segment::open(front, &opening::find(front, id).await?)
        .await?
        .find()
        .await?;
    let session = known(client, &id.session).await?;
    let begun = turn_after(client, &session.id, &session.agent, id.place).await?;
    let (_, turns) = begun.ok_or_else(|| not_started(id))?;
    match deletion(id, &session, &turns, caller.role)? {
        Deletion::Session => {
            let reason = caller.reason(Some(format!("response `{id}` was deleted")));
            client.delete(&session.id, reason).await?;
        }
        Deletion::Rewind(to) => {
            client.rewind(&session.id, to, caller.author(None)).await?;
        }
    }
    Ok(DeletedResponse {
        id: id.to_string(),
        object: "response",
        deleted: true,
    })
}

/// Decides how a response is deleted. `turns` are its turn and all later ones.
fn deletion(
    id: &ResponseId,
    session: &KnownSession,
    turns: &LoggedTurns,
    role: Role,
) -> Result<Deletion, OpenAiError> {
    let [turn] = turns.turns.as_slice() else {
        return Err(OpenAiError::conflict(
            "response_not_latest",
            format!(
                "`{id}` is not the latest response of its session: delete the later ones first, or everything with `DELETE /v1/sessions/{}`",
                session.id
            ),
        ));
    };
    // The place 0 is that of the first turn.
    if id.place == 0 && session.is_own && role >= Role::Operate {
        return Ok(Deletion::Session);
    }
    turn.message
        .map(Deletion::Rewind)
        .ok_or_else(|| not_started(id))
}

fn not_started(id: &ResponseId) -> OpenAiError {
    OpenAiError::conflict(
        "response_not_started",
        format!("response `{id}` has not begun; wait until it has, and delete it then"),
    )
}

#[cfg(test)]
mod tests;
