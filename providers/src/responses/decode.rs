//! Decodes the events of a response. Events of the same item have the same index, while the ids may
//! differ from event to event.

mod whole;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use planck_agent::model::{Chunk, Failure, Finish, Names};
use planck_common::{message::StopReason, usage::Usage};

use super::label;
use crate::{
    answer_bounds::{MOST_PARTS, over},
    decode::{EventDecoder, PartKind, PartNumbers, broken, parse, stop_of},
    error_body::ProviderError,
    lenient::{LenientWord, count, is_placeholder, is_there},
    wire::WireTarget,
};

/// The state of a reply that is being decoded.
#[derive(Debug, Default)]
pub struct ResponsesReply {
    /// The label that is stored with the signatures of this endpoint; see [`label`].
    label: String,
    parts: PartNumbers,
    items: Vec<OpenItem>,
    usage: Usage,
    stop: Option<StopReason>,
    refused: bool,
    deviations: Vec<&'static str>,
    names: Names,
}

/// An output item whose first event has arrived.
#[derive(Debug)]
struct OpenItem {
    index: Option<usize>,
    place: ItemParts,
    /// Whether the item is complete.
    settled: bool,
}

/// The parts of the reply that contain an item's content.
#[derive(Debug)]
enum ItemParts {
    /// For each content index with text, the number of its part.
    Message {
        pieces: Vec<(usize, usize)>,
    },
    /// `is_shown` is true if the text is the reasoning itself rather than a summary.
    Reasoning {
        part: usize,
        used: bool,
        is_shown: bool,
    },
    Call {
        part: usize,
        has_args: bool,
    },
}

impl ItemParts {
    fn kind(&self) -> PartKind {
        match self {
            Self::Message { .. } => PartKind::Text,
            Self::Reasoning { .. } => PartKind::Thinking,
            Self::Call { .. } => PartKind::Call,
        }
    }
}

impl EventDecoder for ResponsesReply {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        // Servers that also speak chat completions send `[DONE]` at the end of both formats.
        if data.trim_ascii() == b"[DONE]" || self.stop.is_some() {
            return Ok(());
        }
        let event: ResponsesEvent<'_> = parse(data)?;
        match event.kind.0.as_deref().unwrap_or_default() {
            "response.output_text.delta" => self.text(&event, chunks),
            "response.refusal.delta" => {
                self.refused = true;
                self.text(&event, chunks)
            }
            "response.function_call_arguments.delta" => {
                self.args(&event, chunks);
                Ok(())
            }
            "response.reasoning_summary_text.delta" => self.thought(&event, false, chunks),
            "response.reasoning_text.delta" => self.thought(&event, true, chunks),
            "response.reasoning_summary_part.added" => {
                self.end_paragraph(&event, chunks);
                Ok(())
            }
            "response.output_item.added" => match event.item.map(read_item).transpose()? {
                Some(item) => self.added(event.output_index.number(), &item, chunks),
                None => Ok(()),
            },
            "response.output_item.done" => match event.item.map(read_item).transpose()? {
                Some(item) => self.done(event.output_index.number(), item, chunks),
                None => Ok(()),
            },
            "response.completed" => self.close(event.response()?, StopReason::End, chunks),
            "response.incomplete" => self.close(event.response()?, StopReason::Length, chunks),
            "response.failed" => Err(failure(event.response()?.error)),
            "error" => Err(failure(
                event
                    .error
                    .filter(is_there)
                    .or(serde_json::from_slice(data).ok()),
            )),
            "" if event.error.filter(is_there).is_some() => Err(failure(event.error)),
            // Ignores events of hosted tools and of later versions of the API.
            _ => Ok(()),
        }
    }

    fn document(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let response: ResponseFacts<'_> = parse(data)?;
        if response.output.is_none() && response.error.filter(is_there).is_none() {
            return Ok(());
        }
        let usual = if response.status.0.as_deref() == Some("incomplete") {
            StopReason::Length
        } else {
            StopReason::End
        };
        self.close(response, usual, chunks)
    }

    fn end(&self) -> Option<Finish> {
        let calls = self
            .items
            .iter()
            .any(|item| item.place.kind() == PartKind::Call);
        let stop = if self.refused {
            StopReason::Refusal
        } else {
            stop_of(self.stop?, calls)
        };
        self.stop.map(|_| Finish {
            deviations: self.deviations.clone(),
            ..Finish::new(stop, self.usage)
        })
    }

    fn is_whole(&self) -> bool {
        self.stop.is_some()
    }

    fn names(&self) -> Names {
        self.names.clone()
    }
}

impl ResponsesReply {
    pub fn of(target: &WireTarget) -> Self {
        Self {
            label: label(target),
            ..Self::default()
        }
    }

    fn text(&mut self, event: &ResponsesEvent<'_>, chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let Some(text) = text_of(event.delta) else {
            return Ok(());
        };
        let at = self.find_or_begin(event.output_index.number(), PartKind::Text, chunks)?;
        self.say(at, event.content_index.number().unwrap_or(0), text, chunks);
        Ok(())
    }

    fn say(&mut self, at: usize, piece: usize, text: String, chunks: &mut Vec<Chunk>) {
        let Some(OpenItem {
            place: ItemParts::Message { pieces },
            ..
        }) = self.items.get_mut(at)
        else {
            return;
        };
        let part = match pieces.iter().find(|(known, _)| *known == piece) {
            Some((_, part)) => *part,
            None => {
                let part = self.parts.begin(PartKind::Text);
                pieces.push((piece, part));
                part
            }
        };
        chunks.push(Chunk::Text { part, text });
    }

    fn thought(
        &mut self,
        event: &ResponsesEvent<'_>,
        shown: bool,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), Failure> {
        let Some(text) = text_of(event.delta) else {
            return Ok(());
        };
        let at = self.find_or_begin(event.output_index.number(), PartKind::Thinking, chunks)?;
        if let Some(OpenItem {
            place:
                ItemParts::Reasoning {
                    part,
                    used,
                    is_shown,
                },
            ..
        }) = self.items.get_mut(at)
        {
            (*used, *is_shown) = (true, *is_shown || shown);
            chunks.push(Chunk::Thinking { part: *part, text });
        }
        Ok(())
    }

    /// Begins a new paragraph for the next part of a reasoning summary.
    fn end_paragraph(&mut self, event: &ResponsesEvent<'_>, chunks: &mut Vec<Chunk>) {
        let at = self.find(event.output_index.number(), PartKind::Thinking);
        if let Some(OpenItem {
            place: ItemParts::Reasoning {
                part, used: true, ..
            },
            ..
        }) = at.and_then(|at| self.items.get(at))
        {
            chunks.push(Chunk::Thinking {
                part: *part,
                text: "\n\n".to_owned(),
            });
        }
    }

    fn args(&mut self, event: &ResponsesEvent<'_>, chunks: &mut Vec<Chunk>) {
        let Some(json) = text_of(event.delta) else {
            return;
        };
        let at = self.find(event.output_index.number(), PartKind::Call);
        if let Some(OpenItem {
            place: ItemParts::Call { part, has_args },
            ..
        }) = at.and_then(|at| self.items.get_mut(at))
            && (*has_args || !is_placeholder(&json))
        {
            *has_args = true;
            chunks.push(Chunk::Args { part: *part, json });
        }
    }

    /// Returns the position of the open item of this kind and index. If the server gives no index,
    /// returns the position of the latest open item of this kind.
    fn find(&self, index: Option<usize>, kind: PartKind) -> Option<usize> {
        let fits = |item: &OpenItem| {
            !item.settled && item.place.kind() == kind && (index.is_none() || item.index == index)
        };
        self.items.iter().rposition(fits)
    }

    fn find_or_begin(
        &mut self,
        index: Option<usize>,
        kind: PartKind,
        chunks: &mut Vec<Chunk>,
    ) -> Result<usize, Failure> {
        match self.find(index, kind) {
            Some(at) => Ok(at),
            None => self.begin(index, kind, &ResponseItem::default(), chunks),
        }
    }

    fn begin(
        &mut self,
        index: Option<usize>,
        kind: PartKind,
        item: &ResponseItem,
        chunks: &mut Vec<Chunk>,
    ) -> Result<usize, Failure> {
        if self.items.len() >= MOST_PARTS {
            return Err(over(&format!("has more than {MOST_PARTS} items")));
        }
        let place = match kind {
            PartKind::Text => ItemParts::Message { pieces: Vec::new() },
            PartKind::Thinking => {
                let part = self.parts.begin(PartKind::Thinking);
                chunks.push(Chunk::Thinking {
                    part,
                    text: String::new(),
                });
                ItemParts::Reasoning {
                    part,
                    used: false,
                    is_shown: false,
                }
            }
            PartKind::Call => {
                let part = self.parts.begin(PartKind::Call);
                let id = item
                    .call_id
                    .0
                    .clone()
                    .or(item.id.0.clone())
                    .unwrap_or_default();
                chunks.push(Chunk::Call {
                    part,
                    id,
                    name: item.name.0.clone().unwrap_or_default(),
                });
                ItemParts::Call {
                    part,
                    has_args: false,
                }
            }
        };
        self.items.push(OpenItem {
            index,
            place,
            settled: false,
        });
        Ok(self.items.len() - 1)
    }

    fn added(
        &mut self,
        index: Option<usize>,
        item: &ResponseItem,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), Failure> {
        match item.kind() {
            Some(kind) => self.begin(index, kind, item, chunks).map(drop),
            None => Ok(()),
        }
    }

    fn close(
        &mut self,
        response: ResponseFacts<'_>,
        usual: StopReason,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), Failure> {
        if response.error.filter(is_there).is_some() {
            return Err(failure(response.error));
        }
        self.names.note(response.id, response.model);
        if self.items.is_empty() {
            for item in response.output.into_iter().flatten() {
                self.done(None, read_item(item)?, chunks)?;
            }
        }
        for at in 0..self.items.len() {
            self.end_call(at, &ResponseItem::default(), chunks);
        }
        let reason = response
            .incomplete_details
            .and_then(|details| details.reason.0);
        self.stop = Some(match reason.as_deref() {
            Some("content_filter") => StopReason::Refusal,
            Some(_) => StopReason::Length,
            None => usual,
        });
        self.usage = response.usage.map(usage).unwrap_or_default();
        Ok(())
    }
}

/// Returns the text of a delta, or `None` if the delta has no text.
fn text_of(delta: Option<&RawValue>) -> Option<String> {
    serde_json::from_str::<LenientWord>(delta?.get()).ok()?.0
}

fn read_item(raw: &RawValue) -> Result<ResponseItem, Failure> {
    parse(raw.get().as_bytes())
}

fn failure(error: Option<&RawValue>) -> Failure {
    let error_body = error.and_then(|error| ProviderError::read(error.get().as_bytes()));
    error_body.map_or_else(|| broken("an error without words"), ProviderError::midway)
}

/// Reads the token counts. The reported prompt tokens include those read from the cache and those
/// written to it.
fn usage(raw: &RawValue) -> Usage {
    let counts: Value = serde_json::from_str(raw.get()).unwrap_or_default();
    let of_input = |name: &str| count(&counts, &["input_tokens_details", name]);
    let (read, write) = (of_input("cached_tokens"), of_input("cache_write_tokens"));
    Usage {
        input_tokens: count(&counts, &["input_tokens"]).saturating_sub(read.saturating_add(write)),
        output_tokens: count(&counts, &["output_tokens"]),
        cache_read_tokens: read,
        cache_write_tokens: write,
        ..Usage::default()
    }
}

// The contents of the events in a response's stream.

/// One event. The fields that only some events have are parsed only where they are needed, because
/// another event may use the same name for a different value.
#[derive(Deserialize)]
pub struct ResponsesEvent<'a> {
    #[serde(default, rename = "type")]
    pub kind: LenientWord,
    #[serde(default)]
    pub output_index: LenientWord,
    #[serde(default)]
    pub content_index: LenientWord,
    #[serde(borrow, default)]
    pub delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub item: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub response: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

impl<'a> ResponsesEvent<'a> {
    pub fn response(&self) -> Result<ResponseFacts<'a>, Failure> {
        self.response.map_or_else(
            || Ok(ResponseFacts::default()),
            |raw| parse(raw.get().as_bytes()),
        )
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct ResponseFacts<'a> {
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub model: Option<&'a RawValue>,
    pub status: LenientWord,
    #[serde(borrow)]
    pub output: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
    pub incomplete_details: Option<IncompleteReason>,
    #[serde(borrow)]
    pub usage: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct IncompleteReason {
    pub reason: LenientWord,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct ResponseItem {
    #[serde(rename = "type")]
    pub kind: LenientWord,
    pub id: LenientWord,
    pub call_id: LenientWord,
    pub name: LenientWord,
    pub arguments: Option<Box<RawValue>>,
    pub phase: LenientWord,
    pub content: Option<Vec<EventContent>>,
    pub summary: Option<Vec<EventContent>>,
    pub encrypted_content: LenientWord,
}

impl ResponseItem {
    pub fn kind(&self) -> Option<PartKind> {
        match self.kind.0.as_deref()? {
            "message" => Some(PartKind::Text),
            "reasoning" => Some(PartKind::Thinking),
            "function_call" => Some(PartKind::Call),
            _ => None,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct EventContent {
    pub text: LenientWord,
    pub refusal: LenientWord,
}
