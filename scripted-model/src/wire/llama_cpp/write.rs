//! Writes the stream of an answer: OpenAI's chunks with their keys in another order, and timings at
//! the end.

use crate::{
    frames::{
        FramePiece::{Json, Number, Raw},
        FrameWriter,
    },
    wire::{PreparedReply, openai::ChatWriter},
};

pub fn write(speech: &PreparedReply, out: &mut FrameWriter) {
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

pub fn error_event(message: &str, out: &mut FrameWriter) {
    let kind = Raw(",\"type\":\"server_error\"}}\n\n");
    out.frame(&[
        Raw("data: {\"error\":{\"code\":500,\"message\":"),
        Json(message),
        kind,
    ]);
}
