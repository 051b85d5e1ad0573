//! llama.cpp's server: OpenAI's chat completions with fewer checks, and with llama.cpp's additional
//! fields in the answer.

use serde_json::json;

use super::{
    Heading, PreparedReply, Wire,
    openai::{self, ChatWriter},
};
use crate::{
    play::{
        FramePiece::{Json, Number, Raw},
        FrameWriter,
    },
    request::{RefusalKind, WireRefusal},
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
    write,
    error_event,
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

fn write(speech: &PreparedReply, out: &mut FrameWriter) {
    let model = serde_json::Value::from(speech.model.as_str());
    let identity = format!(
        "],\"created\":1760000000,\"id\":\"chatcmpl-{:032x}\",\"model\":{model},\
         \"system_fingerprint\":\"b6000-scripted\",\"object\":\"chat.completion.chunk\"",
        speech.serial
    );
    let before = "data: {\"choices\":[".to_owned();
    let mut chat = ChatWriter {
        before,
        detail: "",
        after: format!("{identity}}}\n\n"),
        out,
    };
    chat.delta(&[Raw("{\"role\":\"assistant\",\"content\":null}")]);
    chat.parts(speech);
    chat.end(speech.stop);
    let usage = speech.usage;
    out.pieces(&[Raw("data: {\"choices\":["), Raw(&identity)]);
    if speech.include_usage {
        out.pieces(&[
            Raw(",\"usage\":{\"completion_tokens\":"),
            Number(usage.output),
            Raw(",\"prompt_tokens\":"),
            Number(usage.input),
        ]);
        out.pieces(&[
            Raw(",\"total_tokens\":"),
            Number(usage.input + usage.output),
        ]);
        out.pieces(&[
            Raw(",\"prompt_tokens_details\":{\"cached_tokens\":"),
            Number(usage.cache_read),
            Raw("}}"),
        ]);
    }
    out.pieces(&[
        Raw(",\"timings\":{\"cache_n\":"),
        Number(usage.cache_read),
        Raw(",\"prompt_n\":"),
        Number(usage.input),
    ]);
    out.frame(&[
        Raw(",\"prompt_ms\":1.0,\"predicted_n\":"),
        Number(usage.output),
        Raw(",\"predicted_ms\":1.0}}\n\n"),
    ]);
    out.frame(&[Raw("data: [DONE]\n\n")]);
}

fn error_event(message: &str, out: &mut FrameWriter) {
    let kind = Raw(",\"type\":\"server_error\"}}\n\n");
    out.frame(&[
        Raw("data: {\"error\":{\"code\":500,\"message\":"),
        Json(message),
        kind,
    ]);
}
