//! Anthropic's Messages API, version 2023-06-01.

mod read;
mod write;

use serde_json::json;

use super::{Heading, Wire};
use crate::{
    refusal::{RefusalKind, WireRefusal},
    script::Auth,
};

pub static WIRE: Wire = Wire {
    serves: |path| path == "/v1/messages",
    authorise,
    read: read::read,
    refuse,
    write: write::write,
    error_event: write::error_event,
    content_type: "text/event-stream; charset=utf-8",
    call_id: |serial, index, _| format!("toolu_{serial:08x}{index:02x}"),
};

fn authorise(auth: &Auth, heading: &Heading<'_>) -> Result<(), WireRefusal> {
    if heading.header("anthropic-version") != Some("2023-06-01") {
        return Err(WireRefusal::invalid(
            "anthropic-version: header is required",
        ));
    }
    match (auth, heading.header("x-api-key")) {
        (Auth::Off, _) => Ok(()),
        (_, None | Some("")) => Err(WireRefusal::auth(401, "x-api-key header is required")),
        (Auth::Key(key), Some(given)) if key != given => {
            Err(WireRefusal::auth(401, "invalid x-api-key"))
        }
        (Auth::Present | Auth::Key(_), Some(_)) => Ok(()),
    }
}

fn refuse(refusal: &WireRefusal) -> String {
    let kind = match (refusal.kind, refusal.status) {
        (RefusalKind::Auth, 403) => "permission_error",
        (RefusalKind::Auth, _) => "authentication_error",
        (RefusalKind::Invalid, 413) => "request_too_large",
        (RefusalKind::Invalid | RefusalKind::Order, _) => "invalid_request_error",
        (RefusalKind::NotFound, _) => "not_found_error",
        (RefusalKind::RateLimit, _) => "rate_limit_error",
        (RefusalKind::Overloaded, _) => "overloaded_error",
        (RefusalKind::Internal, _) => "api_error",
    };
    let message = match &refusal.field {
        Some(field) => format!("{field}: {}", refusal.message),
        None => refusal.message.clone(),
    };
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}).to_string()
}

/// Returns the signature of a thinking text. The same text always has the same signature, so the
/// server need not remember any.
fn signature(thinking: &str) -> String {
    let hash = thinking
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
        });
    format!("EqQB{hash:016x}Cg==")
}
