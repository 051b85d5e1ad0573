//! Teams as tools of MCP clients, over HTTP and over a pair of streams. One handler serves both. It
//! remembers nothing between requests, so any front answers any request.

mod arguments;
mod call;
#[cfg(test)]
mod fixture;
mod progress;
mod server;
mod tasks;
mod tools;
mod work;

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{FromRequest, Request, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use planck_common::json_text;
use rmcp::{
    ServerHandler,
    service::{ServerInitializeError, serve_server_with_ct},
    transport::{
        StreamableHttpServerConfig, StreamableHttpService, async_rw::AsyncRwTransport,
        streamable_http_server::session::never::NeverSessionManager,
    },
};
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::{
    body,
    front::Front,
    key::{Caller, Role},
    problem::Problem,
    route::{Route, RouteArgument, routes},
};
use server::McpServer;

/// The content of the stream of answers.
const MESSAGES: &str = "Server-sent events. The `data` of each is a message of MCP: progress, and at last the response.";

pub fn routes() -> Vec<Route> {
    routes! {
        post "/mcp" needs Observe: message, "Send a message of MCP" [
            .reply::<McpMessage>()
            .stream(MESSAGES)
            .empty("The message is a notification.")
        ];
    }
}

/// A message of JSON-RPC, as MCP defines it.
#[derive(JsonSchema)]
struct McpMessage {
    #[expect(dead_code, reason = "the field is part of the description only")]
    jsonrpc: String,
    #[expect(dead_code, reason = "the field is part of the description only")]
    method: Option<String>,
}

/// The head of a request and its body, which is within the bounds of all bodies.
struct McpRequest(Parts, Bytes);

impl<S: Send + Sync> FromRequest<S> for McpRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = body::read(body).await?;
        body::require_json(&parts.headers)?;
        match json_text::refusal(&bytes) {
            Some(why) => Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, why)),
            None => Ok(Self(parts, bytes)),
        }
    }
}

impl RouteArgument for McpRequest {
    fn describe(route: &mut Route) {
        route.body = Some(schemars::SchemaGenerator::subschema_for::<McpMessage>);
    }
}

async fn message(State(front): State<Arc<Front>>, request: McpRequest) -> Response {
    answer(move || McpServer::of_request(Arc::clone(&front)), request).await
}

/// Answers a request with the handler that `handler` creates for it.
async fn answer<H: ServerHandler>(
    handler: impl Fn() -> H + Send + Sync + 'static,
    McpRequest(parts, bytes): McpRequest,
) -> Response {
    // The guard of the front has checked host and origin.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_legacy_session_mode(false)
        .with_max_request_body_bytes(body::BODY);
    let sessions = Arc::<NeverSessionManager>::default();
    let service = StreamableHttpService::new(move || Ok(handler()), sessions, config);
    let request = Request::from_parts(parts, Body::from(bytes.clone()));
    let answer = service.handle(request).await;
    match answer.status() {
        // The kind of the body was checked before, so the body is no message.
        StatusCode::UNSUPPORTED_MEDIA_TYPE => no_message(&bytes),
        _ => answer.map(Body::new),
    }
}

/// Answers to a body that is no message of MCP, in the form of JSON-RPC.
fn no_message(bytes: &[u8]) -> Response {
    let (code, why) = match serde_json::from_slice::<IgnoredAny>(bytes) {
        Err(error) => (-32_700, format!("the body is no JSON: {error}")),
        Ok(_) if bytes.trim_ascii_start().starts_with(b"[") => (
            -32_600,
            "send one message in each request; MCP has no batches".to_owned(),
        ),
        Ok(_) => (-32_600, "the body is no message of MCP".to_owned()),
    };
    let error =
        json!({"jsonrpc": "2.0", "id": Value::Null, "error": {"code": code, "message": why}});
    (StatusCode::BAD_REQUEST, Json(error)).into_response()
}

impl Front {
    /// Speaks MCP with the client at the other end of two streams, until the client closes its stream
    /// or `stop` is cancelled. `input` bounds the length of a line. The client is of the user who runs
    /// this process, so it may do everything; `user` is the name under which the log shows it.
    ///
    /// # Errors
    ///
    /// The client did not begin as MCP says.
    pub async fn speak_mcp(
        self: Arc<Self>,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
        user: Option<String>,
        stop: CancellationToken,
    ) -> Result<(), ServerInitializeError> {
        let caller = Caller {
            name: user,
            role: Role::Operate,
        };
        let server = McpServer::of_caller(Arc::clone(&self), caller);
        let transport = AsyncRwTransport::new_server(input, output);
        let transport = transport.with_max_line_length(usize::MAX);
        let served = match serve_server_with_ct(server, transport, stop).await {
            Ok(serving) => {
                if let Err(error) = serving.waiting().await {
                    tracing::error!(%error, "the MCP server failed");
                }
                Ok(())
            }
            // The client has gone before it began, or the process stops.
            Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.end_streams().await;
        served
    }
}
