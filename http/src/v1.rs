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

use super::{
    problem::Problem,
    route::{Route, routes},
};

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
    let names =
        json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 32});
    let names = json!({"name": "session", "in": "query", "required": true, "schema": names});
    routes! {
        get "/v1/sessions" needs Observe: sessions::list, "List sessions";
        post "/v1/sessions" needs Use: sessions::start, "Start a session" [.status("201")];
        get "/v1/sessions/{session}" needs Observe: sessions::info, "Describe a session";
        delete "/v1/sessions/{session}" needs Operate: sessions::delete, "Close and delete a session";
        post "/v1/sessions/{session}/prompt" needs Use: prompts::send, "Send a prompt" [
            .reply::<Accepted>()
            .status("202")
        ];
        get "/v1/sessions/{session}/prompts/{prompt}" needs Observe: prompts::outcome, "Describe a prompt";
        post "/v1/sessions/{session}/abort" needs Use: sessions::abort, "Abort the running work";
        post "/v1/sessions/{session}/rewind" needs Use: sessions::rewind, "Hide a message and all later ones";
        post "/v1/sessions/{session}/rename" needs Use: sessions::rename, "Give a session a title, or remove it";
        post "/v1/sessions/{session}/resume" needs Use: sessions::resume, "Resume a session";
        post "/v1/sessions/{session}/close" needs Operate: sessions::close, "Close a session";
        post "/v1/sessions/{session}/answer" needs Use: sessions::answer, "Answer a wait";
        get "/v1/sessions/{session}/messages" needs Observe: sessions::messages, "Read messages";
        get "/v1/sessions/{session}/events" needs Observe: events::of_session, "Read a page of the log, or follow it as a stream" [
            .reply::<Events>()
            .header(LAST.0, LAST.1)
            .stream(EVENTS)
        ];
        get "/v1/events" needs Observe: events::of_sessions, "Follow up to 32 sessions in one stream" [
            .parameter(names)
            .header(LAST.0, LAST.1)
            .stream(EVENTS)
        ];
        get "/v1/waits" needs Observe: sessions::waits, "List what agents wait for";

        get "/v1/agents/{agent}" needs Observe: agents::info, "Describe an agent";
        get "/v1/agents/{agent}/snapshot" needs Observe: agents::snapshot, "Read the running work of an agent";
        post "/v1/agents/{agent}/prompt" needs Use: agents::prompt, "Send a prompt" [.status("202")];
        post "/v1/agents/{agent}/abort" needs Use: agents::abort, "Abort the running turn";
        post "/v1/agents/{agent}/stop" needs Operate: agents::stop, "Stop an agent for good";
        post "/v1/agents/{agent}/nudge" needs Use: agents::nudge, "Open a turn without input";
        post "/v1/agents/{agent}/checkpoint" needs Operate: agents::checkpoint, "Save a summary";
        post "/v1/agents/{agent}/add_tool" needs Operate: agents::add_tool, "Add a tool";
        post "/v1/agents/{agent}/remove_tool" needs Operate: agents::remove_tool, "Remove a tool";
        post "/v1/agents/{agent}/change_model" needs Operate: agents::change_model, "Change the model";

        get "/v1/nodes" needs Observe: cluster::nodes, "List the nodes";
        get "/v1/nodes/{node}" needs Observe: cluster::node, "Describe a node";
        post "/v1/nodes/{node}/drain" needs Operate: cluster::drain, "Drain a node";
        get "/v1/teams" needs Observe: cluster::teams, "List the templates of teams";
        get "/v1/models" needs Observe: cluster::models, "List the models";
        get "/v1/sidecars" needs Observe: cluster::sidecars, "List the sidecars";
        get "/v1/decisions" needs Observe: cluster::decisions, "Follow the decisions of the cluster" [
            .stream(DECISIONS)
        ];
    }
}
