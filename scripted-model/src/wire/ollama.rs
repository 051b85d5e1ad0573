//! Ollama's chat API, which streams lines of JSON.

mod read;
mod write;

use serde_json::json;

use super::{Heading, Wire};
use crate::{refusal::WireRefusal, script::Auth};

pub static WIRE: Wire = Wire {
    serves: |path| path == "/api/chat",
    authorise,
    read: |body, _| read::read(body),
    refuse,
    write: write::write,
    error_event: write::error_event,
    content_type: "application/x-ndjson",
    call_id: |serial, index, _| format!("call_{serial:08x}{index:02x}"),
};

/// Checks the key. A local Ollama server requires none. If the script sets one, the request must
/// carry it as a bearer token, as for Ollama's cloud.
fn authorise(auth: &Auth, heading: &Heading<'_>) -> Result<(), WireRefusal> {
    let given = heading
        .header("authorization")
        .and_then(|value| value.strip_prefix("Bearer "));
    match auth {
        Auth::Key(key) if given != Some(key) => Err(WireRefusal::auth(401, "unauthorized")),
        Auth::Key(_) | Auth::Present | Auth::Off => Ok(()),
    }
}

fn refuse(refusal: &WireRefusal) -> String {
    json!({"error": refusal.message}).to_string()
}
