//! OpenAI's chat completions.

mod messages;
mod read;
mod write;

use serde_json::json;

use super::Heading;
use crate::{
    refusal::{Kind, Refusal},
    script::Auth,
};

pub use read::{read, read_lenient};
pub use write::{Chat, error_event, write};

pub fn authorise(auth: &Auth, heading: &Heading<'_>) -> Result<(), Refusal> {
    let key = heading.header("authorization").and_then(|value| value.strip_prefix("Bearer ")).filter(|key| !key.is_empty());
    match (auth, key) {
        (Auth::Off, _) => Ok(()),
        (_, None) => Err(Refusal::auth(401, "You didn't provide an API key.")),
        (Auth::Key(key), Some(given)) if key != given => Err(Refusal::auth(401, "Incorrect API key provided.")),
        (Auth::Present | Auth::Key(_), Some(_)) => Ok(()),
    }
}

pub fn refuse(refusal: &Refusal) -> String {
    let (kind, code) = match refusal.kind {
        Kind::Invalid => ("invalid_request_error", None),
        Kind::Auth => ("invalid_request_error", Some("invalid_api_key")),
        Kind::NotFound => ("invalid_request_error", Some("model_not_found")),
        Kind::RateLimit => ("requests", Some("rate_limit_exceeded")),
        Kind::Overloaded | Kind::Internal => ("server_error", None),
    };
    json!({"error": {"message": refusal.message, "type": kind, "param": refusal.field, "code": code}}).to_string()
}
