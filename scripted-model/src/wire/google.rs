//! Google's `streamGenerateContent`, v1beta, as server-sent events.

mod read;

use serde_json::json;

use super::{Heading, PreparedPart, PreparedReply, Wire};
use crate::{
    play::{
        FramePiece::{self, Json, Number, Raw},
        FrameWriter, chunks,
    },
    request::{RefusalKind, WireRefusal},
    script::{Auth, Stop},
};

const BEFORE_MODEL: &str = "/v1beta/models/";
const AFTER_MODEL: &str = ":streamGenerateContent";

pub static WIRE: Wire = Wire {
    serves: |path| model_of(path).is_some(),
    authorise,
    read: read::read,
    refuse,
    write,
    error_event,
    content_type: "text/event-stream",
    call_id: |_, _, _| String::new(), // Google distinguishes calls by name and order
};

/// Returns the model that a path names, or `None` for a path of another API.
fn model_of(path: &str) -> Option<&str> {
    let model = path.strip_prefix(BEFORE_MODEL)?.strip_suffix(AFTER_MODEL)?;
    (!model.is_empty() && !model.contains('/')).then_some(model)
}

fn authorise(auth: &Auth, heading: &Heading<'_>) -> Result<(), WireRefusal> {
    let in_query = heading
        .query
        .split('&')
        .find_map(|pair| pair.strip_prefix("key="));
    match (auth, heading.header("x-goog-api-key").or(in_query)) {
        (Auth::Off, _) => Ok(()),
        (_, None | Some("")) => Err(WireRefusal::auth(
            403,
            "Method doesn't allow unregistered callers (callers without established identity). \
             Please use API Key or other form of API consumer identity to call this API.",
        )),
        (Auth::Key(key), Some(given)) if key != given => Err(WireRefusal::auth(
            400,
            "API key not valid. Please pass a valid API key.",
        )),
        (Auth::Present | Auth::Key(_), Some(_)) => Ok(()),
    }
}

fn refuse(refusal: &WireRefusal) -> String {
    let status = match (refusal.kind, refusal.status) {
        (RefusalKind::Auth, 401) => "UNAUTHENTICATED",
        (RefusalKind::Auth, 403) => "PERMISSION_DENIED",
        (RefusalKind::Invalid | RefusalKind::Order | RefusalKind::Auth, _) => "INVALID_ARGUMENT",
        (RefusalKind::NotFound, _) => "NOT_FOUND",
        (RefusalKind::RateLimit, _) => "RESOURCE_EXHAUSTED",
        (RefusalKind::Overloaded, _) => "UNAVAILABLE",
        (RefusalKind::Internal, _) => "INTERNAL",
    };
    let message = match &refusal.field {
        Some(field) => format!("* GenerateContentRequest.{field}: {}", refusal.message),
        None => refusal.message.clone(),
    };
    json!({"error": {"code": refusal.status, "message": message, "status": status}}).to_string()
}

/// Returns the signature of a call. It depends on the tool only, so the server need not remember
/// any.
fn signature(tool: &str) -> String {
    let hash = tool.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    }); // FNV-1a
    format!("CgQA{hash:08x}Eg==")
}

fn write(speech: &PreparedReply, out: &mut FrameWriter) {
    let mut signed = false;
    for part in &speech.parts {
        match part {
            PreparedPart::Text(text) => {
                for text in chunks(text, speech.chunk) {
                    candidate(
                        speech,
                        &[Raw("{\"text\":"), Json(text), Raw("}")],
                        None,
                        out,
                    );
                }
            }
            PreparedPart::Thinking(text) => {
                for text in chunks(text, speech.chunk) {
                    candidate(
                        speech,
                        &[Raw("{\"text\":"), Json(text), Raw(",\"thought\":true}")],
                        None,
                        out,
                    );
                }
            }
            PreparedPart::Redacted(_) => (), // Google has no redacted thinking
            PreparedPart::Call { id, name, args } => {
                let signature = if std::mem::replace(&mut signed, true) {
                    String::new()
                } else {
                    signature(name)
                };
                call(speech, id, name, args, &signature, out);
            }
        }
    }
    candidate(speech, &[Raw("{\"text\":\"\"}")], Some(speech.stop), out);
}

fn call(
    speech: &PreparedReply,
    id: &str,
    name: &str,
    args: &str,
    signature: &str,
    out: &mut FrameWriter,
) {
    let mut pieces = vec![
        Raw("{\"functionCall\":{\"name\":"),
        Json(name),
        Raw(",\"args\":"),
        Raw(args),
    ];
    if !id.is_empty() {
        pieces.extend([Raw(",\"id\":"), Json(id)]);
    }
    pieces.push(Raw("}"));
    if !signature.is_empty() {
        pieces.extend([Raw(",\"thoughtSignature\":"), Json(signature)]);
    }
    pieces.push(Raw("}"));
    candidate(speech, &pieces, None, out);
}

fn candidate(
    speech: &PreparedReply,
    part: &[FramePiece<'_>],
    stop: Option<Stop>,
    out: &mut FrameWriter,
) {
    out.pieces(&[Raw("data: {\"candidates\": [{\"content\": {\"parts\": [")]);
    out.pieces(part);
    out.pieces(&[Raw("],\"role\": \"model\"}")]);
    if let Some(stop) = stop {
        out.pieces(&[Raw(",\"finishReason\": "), Json(reason(stop))]);
    }
    let usage = speech.usage;
    out.pieces(&[
        Raw(",\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": "),
        Number(usage.input),
    ]);
    if stop.is_some() {
        out.pieces(&[Raw(",\"candidatesTokenCount\": "), Number(usage.output)]);
        out.pieces(&[
            Raw(",\"cachedContentTokenCount\": "),
            Number(usage.cache_read),
        ]);
    }
    let total = usage.input + if stop.is_some() { usage.output } else { 0 };
    out.frame(&[
        Raw(",\"totalTokenCount\": "),
        Number(total),
        Raw("},\"modelVersion\": "),
        Json(&speech.model),
        Raw(",\"responseId\": \"scripted-"),
        Number(speech.serial),
        Raw("\"}\r\n\r\n"),
    ]);
}

fn reason(stop: Stop) -> &'static str {
    match stop {
        Stop::End | Stop::ToolUse => "STOP",
        Stop::Length => "MAX_TOKENS",
        Stop::Refusal => "SAFETY",
    }
}

fn error_event(message: &str, out: &mut FrameWriter) {
    let status = Raw(",\"status\": \"UNAVAILABLE\"}}\r\n\r\n");
    out.frame(&[
        Raw("data: {\"error\": {\"code\": 503,\"message\": "),
        Json(message),
        status,
    ]);
}
