//! Ollama's chat API, which streams lines of JSON.

mod read;
mod write;

use serde_json::json;

use super::Heading;
use crate::{refusal::WireRefusal, script::Auth};

pub use read::read;
pub use write::{error_event, write};

/// Checks the key. A local Ollama server requires none. If the script sets one, the request must
/// carry it as a bearer token, as for Ollama's cloud.
pub fn authorise(auth: &Auth, heading: &Heading<'_>) -> Result<(), WireRefusal> {
    let given = heading
        .header("authorization")
        .and_then(|value| value.strip_prefix("Bearer "));
    match auth {
        Auth::Key(key) if given != Some(key) => Err(WireRefusal::auth(401, "unauthorized")),
        Auth::Key(_) | Auth::Present | Auth::Off => Ok(()),
    }
}

pub fn refuse(refusal: &WireRefusal) -> String {
    json!({"error": refusal.message}).to_string()
}
