//! The wire of OpenAI's clients: models, chat completions and responses, under `/openai/v1`. A
//! team, or one agent, stands in the place of a model.

mod ask;
mod chat;
mod error;
mod history;
mod ids;
pub mod models;
mod opening;
mod responses;
mod segment;

use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    http::{HeaderMap, HeaderName, HeaderValue, Uri},
    response::{IntoResponse as _, Response},
};
use planck_common::Timestamp;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{
    body::WireBody,
    key::Caller,
    route::{Route, RouteArgument, routes},
    turn,
};

pub use chat::{ChatCompletion, ChatRequest};
pub use error::{ErrorReply, OpenAiError};
pub use ids::{ResponseId, ToolCallId};
pub use responses::{ResponseObject, ResponsesRequest};

/// The paths of this wire begin so.
pub const PREFIX: &str = "/openai/";

/// Names the parameters of a request that had no effect.
const WARNING: HeaderName = HeaderName::from_static("x-planck-warning");
/// Names the session of a response.
const SESSION: HeaderName = HeaderName::from_static("x-planck-session");

/// The content of the stream of a completion.
const CHUNKS: &str = "With `stream`: server-sent events. The `data` of each is a chunk of the completion; the last one is `[DONE]`.";
/// The content of the stream of a response.
const EVENTS: &str = "With `stream`: server-sent events. The `data` of each is an event of a response, and `event` is its `type`.";

pub fn routes() -> Vec<Route> {
    routes! {
        get "/openai/v1/models" needs Observe: models::list, "List the teams and models";
        get "/openai/v1/models/{*model}" needs Observe: models::find, "Find a team or a model";
        post "/openai/v1/chat/completions" needs Use: chat::create, "Answer the last message of a conversation" [
            .asks()
            .reply::<ChatCompletion>()
            .stream(CHUNKS)
        ];
        post "/openai/v1/responses" needs Use: responses::create, "Create a response" [
            .asks()
            .reply::<ResponseObject>()
            .stream(EVENTS)
        ];
        get "/openai/v1/responses/{response}" needs Observe: responses::find, "Read a response, or continue its stream" [
            .header(turn::UNTIL_HEADER.as_str(), turn::UNTIL_MEANING)
            .reply::<ResponseObject>()
            .stream(EVENTS)
        ];
        delete "/openai/v1/responses/{response}" needs Use: responses::delete, "Delete the latest response of a session";
        post "/openai/v1/responses/{response}/cancel" needs Use: responses::cancel, "Abort the work for a response" [
            .reply::<ResponseObject>()
        ];
    }
}

impl Route {
    /// Adds the headers of a request with a question.
    fn asks(self) -> Self {
        const SESSION_MEANS: &str =
            "The session to continue, by id or name. It is started if there is none.";
        const KEY_MEANS: &str = "A repetition with the same key gets the same turn.";
        self.header(SESSION.as_str(), SESSION_MEANS)
            .header("Idempotency-Key", KEY_MEANS)
            .header(turn::UNTIL_HEADER.as_str(), turn::UNTIL_MEANING)
    }
}

pub async fn no_route(uri: Uri) -> OpenAiError {
    let path: String = uri.path().chars().take(80).collect();
    OpenAiError::not_found(format!(
        "there is no `{path}` here; `/openai/v1` has `models`, `chat/completions` and `responses`"
    ))
}

/// Answers a request of a client of OpenAI's whose base URL is wrong, in the form that it shows.
pub(crate) fn misplaced(path: &str) -> Option<Response> {
    let ends = ["completions", "responses", "embeddings"];
    ends.iter().any(|end| path.ends_with(end)).then(|| {
        let what = format!("there is no `{path}` here; the base URL ends with `/openai/v1`");
        OpenAiError::not_found(what).into_response()
    })
}

/// A request with a JSON body.
struct OpenAiRequest<T> {
    caller: Caller,
    headers: HeaderMap,
    body: T,
}

impl<T: DeserializeOwned + JsonSchema, S: Send + Sync> FromRequest<S> for OpenAiRequest<T> {
    type Rejection = OpenAiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, OpenAiError> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, state).await?;
        let headers = parts.headers.clone();
        let request = Request::from_parts(parts, body);
        let WireBody(body) = WireBody::from_request(request, state).await?;
        Ok(Self {
            caller,
            headers,
            body,
        })
    }
}

impl<T: JsonSchema> RouteArgument for OpenAiRequest<T> {
    fn describe(route: &mut Route) {
        WireBody::<T>::describe(route);
    }
}

/// Returns the time in the form that clients read, in seconds.
fn now() -> i64 {
    Timestamp::now().millis() / 1_000
}

/// Adds a header to a response. A value that a header cannot carry is left out.
fn say(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Adds the headers that tell of the session and of parameters without effect.
fn tell(response: &mut Response, session: &str, warnings: &[String]) {
    say(response, SESSION, session);
    if !warnings.is_empty() {
        say(response, WARNING, &warnings.join("; "));
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::misplaced;

    #[test]
    fn wrong_base_url_is_told_in_the_form_of_the_client() {
        for (path, is_openais) in [
            ("v1/chat/completions", true),
            ("v1/responses", true),
            ("v1/session", false),
        ] {
            let answer = misplaced(path).map(|answer| answer.status());
            let expected = is_openais.then_some(StatusCode::NOT_FOUND);
            assert_eq!(answer, expected, "{path}");
        }
    }
}
