//! Writes the stream of an answer: one line per delta. The last line has the reason why the answer
//! ended, and the usage.

use crate::{
    frames::{
        FramePiece::{self, Json, Number, Raw},
        FrameWriter, chunks,
    },
    script::Stop,
    wire::{PreparedPart, PreparedReply},
};

pub fn write(speech: &PreparedReply, out: &mut FrameWriter) {
    for (index, part) in speech.parts.iter().enumerate() {
        match part {
            PreparedPart::Text(text) => {
                for text in chunks(text, speech.chunk) {
                    line(speech, &[Raw("\"content\":"), Json(text)], out);
                }
            }
            PreparedPart::Thinking(text) => {
                for text in chunks(text, speech.chunk) {
                    line(
                        speech,
                        &[Raw("\"content\":\"\",\"thinking\":"), Json(text)],
                        out,
                    );
                }
            }
            PreparedPart::Redacted(_) => (), // Ollama has no redacted thinking
            PreparedPart::Call { id, name, args } => {
                let call = [
                    Raw("\"content\":\"\",\"tool_calls\":[{\"id\":"),
                    Json(id),
                    Raw(",\"function\":{\"index\":"),
                ];
                out.pieces(&begin(speech));
                out.pieces(&call);
                out.pieces(&[
                    Number(index as u64),
                    Raw(",\"name\":"),
                    Json(name),
                    Raw(",\"arguments\":"),
                    Raw(args),
                ]);
                out.frame(&[Raw("}}]},\"done\":false}\n")]);
            }
        }
    }
    end(speech, out);
}

fn begin(speech: &PreparedReply) -> [FramePiece<'_>; 3] {
    let rest =
        ",\"created_at\":\"2026-01-01T00:00:00.000000Z\",\"message\":{\"role\":\"assistant\",";
    [Raw("{\"model\":"), Json(&speech.model), Raw(rest)]
}

fn line(speech: &PreparedReply, message: &[FramePiece<'_>], out: &mut FrameWriter) {
    out.pieces(&begin(speech));
    out.pieces(message);
    out.frame(&[Raw("},\"done\":false}\n")]);
}

fn end(speech: &PreparedReply, out: &mut FrameWriter) {
    let reason = match speech.stop {
        Stop::End | Stop::ToolUse | Stop::Refusal => "stop",
        Stop::Length => "length",
    };
    out.pieces(&begin(speech));
    out.frame(&[
        Raw("\"content\":\"\"},\"done\":true,\"done_reason\":"),
        Json(reason),
        Raw(",\"total_duration\":1000000,\"load_duration\":1000,\"prompt_eval_count\":"),
        Number(speech.usage.input),
        Raw(",\"prompt_eval_duration\":1000,\"eval_count\":"),
        Number(speech.usage.output),
        Raw(",\"eval_duration\":1000}\n"),
    ]);
}

pub fn error_event(message: &str, out: &mut FrameWriter) {
    out.frame(&[Raw("{\"error\":"), Json(message), Raw("}\n")]);
}
