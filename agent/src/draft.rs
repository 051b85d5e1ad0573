//! A reply while it is streamed: its parts in the provider's order, and the deltas that publish it.

use std::{borrow::Cow, collections::HashSet};

use serde_json::value::RawValue;

use planck_common::{
    CallId,
    command::RunningPart,
    event::{Delta, EventKind},
    message::{MessageBody, MessageMetadata, MessageRole, Part},
};

use crate::{model::Chunk, storable};

#[derive(Debug, Default)]
pub(super) struct Draft {
    pieces: Vec<DraftPiece>,
}

#[derive(Debug)]
struct DraftPiece {
    part: usize,
    kind: DraftKind,
    /// The part's text: a text, a thought, a ciphertext, or a call's arguments.
    text: String,
    /// The number of Unicode scalar values in `text`.
    chars: usize,
    signature: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum DraftKind {
    Text,
    Thinking,
    Redacted,
    Call { id: String, name: String },
}

impl Draft {
    /// Adds chunks, and returns the deltas of their text and thoughts. Successive deltas of the
    /// same part and kind are merged into one.
    pub(super) fn take(&mut self, chunks: Vec<Chunk>) -> Vec<(EventKind, Delta)> {
        let mut deltas: Vec<(EventKind, Delta)> = Vec::new();
        for (kind, delta) in chunks.into_iter().filter_map(|chunk| self.add(chunk)) {
            match deltas.last_mut() {
                Some((last, whole)) if *last == kind && whole.part == delta.part => {
                    whole.text.push_str(&delta.text)
                }
                Some(_) | None => deltas.push((kind, delta)),
            }
        }
        deltas
    }

    fn add(&mut self, chunk: Chunk) -> Option<(EventKind, Delta)> {
        match without_nul(chunk) {
            Chunk::Text { part, text } => Some((
                EventKind::TextDelta,
                self.extend(part, DraftKind::Text, text),
            )),
            Chunk::Thinking { part, text } => Some((
                EventKind::ThinkingDelta,
                self.extend(part, DraftKind::Thinking, text),
            )),
            Chunk::Redacted { part, data } => {
                self.extend(part, DraftKind::Redacted, data);
                None
            }
            Chunk::Call { part, id, name } => {
                let kind = DraftKind::Call { id, name };
                match self
                    .pieces
                    .iter_mut()
                    .rev()
                    .find(|piece| piece.part == part)
                {
                    Some(call) => call.kind = kind,
                    None => self.pieces.push(DraftPiece::new(part, kind)),
                }
                None
            }
            Chunk::Args { part, json } => {
                let call = self
                    .pieces
                    .iter_mut()
                    .rev()
                    .find(|piece| piece.part == part)?;
                call.text.push_str(&json);
                None
            }
            Chunk::Signature { part, signature } => {
                self.sign(part, signature);
                None
            }
        }
    }

    fn extend(&mut self, part: usize, kind: DraftKind, text: String) -> Delta {
        let fits = |piece: &DraftPiece| piece.part == part && piece.kind == kind;
        let at = self
            .pieces
            .iter()
            .rposition(fits)
            .unwrap_or(self.pieces.len());
        if at == self.pieces.len() {
            self.pieces.push(DraftPiece::new(part, kind));
        }
        let offset = self
            .pieces
            .get_mut(at)
            .map_or(0, |piece| piece.append(&text));
        Delta { text, part, offset }
    }

    fn sign(&mut self, part: usize, signature: String) {
        match self
            .pieces
            .iter_mut()
            .rev()
            .find(|piece| piece.part == part)
        {
            Some(piece) => piece.signature = Some(signature),
            None => self.pieces.push(DraftPiece {
                signature: Some(signature),
                ..DraftPiece::new(part, DraftKind::Thinking)
            }),
        }
    }

    /// Returns the content of the finished reply, without empty parts. `call_id` gives the id of
    /// the call in a part.
    pub(super) fn content(self, call_id: impl Fn(usize) -> CallId) -> Vec<Part> {
        let mut taken = HashSet::new();
        let pieces = self.pieces.into_iter().filter(DraftPiece::says_something);
        let mut parts: Vec<Part> = pieces
            .map(|piece| piece.into_part(&mut taken, &call_id))
            .collect();
        // The parts stay in memory as long as they are in the context, so the spare capacity of their
        // vector is freed.
        parts.shrink_to_fit();
        parts
    }

    /// Returns the message to save for a reply that was interrupted: its text, and the thoughts
    /// that the provider accepts back. Returns `None` if the reply has no text.
    pub(super) fn partial(self) -> Option<MessageBody> {
        let kept = |piece: &DraftPiece| match piece.kind {
            DraftKind::Text => !piece.text.is_empty(),
            DraftKind::Thinking | DraftKind::Redacted => {
                piece.signature.is_some() || piece.kind == DraftKind::Redacted
            }
            DraftKind::Call { .. } => false,
        };
        let pieces: Vec<DraftPiece> = self.pieces.into_iter().filter(kept).collect();
        if !pieces.iter().any(|piece| piece.kind == DraftKind::Text) {
            return None;
        }
        let content = pieces
            .into_iter()
            .filter_map(DraftPiece::into_speech)
            .collect();
        let metadata = MessageMetadata {
            interrupted: true,
            ..MessageMetadata::default()
        };
        Some(MessageBody {
            role: MessageRole::Assistant,
            custom: None,
            content,
            metadata,
        })
    }

    /// Returns the parts received so far, for a snapshot. The text of a call is its name.
    pub(super) fn running(&self) -> Vec<RunningPart> {
        self.pieces.iter().map(DraftPiece::running).collect()
    }
}

impl DraftPiece {
    fn new(part: usize, kind: DraftKind) -> Self {
        Self {
            part,
            kind,
            text: String::new(),
            chars: 0,
            signature: None,
        }
    }

    /// Appends to the text, and returns the number of characters before it.
    fn append(&mut self, text: &str) -> usize {
        let before = self.chars;
        self.chars += text.chars().count();
        self.text.push_str(text);
        before
    }

    fn says_something(&self) -> bool {
        !self.text.is_empty()
            || self.signature.is_some()
            || matches!(self.kind, DraftKind::Call { .. })
    }

    fn into_part(self, taken: &mut HashSet<String>, call_id: &impl Fn(usize) -> CallId) -> Part {
        let Self {
            part,
            kind,
            mut text,
            signature,
            ..
        } = self;
        text.shrink_to_fit();
        match kind {
            DraftKind::Text => Part::Text { text, signature },
            DraftKind::Thinking => Part::Thinking {
                text,
                signature,
                redacted: false,
            },
            DraftKind::Redacted => Part::Thinking {
                text: String::new(),
                signature: Some(text),
                redacted: true,
            },
            DraftKind::Call { id, name } => {
                let call_id = call_id(part);
                let (args, invalid) = parse_args(text);
                let id = unique(
                    if id.is_empty() {
                        call_id.to_string()
                    } else {
                        id
                    },
                    taken,
                );
                let name = if name.is_empty() {
                    "unnamed".into()
                } else {
                    name
                };
                Part::ToolCall {
                    id,
                    call_id,
                    name,
                    args,
                    invalid,
                    signature,
                }
            }
        }
    }

    fn into_speech(self) -> Option<Part> {
        let Self {
            kind,
            text,
            signature,
            ..
        } = self;
        match kind {
            DraftKind::Text => Some(Part::Text { text, signature }),
            DraftKind::Thinking => Some(Part::Thinking {
                text,
                signature,
                redacted: false,
            }),
            DraftKind::Redacted => Some(Part::Thinking {
                text: String::new(),
                signature: Some(text),
                redacted: true,
            }),
            DraftKind::Call { .. } => None,
        }
    }

    fn running(&self) -> RunningPart {
        let (r#type, text) = match &self.kind {
            DraftKind::Text => ("text", self.text.clone()),
            DraftKind::Thinking => ("thinking", self.text.clone()),
            DraftKind::Redacted => ("thinking", String::new()),
            DraftKind::Call { name, .. } => ("tool_call", name.clone()),
        };
        RunningPart {
            part: self.part,
            r#type: r#type.into(),
            text,
        }
    }
}

fn without_nul(chunk: Chunk) -> Chunk {
    match chunk {
        Chunk::Text { part, text } => Chunk::Text {
            part,
            text: storable::text(text),
        },
        Chunk::Thinking { part, text } => Chunk::Thinking {
            part,
            text: storable::text(text),
        },
        Chunk::Redacted { part, data } => Chunk::Redacted {
            part,
            data: storable::text(data),
        },
        Chunk::Call { part, id, name } => Chunk::Call {
            part,
            id: storable::text(id),
            name: storable::text(name),
        },
        Chunk::Args { part, json } => Chunk::Args {
            part,
            json: storable::text(json),
        },
        Chunk::Signature { part, signature } => Chunk::Signature {
            part,
            signature: storable::text(signature),
        },
    }
}

/// Returns the arguments as the model wrote them, except that U+0000 is replaced. If the text is
/// not a JSON object, returns an empty object and the text. Empty text counts as an empty object.
fn parse_args(text: String) -> (Box<RawValue>, Option<String>) {
    if text.trim().is_empty() {
        return (empty_object(), None);
    }
    // An escape may be split over several chunks, so the search covers the whole text.
    let text = match storable::json(text.as_bytes()) {
        Cow::Borrowed(_) => text,
        Cow::Owned(clean) => String::from_utf8(clean).unwrap_or(text),
    };
    match serde_json::from_str::<&RawValue>(&text) {
        Ok(raw) if raw.get().starts_with('{') => (raw.to_owned(), None),
        Ok(_) | Err(_) => (empty_object(), Some(text)),
    }
}

fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".into()).unwrap_or_default()
}

fn unique(id: String, taken: &mut HashSet<String>) -> String {
    let doubles = (2..).map(|n| format!("{id}_{n}"));
    let free = std::iter::once(id.clone())
        .chain(doubles)
        .find(|candidate| !taken.contains(candidate))
        .unwrap_or(id);
    taken.insert(free.clone());
    free
}

#[cfg(test)]
mod tests;
