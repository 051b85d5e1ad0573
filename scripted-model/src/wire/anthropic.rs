//! Anthropic's Messages API, version 2023-06-01.

mod read;

use serde_json::json;

use super::{Heading, PreparedPart, PreparedReply, Wire};
use crate::{
    play::{
        FramePiece::{Json, Number, Raw},
        FrameWriter, chunks,
    },
    request::{RefusalKind, WireRefusal},
    script::{Auth, Stop},
};

pub static WIRE: Wire = Wire {
    serves: |path| path == "/v1/messages",
    authorise,
    read: read::read,
    refuse,
    write,
    error_event,
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

fn write(speech: &PreparedReply, out: &mut FrameWriter) {
    start(speech, out);
    for (index, part) in speech.parts.iter().enumerate() {
        block(index as u64, part, speech.chunk, out);
    }
    end(speech, out);
}

fn start(speech: &PreparedReply, out: &mut FrameWriter) {
    let usage = speech.usage;
    let fresh = usage
        .input
        .saturating_sub(usage.cache_read + usage.cache_write);
    out.frame(&[
        Raw("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_"),
        Number(speech.serial),
        Raw("\",\"type\":\"message\",\"role\":\"assistant\",\"model\":"),
        Json(&speech.model),
        Raw(",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":"),
        Number(fresh),
        Raw(",\"cache_creation_input_tokens\":"),
        Number(usage.cache_write),
        Raw(",\"cache_read_input_tokens\":"),
        Number(usage.cache_read),
        Raw(",\"output_tokens\":1}}}\n\n"),
    ]);
    out.frame(&[Raw("event: ping\ndata: {\"type\": \"ping\"}\n\n")]);
}

fn block(index: u64, part: &PreparedPart, chunk: usize, out: &mut FrameWriter) {
    match part {
        PreparedPart::Text(text) => {
            open(index, &[Raw("{\"type\":\"text\",\"text\":\"\"}")], out);
            deltas(index, "text_delta\",\"text", chunks(text, chunk), out);
        }
        PreparedPart::Thinking(text) => {
            let begin = r#"{"type":"thinking","thinking":"","signature":""}"#;
            open(index, &[Raw(begin)], out);
            let (thought, seal) = ("thinking_delta\",\"thinking", signature(text));
            deltas(index, thought, chunks(text, chunk), out);
            deltas(index, "signature_delta\",\"signature", [seal.as_str()], out);
        }
        PreparedPart::Redacted(data) => {
            open(
                index,
                &[
                    Raw("{\"type\":\"redacted_thinking\",\"data\":"),
                    Json(data),
                    Raw("}"),
                ],
                out,
            );
        }
        PreparedPart::Call { id, name, args } => {
            let named = [
                Raw("{\"type\":\"tool_use\",\"id\":"),
                Json(id),
                Raw(",\"name\":"),
                Json(name),
                Raw(",\"input\":{}}"),
            ];
            open(index, &named, out);
            let args = if args == "{}" { "" } else { args };
            deltas(
                index,
                "input_json_delta\",\"partial_json",
                std::iter::once("").chain(chunks(args, chunk)),
                out,
            );
        }
    }
    out.frame(&[
        Raw("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":"),
        Number(index),
        Raw("}\n\n"),
    ]);
}

fn open(index: u64, block: &[crate::play::FramePiece<'_>], out: &mut FrameWriter) {
    out.pieces(&[
        Raw("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":"),
        Number(index),
        Raw(",\"content_block\":"),
    ]);
    out.pieces(block);
    out.frame(&[Raw("}\n\n")]);
}

/// Writes one delta for each text. `kind` is the JSON from the delta's type to the name of its text
/// field, for example `text_delta","text`.
fn deltas<'a>(
    index: u64,
    kind: &str,
    texts: impl IntoIterator<Item = &'a str>,
    out: &mut FrameWriter,
) {
    for text in texts {
        out.frame(&[
            Raw("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"),
            Number(index),
            Raw(",\"delta\":{\"type\":\""),
            Raw(kind),
            Raw("\":"),
            Json(text),
            Raw("}}\n\n"),
        ]);
    }
}

fn end(speech: &PreparedReply, out: &mut FrameWriter) {
    let reason = match speech.stop {
        Stop::End => "end_turn",
        Stop::ToolUse => "tool_use",
        Stop::Length => "max_tokens",
        Stop::Refusal => "refusal",
    };
    out.frame(&[
        Raw("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":"),
        Json(reason),
        Raw(",\"stop_sequence\":null},\"usage\":{\"output_tokens\":"),
        Number(speech.usage.output),
        Raw("}}\n\n"),
    ]);
    out.frame(&[Raw(
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    )]);
}

fn error_event(message: &str, out: &mut FrameWriter) {
    out.frame(&[
        Raw("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":"),
        Json(message),
        Raw("}}\n\n"),
    ]);
}
