//! The routes of the wires of ready-made clients.

use planck_common::command::Aborted;

use super::{Table, Wire, header, query};
use crate::{
    key::Role,
    openai::{
        ChatCompletion, ChatRequest, DeletedResponse, Model, ModelList, Reading, ResponseObject,
        ResponsesRequest,
    },
    ui::{ChatBody, ChatMessages, ReadChat, ResumeChat},
};

/// The content of the stream of the AI SDK.
const CHUNKS: &str = "Server-sent events. The `data` of each is a chunk of the UI message stream, version 1; the last one is `[DONE]`.";

pub fn ai_sdk(table: &mut Table<'_>) {
    table.wire = Wire::AiSdk;
    let body = table.schemas.subschema_for::<ChatBody>().to_value();
    let summary = "Send a message or answers, and read the message of the assistant";
    let chat = table.plain("post", "/ui/chat", summary, Role::Use);
    (chat.body, chat.stream) = (Some(body), Some(CHUNKS));
    chat.parameters = vec![until()];
    let path = "/ui/chat/{chat}/messages";
    let saved = table.get::<ChatMessages>(path, "Read the messages that the chat has");
    saved.parameters = query::<ReadChat>();
    let summary = "Read the running message from its start";
    let path = "/ui/chat/{chat}/stream";
    let resume = table.plain("get", path, summary, Role::Observe);
    (resume.parameters, resume.stream) = (query::<ResumeChat>(), Some(CHUNKS));
    resume.parameters.push(until());
    resume.empty = Some("No message is running, and with `latest` there is none.");
    let summary = "Abort the running message";
    table.add::<Aborted>("post", "/ui/chat/{chat}/stop", summary, Role::Use);
}

pub fn openai(table: &mut Table<'_>) {
    table.wire = Wire::OpenAi;
    table.get::<ModelList>("/openai/v1/models", "List the teams and models");
    table.get::<Model>("/openai/v1/models/{model}", "Find a team or a model");
    completions(table);
    responses(table);
}

fn completions(table: &mut Table<'_>) {
    let path = "/openai/v1/chat/completions";
    let summary = "Answer the last message of a conversation";
    let chat = table.post::<ChatRequest, ChatCompletion>(path, summary, Role::Use);
    chat.stream = Some(
        "With `stream`: server-sent events. The `data` of each is a chunk of the completion; the last one is `[DONE]`.",
    );
    chat.parameters = vec![session(), idempotency_key(), until()];
}

fn responses(table: &mut Table<'_>) {
    const EVENTS: &str = "With `stream`: server-sent events. The `data` of each is an event of a response, and `event` is its `type`.";
    let path = "/openai/v1/responses";
    let create =
        table.post::<ResponsesRequest, ResponseObject>(path, "Create a response", Role::Use);
    create.stream = Some(EVENTS);
    create.parameters = vec![session(), idempotency_key(), until()];
    let path = "/openai/v1/responses/{response}";
    let summary = "Read a response, or continue its stream";
    let find = table.get::<ResponseObject>(path, summary);
    (find.parameters, find.stream) = (query::<Reading>(), Some(EVENTS));
    find.parameters.push(until());
    let summary = "Delete the latest response of a session";
    table.add::<DeletedResponse>("delete", path, summary, Role::Use);
    let path = "/openai/v1/responses/{response}/cancel";
    table.add::<ResponseObject>("post", path, "Abort the work for a response", Role::Use);
}

fn session() -> serde_json::Value {
    header(
        "x-planck-session",
        "The session to continue, by id or name. It is started if there is none.",
    )
}

fn until() -> serde_json::Value {
    header(
        "x-planck-until",
        "Until when the answer is open: `work`, which is the default, or `turn`, the orchestrator's first turn.",
    )
}

fn idempotency_key() -> serde_json::Value {
    header(
        "Idempotency-Key",
        "A repetition with the same key gets the same turn.",
    )
}
