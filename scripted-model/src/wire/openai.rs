//! OpenAI's chat completions, as strict as the strictest servers of this format: Mistral about the
//! order of roles, DeepSeek and Kimi about the reasoning that belongs to calls.

mod messages;
mod read;
mod write;

use serde_json::json;

use super::{Heading, Wire};
use crate::{
    refusal::{RefusalKind, WireRefusal},
    script::Auth,
};

pub use read::{read, read_lenient};
pub use write::{ChatWriter, error_event, write};

pub static WIRE: Wire = Wire {
    serves: |path| path == "/v1/chat/completions",
    authorise,
    read: |body, _| read(body),
    refuse,
    write,
    error_event,
    content_type: "text/event-stream",
    call_id,
};

/// Returns a call's id, which encodes whether reasoning precedes the call.
pub fn call_id(serial: u64, index: usize, thought: Option<usize>) -> String {
    format!(
        "call_{serial:08x}{index:02x}{}",
        if thought.is_some() { "t" } else { "" }
    )
}

/// Returns whether reasoning preceded the call with this id.
fn has_thought(call_id: &str) -> bool {
    let digits = call_id
        .strip_prefix("call_")
        .and_then(|rest| rest.strip_suffix('t'));
    digits.is_some_and(|digits| {
        digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Returns whether a model refuses calls without the reasoning that belongs to them.
fn wants_reasoning(model: &str) -> bool {
    ["deepseek", "kimi"]
        .iter()
        .any(|start| model.starts_with(start))
}

pub fn authorise(auth: &Auth, heading: &Heading<'_>) -> Result<(), WireRefusal> {
    let key = heading
        .header("authorization")
        .and_then(|value| value.strip_prefix("Bearer "))
        .filter(|key| !key.is_empty());
    match (auth, key) {
        (Auth::Off, _) => Ok(()),
        (_, None) => Err(WireRefusal::auth(401, "You didn't provide an API key.")),
        (Auth::Key(key), Some(given)) if key != given => {
            Err(WireRefusal::auth(401, "Incorrect API key provided."))
        }
        (Auth::Present | Auth::Key(_), Some(_)) => Ok(()),
    }
}

pub fn refuse(refusal: &WireRefusal) -> String {
    let (kind, code) = match refusal.kind {
        RefusalKind::Invalid => ("invalid_request_error", None),
        RefusalKind::Order => ("invalid_request_message_order", Some("3230")),
        RefusalKind::Auth => ("invalid_request_error", Some("invalid_api_key")),
        RefusalKind::NotFound => ("invalid_request_error", Some("model_not_found")),
        RefusalKind::RateLimit => ("requests", Some("rate_limit_exceeded")),
        RefusalKind::Overloaded | RefusalKind::Internal => ("server_error", None),
    };
    json!({"error": {"message": refusal.message, "type": kind, "param": refusal.field, "code": code}}).to_string()
}
