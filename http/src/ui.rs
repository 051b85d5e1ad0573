//! The UI message stream of the AI SDK, version 1, for `useChat` and other clients of it. A chat is
//! a session, and a message of the assistant has the orchestrator's turns in the work of a prompt.

mod body;
pub mod chat;
pub mod chunks;
pub mod ids;
pub mod saved;

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse as _, Response},
};
use chat::UiReply;
use planck_common::command::Aborted;
use saved::{ChatMessages, ReadChat};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    body::{Id, QueryArguments, WireBody},
    front::Front,
    key::Caller,
    problem::Problem,
    route::{Route, routes},
    sse::{self, EventFrame, EventSender, StreamCut},
    turn,
};

pub use body::{ChatBody, PromptMessage, StartFields};

/// The content of the stream.
const CHUNKS: &str = "Server-sent events. The `data` of each is a chunk of the UI message stream, version 1; the last one is `[DONE]`.";

pub fn routes() -> Vec<Route> {
    routes! {
        post "/ui/chat" needs Use: send, "Send a message or answers, and read the message of the assistant" [
            .header(turn::UNTIL_HEADER.as_str(), turn::UNTIL_MEANING)
            .stream(CHUNKS)
        ];
        get "/ui/chat/{chat}/messages" needs Observe: messages, "Read the messages that the chat has";
        get "/ui/chat/{chat}/stream" needs Observe: resume, "Read the running message from its start" [
            .header(turn::UNTIL_HEADER.as_str(), turn::UNTIL_MEANING)
            .stream(CHUNKS)
            .empty("No message is running, and with `latest` there is none.")
        ];
        post "/ui/chat/{chat}/stop" needs Use: stop, "Abort the running message";
    }
}

/// Sends a message of the user, or the client's answers, and streams the message of the assistant.
async fn send(
    caller: Caller,
    State(front): State<Arc<Front>>,
    headers: HeaderMap,
    WireBody(body): WireBody<ChatBody>,
) -> Result<Response, Problem> {
    let until = turn::read_until(&headers)?;
    let reply = chat::perform(&front, body.read()?, caller, until).await?;
    Ok(stream_response(&front, reply))
}

/// Answers with the messages that the chat has, for a client that opens it again.
async fn messages(
    State(front): State<Arc<Front>>,
    Id(chat): Id,
    QueryArguments(read): QueryArguments<ReadChat>,
) -> Result<Json<ChatMessages>, Problem> {
    Ok(Json(saved::messages(&front, &chat, read).await?))
}

/// Selects the message that is streamed again.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "UiResume")]
pub struct ResumeChat {
    /// Whether the latest message is streamed if none is running.
    #[serde(default)]
    pub latest: bool,
}

/// Streams the running message from its start. Answers 204 if there is none to stream.
async fn resume(
    State(front): State<Arc<Front>>,
    Id(chat): Id,
    QueryArguments(ResumeChat { latest }): QueryArguments<ResumeChat>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let until = turn::read_until(&headers)?;
    Ok(match chat::resume(&front, &chat, latest, until).await? {
        Some(reply) => stream_response(&front, reply),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Aborts the work of the running message. A client that only disconnects aborts nothing.
async fn stop(
    caller: Caller,
    State(front): State<Arc<Front>>,
    Id(chat): Id,
) -> Result<Json<Aborted>, Problem> {
    let aborted = chat::stop(&front, &chat, caller.reason(None)).await?;
    Ok(Json(aborted))
}

/// Checks what follows from every body that can be read, for the fuzzer.
pub fn check(body: ChatBody) {
    let Ok(request) = body.read() else {
        return;
    };
    match request.asks {
        body::Asks::Prompt(message) => {
            assert!(!message.content.is_empty(), "a prompt has content");
            let base = ids::base(&message.id);
            let prompt = ids::of_prompt(&base, Some(planck_common::Seq::MAX));
            let is_traced = prompt.is_some_and(|prompt| ids::base_of(&prompt) == base);
            assert!(is_traced, "a prompt is traced to its message");
        }
        body::Asks::Answer(message) => {
            assert!(!message.calls.is_empty(), "an answer has calls");
            let _ = body::continued(&[], &message.calls);
        }
    }
}

/// The header by which clients recognise the stream.
const HEADER: &str = "x-vercel-ai-ui-message-stream";

fn stream_response(front: &Front, reply: UiReply) -> Response {
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
        UiReply {
            mut turn,
            mut encoder,
        }: UiReply,
    ) -> Result<(), StreamCut> {
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

    async fn send(&self, chunk: Value) -> Result<(), StreamCut> {
        let frame = EventFrame::data(None, &chunk.to_string());
        self.events()?.send(frame).await
    }

    fn events(&self) -> Result<&EventSender, StreamCut> {
        self.events.as_ref().ok_or(StreamCut::Gone)
    }

    fn end(&mut self, error: Option<Value>) {
        let mut last = EventFrame::data(None, "[DONE]");
        if let Some(error) = error {
            last = EventFrame::data(None, &error.to_string()).and(last);
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
