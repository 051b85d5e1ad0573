//! OpenAI's chat completions, as strict as the strictest servers of this format: Mistral about the
//! order of roles, DeepSeek and Kimi about the reasoning that belongs to calls.

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

pub use read::{read, read_lenient};

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

pub fn write(speech: &PreparedReply, out: &mut FrameWriter) {
    let after = if speech.include_usage {
        "],\"usage\":null}\n\n"
    } else {
        "]}\n\n"
    };
    let mut chat = ChatWriter {
        before: before(speech),
        detail: ",\"logprobs\":null",
        after: after.to_owned(),
        out,
    };
    chat.delta(&[Raw(
        "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null}",
    )]);
    chat.parts(speech);
    chat.end(speech.stop);
    if speech.include_usage {
        chat.usage(speech);
    }
    out.frame(&[Raw("data: [DONE]\n\n")]);
}

/// Returns the JSON that precedes the choices in every chunk.
fn before(speech: &PreparedReply) -> String {
    let model = serde_json::Value::from(speech.model.as_str());
    let serial = speech.serial;
    format!(
        "data: {{\"id\":\"chatcmpl-{serial:08x}\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\
         \"model\":{model},\"service_tier\":\"default\",\"system_fingerprint\":\"fp_scripted\",\"choices\":["
    )
}

/// A writer of chunks that differ only in their choices.
pub struct ChatWriter<'a> {
    /// The JSON before the choices.
    pub before: String,
    /// The JSON between the delta of a choice and its `finish_reason`.
    pub detail: &'static str,
    /// The JSON after the choices.
    pub after: String,
    pub out: &'a mut FrameWriter,
}

impl ChatWriter<'_> {
    pub fn parts(&mut self, speech: &PreparedReply) {
        let mut calls = 0;
        for part in &speech.parts {
            match part {
                PreparedPart::Text(text) => self.texts("content", text, speech.chunk),
                PreparedPart::Thinking(text) => self.texts("reasoning_content", text, speech.chunk),
                PreparedPart::Redacted(_) => (), // this format has no redacted thinking
                PreparedPart::Call { id, name, args } => {
                    self.call(calls, id, name, args, speech.chunk);
                    calls += 1;
                }
            }
        }
    }

    pub fn delta(&mut self, delta: &[FramePiece<'_>]) {
        self.out
            .pieces(&[Raw(&self.before), Raw("{\"index\":0,\"delta\":")]);
        self.out.pieces(delta);
        self.out.frame(&[
            Raw(self.detail),
            Raw(",\"finish_reason\":null}"),
            Raw(&self.after),
        ]);
    }

    fn texts(&mut self, field: &str, text: &str, chunk: usize) {
        for text in chunks(text, chunk) {
            self.delta(&[Raw("{\""), Raw(field), Raw("\":"), Json(text), Raw("}")]);
        }
    }

    fn call(&mut self, index: u64, id: &str, name: &str, args: &str, chunk: usize) {
        self.delta(&[
            Raw("{\"tool_calls\":[{\"index\":"),
            Number(index),
            Raw(",\"id\":"),
            Json(id),
            Raw(",\"type\":\"function\",\"function\":{\"name\":"),
            Json(name),
            Raw(",\"arguments\":\"\"}}]}"),
        ]);
        for args in chunks(args, chunk) {
            let before = Raw("{\"tool_calls\":[{\"index\":");
            self.delta(&[
                before,
                Number(index),
                Raw(",\"function\":{\"arguments\":"),
                Json(args),
                Raw("}}]}"),
            ]);
        }
    }

    pub fn end(&mut self, stop: Stop) {
        let reason = match stop {
            Stop::End => "stop",
            Stop::ToolUse => "tool_calls",
            Stop::Length => "length",
            Stop::Refusal => "content_filter",
        };
        self.out.pieces(&[
            Raw(&self.before),
            Raw("{\"index\":0,\"delta\":{}"),
            Raw(self.detail),
        ]);
        self.out.frame(&[
            Raw(",\"finish_reason\":"),
            Json(reason),
            Raw("}"),
            Raw(&self.after),
        ]);
    }

    fn usage(&mut self, speech: &PreparedReply) {
        let usage = speech.usage;
        self.out.frame(&[
            Raw(&self.before),
            Raw("],\"usage\":{\"prompt_tokens\":"),
            Number(usage.input),
            Raw(",\"completion_tokens\":"),
            Number(usage.output),
            Raw(",\"total_tokens\":"),
            Number(usage.input + usage.output),
            Raw(",\"prompt_tokens_details\":{\"cached_tokens\":"),
            Number(usage.cache_read),
            Raw(
                ",\"audio_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":0}}}\n\n",
            ),
        ]);
    }
}

pub fn error_event(message: &str, out: &mut FrameWriter) {
    out.frame(&[
        Raw("data: {\"error\":{\"message\":"),
        Json(message),
        Raw(",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n"),
    ]);
}
