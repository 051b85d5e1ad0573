//! The protocol over HTTP, under `/v1`. A route does what the verb of the same name does.

mod agents;
mod cluster;
mod events;
mod prompts;
mod sessions;
mod stream;

use axum::Json;
use planck_common::command::{Accepted, Events};
use serde_json::json;

use super::{key::Role, problem::Problem, route::Route};

/// The result of a handler.
type Reply<T> = Result<Json<T>, Problem>;

/// The content of a stream of events.
const EVENTS: &str = "Server-sent events. The `data` of each is the envelope of an event of the protocol, and the `id` of a durable one is its place.";
/// The content of a stream of decisions.
const DECISIONS: &str = "Server-sent events. The `data` of each is a decision of the cluster.";
/// The header with which a stream continues.
const LAST: (&str, &str) = (
    "Last-Event-ID",
    "The id of the last event that was received.",
);

pub fn routes() -> Vec<Route> {
    [sessions(), agents(), cluster()].concat()
}

fn sessions() -> Vec<Route> {
    use Role::{Observe, Operate, Use};
    let names =
        json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 32});
    vec![
        Route::get("/v1/sessions", "List sessions", Observe, sessions::list),
        Route::post("/v1/sessions", "Start a session", Use, sessions::start).status("201"),
        Route::get(
            "/v1/sessions/{session}",
            "Describe a session",
            Observe,
            sessions::info,
        ),
        Route::delete(
            "/v1/sessions/{session}",
            "Close and delete a session",
            Operate,
            sessions::delete,
        ),
        Route::post(
            "/v1/sessions/{session}/prompt",
            "Send a prompt",
            Use,
            prompts::send,
        )
        .reply::<Accepted>()
        .status("202"),
        Route::get(
            "/v1/sessions/{session}/prompts/{prompt}",
            "Describe a prompt",
            Observe,
            prompts::outcome,
        ),
        Route::post(
            "/v1/sessions/{session}/abort",
            "Abort the running work",
            Use,
            sessions::abort,
        ),
        Route::post(
            "/v1/sessions/{session}/rewind",
            "Hide a message and all later ones",
            Use,
            sessions::rewind,
        ),
        Route::post(
            "/v1/sessions/{session}/rename",
            "Give a session a title, or remove it",
            Use,
            sessions::rename,
        ),
        Route::post(
            "/v1/sessions/{session}/resume",
            "Resume a session",
            Use,
            sessions::resume,
        ),
        Route::post(
            "/v1/sessions/{session}/close",
            "Close a session",
            Operate,
            sessions::close,
        ),
        Route::post(
            "/v1/sessions/{session}/answer",
            "Answer a wait",
            Use,
            sessions::answer,
        ),
        Route::get(
            "/v1/sessions/{session}/messages",
            "Read messages",
            Observe,
            sessions::messages,
        ),
        Route::get(
            "/v1/sessions/{session}/events",
            "Read a page of the log, or follow it as a stream",
            Observe,
            events::of_session,
        )
        .reply::<Events>()
        .header(LAST.0, LAST.1)
        .stream(EVENTS),
        Route::get(
            "/v1/events",
            "Follow up to 32 sessions in one stream",
            Observe,
            events::of_sessions,
        )
        .parameter(json!({"name": "session", "in": "query", "required": true, "schema": names}))
        .header(LAST.0, LAST.1)
        .stream(EVENTS),
        Route::get(
            "/v1/waits",
            "List what agents wait for",
            Observe,
            sessions::waits,
        ),
    ]
}

fn agents() -> Vec<Route> {
    use Role::{Observe, Operate, Use};
    vec![
        Route::get(
            "/v1/agents/{agent}",
            "Describe an agent",
            Observe,
            agents::info,
        ),
        Route::get(
            "/v1/agents/{agent}/snapshot",
            "Read the running work of an agent",
            Observe,
            agents::snapshot,
        ),
        Route::post(
            "/v1/agents/{agent}/prompt",
            "Send a prompt",
            Use,
            agents::prompt,
        )
        .status("202"),
        Route::post(
            "/v1/agents/{agent}/abort",
            "Abort the running turn",
            Use,
            agents::abort,
        ),
        Route::post(
            "/v1/agents/{agent}/stop",
            "Stop an agent for good",
            Operate,
            agents::stop,
        ),
        Route::post(
            "/v1/agents/{agent}/nudge",
            "Open a turn without input",
            Use,
            agents::nudge,
        ),
        Route::post(
            "/v1/agents/{agent}/checkpoint",
            "Save a summary",
            Operate,
            agents::checkpoint,
        ),
        Route::post(
            "/v1/agents/{agent}/add_tool",
            "Add a tool",
            Operate,
            agents::add_tool,
        ),
        Route::post(
            "/v1/agents/{agent}/remove_tool",
            "Remove a tool",
            Operate,
            agents::remove_tool,
        ),
        Route::post(
            "/v1/agents/{agent}/change_model",
            "Change the model",
            Operate,
            agents::change_model,
        ),
    ]
}

fn cluster() -> Vec<Route> {
    use Role::{Observe, Operate};
    vec![
        Route::get("/v1/nodes", "List the nodes", Observe, cluster::nodes),
        Route::get(
            "/v1/nodes/{node}",
            "Describe a node",
            Observe,
            cluster::node,
        ),
        Route::post(
            "/v1/nodes/{node}/drain",
            "Drain a node",
            Operate,
            cluster::drain,
        ),
        Route::get(
            "/v1/teams",
            "List the templates of teams",
            Observe,
            cluster::teams,
        ),
        Route::get("/v1/models", "List the models", Observe, cluster::models),
        Route::get(
            "/v1/sidecars",
            "List the sidecars",
            Observe,
            cluster::sidecars,
        ),
        Route::get(
            "/v1/decisions",
            "Follow the decisions of the cluster",
            Observe,
            cluster::decisions,
        )
        .stream(DECISIONS),
    ]
}
