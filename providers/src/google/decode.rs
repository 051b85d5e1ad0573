//! Decodes Gemini's responses, which are parsed without copying their strings. A call arrives
//! whole, while text arrives in pieces that continue the last part.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use planck_agent::model::{Chunk, Failure, Finish, Names};
use planck_common::{message::StopReason, usage::Usage};

use crate::{
    decode::{self, EventDecoder, PartKind, PartNumbers, broken, garbled, parse, stop_of},
    error_body::ProviderError,
    lenient::{BorrowedWord, count},
    wire::{WireTarget, seal},
};

/// The state of a reply that is being decoded.
#[derive(Debug, Default)]
pub struct GoogleReply {
    /// The label that [`seal`] stores with the signatures of this endpoint.
    label: String,
    parts: PartNumbers,
    calls: bool,
    usage: Usage,
    stop: Option<StopReason>,
    names: Names,
}

impl EventDecoder for GoogleReply {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let event: GoogleEvent<'_> = parse(data)?;
        if event.error.is_some() {
            return Err(ProviderError::read(data)
                .map_or_else(|| broken("an error without words"), ProviderError::midway));
        }
        self.names.note(event.response_id, event.model_version);
        if let Some(counts) = event.usage_metadata {
            self.usage = usage(&counts);
        }
        if event
            .prompt_feedback
            .and_then(|feedback| feedback.block_reason)
            .is_some()
        {
            self.stop = Some(StopReason::Refusal);
        }
        let Some(candidate) = event.candidates.into_iter().next() else {
            return Ok(());
        };
        for item in candidate
            .content
            .and_then(|content| content.parts)
            .into_iter()
            .flatten()
        {
            self.item(item, chunks);
        }
        if let Some(reason) = candidate.finish_reason {
            self.stop = Some(stop_reason(&reason.0)?);
        }
        Ok(())
    }

    fn end(&self) -> Option<Finish> {
        Some(Finish::new(stop_of(self.stop?, self.calls), self.usage))
    }

    /// Returns `false`, because Gemini sends no end marker and the token counts may follow the
    /// finish reason.
    fn is_whole(&self) -> bool {
        false
    }

    fn names(&self) -> Names {
        self.names.clone()
    }
}

impl GoogleReply {
    pub fn of(target: &WireTarget) -> Self {
        Self {
            label: target.label.clone(),
            ..Self::default()
        }
    }

    fn item(&mut self, item: GooglePart<'_>, chunks: &mut Vec<Chunk>) {
        let part = if let Some(call) = item.function_call {
            Some(self.call(call, chunks))
        } else {
            self.text(
                item.text.unwrap_or_default(),
                item.thought,
                item.thought_signature.is_some(),
                chunks,
            )
        };
        if let (Some(part), Some(token)) = (part, item.thought_signature) {
            chunks.push(Chunk::Signature {
                part,
                signature: seal(&self.label, &token),
            });
            // The text after a signed part begins a new part, because otherwise the signature would
            // apply to both.
            self.parts.close();
        }
    }

    fn call(&mut self, call: GoogleCall<'_>, chunks: &mut Vec<Chunk>) -> usize {
        let part = self.parts.begin(PartKind::Call);
        self.calls = true;
        chunks.push(Chunk::Call {
            part,
            id: call.id.unwrap_or_default(),
            name: call.name,
        });
        let json = call.args.map_or("{}", RawValue::get);
        chunks.push(Chunk::Args {
            part,
            json: if json == "null" { "{}" } else { json }.to_owned(),
        });
        part
    }

    /// Adds text and returns the number of its part. Empty text is ignored unless it is signed.
    fn text(
        &mut self,
        text: String,
        thought: bool,
        signed: bool,
        chunks: &mut Vec<Chunk>,
    ) -> Option<usize> {
        if text.is_empty() && !signed {
            return None;
        }
        let part = self.parts.of(if thought {
            PartKind::Thinking
        } else {
            PartKind::Text
        });
        chunks.push(if thought {
            Chunk::Thinking { part, text }
        } else {
            Chunk::Text { part, text }
        });
        Some(part)
    }
}

fn stop_reason(word: &str) -> Result<StopReason, Failure> {
    Ok(match word {
        "MAX_TOKENS" => StopReason::Length,
        "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "LANGUAGE"
        | "IMAGE_SAFETY" => StopReason::Refusal,
        "MALFORMED_FUNCTION_CALL"
        | "UNEXPECTED_TOOL_CALL"
        | "MISSING_THOUGHT_SIGNATURE"
        | "TOO_MANY_TOOL_CALLS" => {
            return Err(garbled(
                "the model made a call that could not be read",
                word,
            ));
        }
        _ => StopReason::End,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GoogleEvent<'a> {
    #[serde(borrow, default)]
    response_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model_version: Option<&'a RawValue>,
    #[serde(borrow, default)]
    candidates: Vec<GoogleCandidate<'a>>,
    #[serde(default)]
    usage_metadata: Option<Value>,
    #[serde(borrow, default)]
    prompt_feedback: Option<Feedback<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GoogleCandidate<'a> {
    #[serde(borrow, default)]
    content: Option<GoogleContent<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<BorrowedWord<'a>>,
}

#[derive(Deserialize)]
struct GoogleContent<'a> {
    #[serde(borrow, default)]
    parts: Option<Vec<GooglePart<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GooglePart<'a> {
    text: Option<String>,
    #[serde(default)]
    thought: bool,
    thought_signature: Option<String>,
    #[serde(borrow, default)]
    function_call: Option<GoogleCall<'a>>,
}

#[derive(Deserialize)]
struct GoogleCall<'a> {
    id: Option<String>,
    name: String,
    #[serde(borrow, default)]
    args: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Feedback<'a> {
    #[serde(borrow, default)]
    block_reason: Option<BorrowedWord<'a>>,
}

/// Reads the token counts. The prompt's tokens include the cached ones. Thoughts are billed as
/// output, in addition to the candidates' tokens.
fn usage(counts: &Value) -> Usage {
    let of = |name: &str| count(counts, &[name]);
    decode::usage(
        of("promptTokenCount").saturating_add(of("toolUsePromptTokenCount")),
        of("cachedContentTokenCount"),
        of("candidatesTokenCount").saturating_add(of("thoughtsTokenCount")),
    )
}
