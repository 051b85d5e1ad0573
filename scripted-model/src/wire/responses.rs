//! OpenAI's Responses API without storage: a request contains the whole conversation, with the
//! encrypted reasoning that the server returned earlier.
//!
//! The server remembers no reply. The id of a reasoning item encodes what followed it, and the id
//! of a call encodes the reasoning that preceded it.

mod input;
mod read;

use serde_json::{Value, json};

use super::{PreparedPart, PreparedReply, Wire, openai};
use crate::{
    play::{
        FramePiece::{self, Json, Number, Raw},
        FrameWriter, chunks,
    },
    script::Stop,
};

pub static WIRE: Wire = Wire {
    serves: |path| path == "/v1/responses",
    authorise: openai::authorise,
    read: |body, _| read::read(body),
    refuse: openai::refuse,
    write,
    error_event,
    content_type: "text/event-stream; charset=utf-8",
    call_id,
};

/// Returns a call's id. `thought` is the index of the reasoning before it in the reply.
fn call_id(serial: u64, index: usize, thought: Option<usize>) -> String {
    let of = thought
        .map(|thought| format!("_{thought:02x}"))
        .unwrap_or_default();
    format!("call_{serial:08x}{index:02x}{of}")
}

/// Returns the prefix of the id of the reasoning item that preceded a call, or `None` if no
/// reasoning preceded it or this server did not create the id.
fn thought_of_call(call_id: &str) -> Option<String> {
    let (call, thought) = call_id.strip_prefix("call_")?.split_once('_')?;
    let is_hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    (is_hex(call, 10) && is_hex(thought, 2))
        .then(|| format!("rs_{}{thought}", call.get(..8).unwrap_or_default()))
}

/// The kind of item that follows a reasoning item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follower {
    Message,
    Call,
    Reasoning,
    Nothing,
}

impl Follower {
    const ALL: [(Self, char); 4] = [
        (Self::Message, 'm'),
        (Self::Call, 'c'),
        (Self::Reasoning, 'r'),
        (Self::Nothing, 'n'),
    ];

    fn of(speech: &PreparedReply, index: usize) -> Self {
        match speech.parts.get(index + 1) {
            Some(PreparedPart::Text(_)) => Self::Message,
            Some(PreparedPart::Call { .. }) => Self::Call,
            Some(PreparedPart::Thinking(_) | PreparedPart::Redacted(_)) => Self::Reasoning,
            None => Self::Nothing,
        }
    }

    /// Returns what followed the reasoning item with this id, or `None` if this server did not
    /// create the id.
    fn told(id: &str) -> Option<Self> {
        let end = id.strip_prefix("rs_")?.chars().nth(10)?;
        Self::ALL
            .iter()
            .find(|(_, letter)| *letter == end)
            .map(|(follower, _)| *follower)
    }
}

fn reasoning_id(speech: &PreparedReply, index: usize) -> String {
    let follower = Follower::of(speech, index);
    let letter = Follower::ALL
        .iter()
        .find(|(known, _)| *known == follower)
        .map_or('n', |(_, letter)| *letter);
    format!("rs_{:08x}{index:02x}{letter}", speech.serial)
}

/// Returns the encrypted content of a reasoning item, which depends only on the item's id.
fn ciphertext(id: &str) -> String {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
    });
    format!("gAAAAAB{hash:016x}==")
}

fn write(speech: &PreparedReply, out: &mut FrameWriter) {
    let mut events = EventWriter {
        out,
        speech,
        number: 0,
    };
    let begun = events.response("in_progress", &[]);
    events.event("response.created", &[Raw(",\"response\":"), Raw(&begun)]);
    events.event(
        "response.in_progress",
        &[Raw(",\"response\":"), Raw(&begun)],
    );
    let output: Vec<Value> = speech
        .parts
        .iter()
        .enumerate()
        .map(|(index, part)| events.item(index, part))
        .collect();
    let (kind, status) = match speech.stop {
        Stop::End | Stop::ToolUse => ("response.completed", "completed"),
        Stop::Length | Stop::Refusal => ("response.incomplete", "incomplete"),
    };
    let whole = events.response(status, &output);
    events.event(kind, &[Raw(",\"response\":"), Raw(&whole)]);
}

/// A writer of numbered events.
struct EventWriter<'a> {
    out: &'a mut FrameWriter,
    speech: &'a PreparedReply,
    number: u64,
}

impl EventWriter<'_> {
    fn event(&mut self, kind: &str, members: &[FramePiece<'_>]) {
        self.out.pieces(&[
            Raw("event: "),
            Raw(kind),
            Raw("\ndata: {\"type\":\""),
            Raw(kind),
            Raw("\""),
        ]);
        self.out.pieces(members);
        self.out.frame(&[
            Raw(",\"sequence_number\":"),
            Number(self.number),
            Raw("}\n\n"),
        ]);
        self.number += 1;
    }

    fn response(&self, status: &str, output: &[Value]) -> String {
        let PreparedReply {
            serial,
            model,
            usage,
            stop,
            ..
        } = self.speech;
        let reason = match stop {
            Stop::Length => json!({"reason": "max_output_tokens"}),
            Stop::Refusal => json!({"reason": "content_filter"}),
            Stop::End | Stop::ToolUse => Value::Null,
        };
        let is_over = status != "in_progress";
        let usage = json!({
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input + usage.output
        });
        json!({
            "id": format!("resp_{serial:08x}"), "object": "response", "created_at": 1_760_000_000, "status": status,
            "error": null, "incomplete_details": if is_over { reason } else { Value::Null }, "model": model, "output": output,
            "parallel_tool_calls": true, "store": false, "usage": if is_over { usage } else { Value::Null }, "metadata": {}
        })
        .to_string()
    }

    /// Writes an item, and returns the complete item.
    fn item(&mut self, index: usize, part: &PreparedPart) -> Value {
        match part {
            PreparedPart::Text(text) => self.message(index, text),
            PreparedPart::Thinking(text) => self.reasoning(index, Some(text)),
            PreparedPart::Redacted(_) => self.reasoning(index, None),
            PreparedPart::Call { id, name, args } => self.call(index, id, name, args),
        }
    }

    fn border(&mut self, kind: &str, index: usize, item: &Value) {
        let index = Number(index as u64);
        self.event(
            kind,
            &[
                Raw(",\"output_index\":"),
                index,
                Raw(",\"item\":"),
                Raw(&item.to_string()),
            ],
        );
    }

    /// Writes an event about a text. `more` is the JSON between the item's index and the text.
    fn text(&mut self, kind: &str, index: usize, id: &str, more: &str, text: &str) {
        let place = Number(index as u64);
        self.event(
            kind,
            &[
                Raw(",\"item_id\":"),
                Json(id),
                Raw(",\"output_index\":"),
                place,
                Raw(more),
                Json(text),
            ],
        );
    }

    /// Writes an event about `part`, which is a part of a message or of a reasoning summary.
    /// `place` is the JSON with the part's index.
    fn part(&mut self, kind: &str, index: usize, id: &str, place: &str, part: &Value) {
        let at = Number(index as u64);
        let part = part.to_string();
        let members = [
            Raw(",\"item_id\":"),
            Json(id),
            Raw(",\"output_index\":"),
            at,
            Raw(place),
            Raw(",\"part\":"),
            Raw(&part),
        ];
        self.event(kind, &members);
    }

    fn message(&mut self, index: usize, text: &str) -> Value {
        let id = format!("msg_{:08x}{index:02x}", self.speech.serial);
        let rest = self.speech.parts.iter().skip(index + 1);
        let phase = if rest
            .clone()
            .any(|part| matches!(part, PreparedPart::Call { .. }))
        {
            "commentary"
        } else {
            "final_answer"
        };
        let item = |status: &str, content: Value| json!({"id": id, "type": "message", "status": status, "content": content, "phase": phase, "role": "assistant"});
        let content = |text: &str| json!({"type": "output_text", "annotations": [], "logprobs": [], "text": text});
        self.border(
            "response.output_item.added",
            index,
            &item("in_progress", json!([])),
        );
        self.part(
            "response.content_part.added",
            index,
            &id,
            ",\"content_index\":0",
            &content(""),
        );
        for piece in chunks(text, self.speech.chunk) {
            self.text(
                "response.output_text.delta",
                index,
                &id,
                ",\"content_index\":0,\"logprobs\":[],\"delta\":",
                piece,
            );
        }
        self.text(
            "response.output_text.done",
            index,
            &id,
            ",\"content_index\":0,\"logprobs\":[],\"text\":",
            text,
        );
        self.part(
            "response.content_part.done",
            index,
            &id,
            ",\"content_index\":0",
            &content(text),
        );
        let whole = item("completed", json!([content(text)]));
        self.border("response.output_item.done", index, &whole);
        whole
    }

    /// Writes a reasoning item, and returns the complete item. If the client asked for the
    /// encrypted content, the first event has only its beginning, and the last event all of it.
    fn reasoning(&mut self, index: usize, text: Option<&str>) -> Value {
        let id = reasoning_id(self.speech, index);
        let ciphertext = self.speech.wants_ciphertext.then(|| ciphertext(&id));
        let begun = ciphertext.as_deref().and_then(|whole| whole.get(..12));
        let part = |text: &str| json!({"type": "summary_text", "text": text});
        let item = |ciphertext: Option<&str>, summary: Value| json!({"id": id, "type": "reasoning", "encrypted_content": ciphertext, "summary": summary});
        self.border("response.output_item.added", index, &item(begun, json!([])));
        if let Some(text) = text {
            self.part(
                "response.reasoning_summary_part.added",
                index,
                &id,
                ",\"summary_index\":0",
                &part(""),
            );
            for piece in chunks(text, self.speech.chunk) {
                self.text(
                    "response.reasoning_summary_text.delta",
                    index,
                    &id,
                    ",\"summary_index\":0,\"delta\":",
                    piece,
                );
            }
            self.text(
                "response.reasoning_summary_text.done",
                index,
                &id,
                ",\"summary_index\":0,\"text\":",
                text,
            );
            self.part(
                "response.reasoning_summary_part.done",
                index,
                &id,
                ",\"summary_index\":0",
                &part(text),
            );
        }
        let whole = item(
            ciphertext.as_deref(),
            text.map_or(json!([]), |text| json!([part(text)])),
        );
        self.border("response.output_item.done", index, &whole);
        whole
    }

    fn call(&mut self, index: usize, call_id: &str, name: &str, args: &str) -> Value {
        let id = format!("fc_{:08x}{index:02x}", self.speech.serial);
        let item = |status: &str, args: &str| json!({"id": id, "type": "function_call", "status": status, "arguments": args, "call_id": call_id, "name": name});
        self.border(
            "response.output_item.added",
            index,
            &item("in_progress", ""),
        );
        for piece in chunks(args, self.speech.chunk) {
            self.text(
                "response.function_call_arguments.delta",
                index,
                &id,
                ",\"delta\":",
                piece,
            );
        }
        self.text(
            "response.function_call_arguments.done",
            index,
            &id,
            ",\"arguments\":",
            args,
        );
        let whole = item("completed", args);
        self.border("response.output_item.done", index, &whole);
        whole
    }
}

fn error_event(message: &str, out: &mut FrameWriter) {
    out.frame(&[
        Raw("event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":"),
        Json(message),
        Raw(",\"param\":null,\"sequence_number\":9}\n\n"),
    ]);
}
