//! llama.cpp's server: OpenAI's chat completions with fewer checks, and with llama.cpp's additional
//! fields in the answer.

mod write;

use serde_json::json;

use super::{Heading, Wire, openai};
use crate::{
    refusal::{RefusalKind, WireRefusal},
    script::Auth,
};

pub static WIRE: Wire = Wire {
    serves: |path| {
        matches!(
            path,
            "/llama_cpp/v1/chat/completions" | "/llama_cpp/chat/completions"
        )
    },
    authorise,
    read: |body, _| openai::read_lenient(body),
    refuse,
    write: write::write,
    error_event: write::error_event,
    content_type: "text/event-stream",
    call_id: |serial, index, _| format!("{serial:030x}{index:02x}"),
};

/// Checks the key. The server requires one only if the script sets one.
fn authorise(auth: &Auth, heading: &Heading<'_>) -> Result<(), WireRefusal> {
    let given = heading
        .header("authorization")
        .and_then(|value| value.strip_prefix("Bearer "));
    match auth {
        Auth::Key(key) if given != Some(key) => Err(WireRefusal::auth(401, "Invalid API Key")),
        Auth::Key(_) | Auth::Present | Auth::Off => Ok(()),
    }
}

fn refuse(refusal: &WireRefusal) -> String {
    let kind = match (refusal.kind, refusal.status) {
        (RefusalKind::Auth, 403) => "permission_error",
        (RefusalKind::Auth, _) => "authentication_error",
        (RefusalKind::NotFound, _) => "not_found_error",
        (RefusalKind::Invalid | RefusalKind::Order | RefusalKind::RateLimit, _) => {
            "invalid_request_error"
        }
        (RefusalKind::Overloaded, _) => "unavailable_error",
        (RefusalKind::Internal, _) => "server_error",
    };
    json!({"error": {"code": refusal.status, "message": refusal.message, "type": kind}}).to_string()
}
