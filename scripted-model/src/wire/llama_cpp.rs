//! llama.cpp's server: OpenAI's chat completions with fewer checks, and with llama.cpp's additional
//! fields in the answer.

mod write;

use serde_json::{Value, json};

use super::{Heading, openai};
use crate::{
    asked::Asked,
    refusal::{Kind, Refusal},
    script::Auth,
};

pub use write::{error_event, write};

/// Checks the key, which is required only if one is set.
pub fn authorise(auth: &Auth, heading: &Heading<'_>) -> Result<(), Refusal> {
    let given = heading
        .header("authorization")
        .and_then(|value| value.strip_prefix("Bearer "));
    match auth {
        Auth::Key(key) if given != Some(key) => Err(Refusal::auth(401, "Invalid API Key")),
        Auth::Key(_) | Auth::Present | Auth::Off => Ok(()),
    }
}

pub fn read(body: &Value) -> Result<Asked, Refusal> {
    openai::read_lenient(body)
}

pub fn refuse(refusal: &Refusal) -> String {
    let kind = match (refusal.kind, refusal.status) {
        (Kind::Auth, 403) => "permission_error",
        (Kind::Auth, _) => "authentication_error",
        (Kind::NotFound, _) => "not_found_error",
        (Kind::Invalid | Kind::Order | Kind::RateLimit, _) => "invalid_request_error",
        (Kind::Overloaded, _) => "unavailable_error",
        (Kind::Internal, _) => "server_error",
    };
    json!({"error": {"code": refusal.status, "message": refusal.message, "type": kind}}).to_string()
}
