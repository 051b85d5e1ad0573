//! The protocol over HTTP, under `/v1`. A route does what the verb of the same name does.

mod agents;
mod cluster;
mod events;
mod prompts;
mod sessions;
mod stream;

use std::sync::{Arc, LazyLock};

use axum::{
    Json, Router,
    http::header,
    response::IntoResponse,
    routing::{get, post},
};
use bytes::Bytes;

pub use events::ReadOrFollow;
pub use prompts::HowLong;

use super::{front::Front, openapi, problem::Problem};

/// The path of the description of all routes.
pub const OPENAPI: &str = "/openapi.json";

/// The result of a handler.
type Reply<T> = Result<Json<T>, Problem>;

pub fn routes() -> Router<Arc<Front>> {
    Router::new()
        .route(OPENAPI, get(description))
        .route("/v1/sessions", get(sessions::list).post(sessions::start))
        .route(
            "/v1/sessions/{session}",
            get(sessions::info).delete(sessions::delete),
        )
        .route("/v1/sessions/{session}/prompt", post(prompts::send))
        .route(
            "/v1/sessions/{session}/prompts/{prompt}",
            get(prompts::outcome),
        )
        .route("/v1/sessions/{session}/abort", post(sessions::abort))
        .route("/v1/sessions/{session}/rewind", post(sessions::rewind))
        .route("/v1/sessions/{session}/rename", post(sessions::rename))
        .route("/v1/sessions/{session}/resume", post(sessions::resume))
        .route("/v1/sessions/{session}/close", post(sessions::close))
        .route("/v1/sessions/{session}/answer", post(sessions::answer))
        .route("/v1/sessions/{session}/messages", get(sessions::messages))
        .route("/v1/sessions/{session}/events", get(events::of_session))
        .route("/v1/events", get(events::of_sessions))
        .route("/v1/agents/{agent}", get(agents::info))
        .route("/v1/agents/{agent}/snapshot", get(agents::snapshot))
        .route("/v1/agents/{agent}/prompt", post(agents::prompt))
        .route("/v1/agents/{agent}/abort", post(agents::abort))
        .route("/v1/agents/{agent}/stop", post(agents::stop))
        .route("/v1/agents/{agent}/nudge", post(agents::nudge))
        .route("/v1/agents/{agent}/checkpoint", post(agents::checkpoint))
        .route("/v1/agents/{agent}/add_tool", post(agents::add_tool))
        .route("/v1/agents/{agent}/remove_tool", post(agents::remove_tool))
        .route(
            "/v1/agents/{agent}/change_model",
            post(agents::change_model),
        )
        .route("/v1/waits", get(sessions::waits))
        .route("/v1/nodes", get(cluster::nodes))
        .route("/v1/nodes/{node}", get(cluster::node))
        .route("/v1/nodes/{node}/drain", post(cluster::drain))
        .route("/v1/teams", get(cluster::teams))
        .route("/v1/models", get(cluster::models))
        .route("/v1/sidecars", get(cluster::sidecars))
        .route("/v1/decisions", get(cluster::decisions))
}

/// Answers with the description of all routes, which is made once, because it is large and never
/// changes.
async fn description() -> impl IntoResponse {
    static TEXT: LazyLock<Bytes> = LazyLock::new(|| openapi::DOCUMENT.to_string().into());
    ([(header::CONTENT_TYPE, "application/json")], TEXT.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn description_is_made_once() {
        let begins = async || {
            let body = description().await.into_response().into_body();
            let bytes = axum::body::to_bytes(body, usize::MAX).await;
            bytes.unwrap().as_ptr()
        };
        assert_eq!(begins().await, begins().await);
    }
}
