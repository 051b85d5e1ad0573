//! AG-UI 1.0, for `HttpAgent` of the npm package `@ag-ui/client` and what builds on it. A thread is a
//! session, and a run is the answer to a prompt, or a part of it between two interrupts.

mod body;
mod events;
mod messages;
mod run;

use std::sync::Arc;

use axum::{extract::State, http::HeaderMap, response::Response};
use run::Run;
use serde_json::Value;

use crate::{
    body::{Id, WireBody},
    front::Front,
    key::Caller,
    problem::Problem,
    route::{Route, routes},
    sse::{self, EventFrame, EventSender, StreamCut},
    turn,
};

pub use body::RunInput;

/// The content of the stream.
const EVENTS: &str = "Server-sent events. The `data` of each is an event of AG-UI 1.0; the last one is `RUN_FINISHED` or `RUN_ERROR`.";

pub fn routes() -> Vec<Route> {
    routes! {
        post "/ag-ui/{team}" needs Use: run, "Send a message or answers, and read the answer of the team" [
            .header(turn::UNTIL_HEADER.as_str(), turn::UNTIL_MEANING)
            .stream(EVENTS)
        ];
    }
}

/// Sends a message of the user or the client's answers, and streams the answer. Without both, streams
/// what the client lacks.
async fn run(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(team): Id,
    headers: HeaderMap,
    WireBody(body): WireBody<RunInput>,
) -> Result<Response, Problem> {
    let until = turn::read_until(&headers)?;
    let run = run::perform(&front, &team, body.read()?, caller, until);
    let run = Box::pin(run).await?;
    let shared = Arc::clone(&front);
    Ok(sse::stream(&front, |events| async move {
        let mut stream = RunStream {
            events: Some(events),
        };
        if stream.pass_on(&shared, run).await.is_ok() {
            stream.events = None;
        }
    }))
}

/// Checks what follows from every body that can be read, for the fuzzer.
pub fn check(body: RunInput) {
    let Ok(request) = body.read() else {
        return;
    };
    if let Some(message) = &request.prompt {
        let content = request.content(message);
        let said = body::without_context(&content);
        assert!(!said.is_empty(), "a prompt has content");
        let _ = body::message_of_user(&message.id, &content);
    }
    let _ = body::answers(&[], &request.resume, &request.known);
}

/// The sending end of a stream. If the front stops, or the client reads too slowly, the last event is
/// an error.
struct RunStream {
    events: Option<EventSender>,
}

impl RunStream {
    async fn pass_on(&mut self, front: &Front, mut run: Run) -> Result<(), StreamCut> {
        self.send(events::started(&run.fields)).await?;
        loop {
            for event in std::mem::take(&mut run.first) {
                self.send(event).await?;
            }
            let Some((mut turns, mut encoder)) = run.turns.take() else {
                return Ok(());
            };
            while !encoder.is_over() && !encoder.is_void() {
                let events = match self.events()?.wait_for(turns.next()).await? {
                    Some(Ok(event)) => encoder.take(event),
                    Some(Err(problem)) => return self.fail(&problem).await,
                    None => return Ok(()),
                };
                for event in events {
                    self.send(event).await?;
                }
            }
            if encoder.is_over() {
                return Ok(());
            }
            let again = Box::pin(run.read_again(front, encoder.into_known()));
            run = match self.events()?.wait_for(again).await? {
                Ok(run) => run,
                Err(problem) => return self.fail(&problem).await,
            };
        }
    }

    async fn fail(&self, problem: &Problem) -> Result<(), StreamCut> {
        let error = events::error(problem.code(), problem.detail());
        self.send(error).await
    }

    async fn send(&self, event: Value) -> Result<(), StreamCut> {
        let frame = EventFrame::data(None, &event.to_string());
        self.events()?.send(frame).await
    }

    fn events(&self) -> Result<&EventSender, StreamCut> {
        self.events.as_ref().ok_or(StreamCut::Gone)
    }
}

impl Drop for RunStream {
    fn drop(&mut self) {
        if let Some(events) = self.events.take() {
            let why = "the stream was cut off and the work goes on; run again to read it";
            let error = events::error("cut_off", why);
            events.end(EventFrame::data(None, &error.to_string()));
        }
    }
}
