//! The UI message stream of the AI SDK, version 1, for `useChat` and other clients of it. A chat is
//! a session, and a message of the assistant has the orchestrator's turns in the work of a prompt.

mod answers;
mod body;
mod calls;
mod chat;
mod chunks;
mod data;
mod history;
mod ids;
mod message;
mod saved;
mod stream;

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use planck_common::command::Aborted;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    body::{Arguments, Id, WireBody},
    front::Front,
    key::Caller,
    problem::Problem,
    route::{Route, routes},
    until,
};

pub use body::ChatBody;
use saved::{ChatMessages, ReadChat};

/// The content of the stream.
const CHUNKS: &str = "Server-sent events. The `data` of each is a chunk of the UI message stream, version 1; the last one is `[DONE]`.";

pub fn routes() -> Vec<Route> {
    routes! {
        post "/ui/chat" needs Use: send, "Send a message or answers, and read the message of the assistant" [
            .header(until::HEADER.as_str(), until::MEANING)
            .stream(CHUNKS)
        ];
        get "/ui/chat/{chat}/messages" needs Observe: messages, "Read the messages that the chat has";
        get "/ui/chat/{chat}/stream" needs Observe: resume, "Read the running message from its start" [
            .header(until::HEADER.as_str(), until::MEANING)
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
    let until = until::read(&headers)?;
    let reply = chat::perform(&front, body.read()?, caller, until).await?;
    Ok(stream::response(&front, reply))
}

/// Answers with the messages that the chat has, for a client that opens it again.
async fn messages(
    State(front): State<Arc<Front>>,
    Id(chat): Id,
    Arguments(read): Arguments<ReadChat>,
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
    Arguments(ResumeChat { latest }): Arguments<ResumeChat>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let until = until::read(&headers)?;
    Ok(match chat::resume(&front, &chat, latest, until).await? {
        Some(reply) => stream::response(&front, reply),
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
            let _ = answers::continued(&[], &message.calls);
        }
    }
}
