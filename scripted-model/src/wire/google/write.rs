//! Writes the stream of an answer. Each event has a candidate with one part. The last event also
//! has the finish reason and the whole usage.

use super::signature;
use crate::{
    frames::{
        FramePiece::{self, Json, Number, Raw},
        FrameWriter, chunks,
    },
    script::Stop,
    wire::{PreparedPart, PreparedReply},
};

pub fn write(speech: &PreparedReply, out: &mut FrameWriter) {
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

pub fn error_event(message: &str, out: &mut FrameWriter) {
    let status = Raw(",\"status\": \"UNAVAILABLE\"}}\r\n\r\n");
    out.frame(&[
        Raw("data: {\"error\": {\"code\": 503,\"message\": "),
        Json(message),
        status,
    ]);
}
