//! Shared by the decoders of all providers. They take bytes, return chunks and do no I/O.

use planck_common::{message::StopReason, usage::Usage};

use super::frames::Frames;
use crate::model::{Chunk, Failure, FailureKind, Finish, Names};

/// Decodes the bytes of one reply, cut anywhere.
pub trait Decoder: Send {
    /// Adds what these bytes bring to `chunks`.
    fn feed(&mut self, bytes: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure>;
    /// The bytes have ended.
    fn finish(&mut self, chunks: &mut Vec<Chunk>) -> Result<Finish, Failure>;
    /// Whether the reply is whole; what still comes says nothing.
    fn is_whole(&self) -> bool;
    /// What the server called the reply.
    fn names(&self) -> Names;
}

/// The events of one provider.
pub trait Events: Send {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure>;
    /// How the reply ended, if its end came.
    fn end(&self) -> Option<Finish>;
    /// Whether nothing of interest follows.
    fn is_whole(&self) -> bool;
    /// What the server called the reply, as far as it said.
    fn names(&self) -> Names;
    /// Reads a document that a server sent in place of a stream.
    fn document(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        self.event(data, chunks)
    }
}

/// A decoder made of a framing and of a provider's events.
#[derive(Debug)]
pub struct Decoding<F, E> {
    frames: F,
    events: E,
}

impl<F: Frames + Default, E: Events> Decoding<F, E> {
    pub fn new(events: E) -> Self {
        Self {
            frames: F::default(),
            events,
        }
    }
}

impl<F: Frames, E: Events> Decoder for Decoding<F, E> {
    fn feed(&mut self, bytes: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let Self { frames, events } = self;
        frames.feed(bytes, |data| events.event(data, chunks))
    }

    fn finish(&mut self, chunks: &mut Vec<Chunk>) -> Result<Finish, Failure> {
        let Self { frames, events } = self;
        if !frames.is_document() {
            frames.finish(|data| events.event(data, chunks))?;
            return events
                .end()
                .ok_or_else(|| broken("the stream ended before the reply did"));
        }
        let mut shown = String::new();
        frames.finish(|data| {
            shown = excerpt(data).into_owned();
            events.document(data, chunks)
        })?;
        let mut finish = events
            .end()
            .ok_or_else(|| unreadable("the server sent a document that is no reply", &shown))?;
        finish
            .salvaged
            .push("it sent a whole document where a stream was asked for");
        Ok(finish)
    }

    fn is_whole(&self) -> bool {
        self.events.is_whole()
    }

    fn names(&self) -> Names {
        self.events.names()
    }
}

/// A broken stream. The same request may succeed later.
pub fn broken(message: impl Into<String>) -> Failure {
    Failure {
        kind: FailureKind::Transient,
        message: message.into(),
        public: None,
        retry_after: None,
    }
}

/// A broken stream, described with words of the server.
pub fn garbled(what: &str, words: impl std::fmt::Display) -> Failure {
    Failure {
        public: Some(what.to_owned()),
        ..broken(format!("{what}: {words}"))
    }
}

/// How much of what cannot be read is shown.
const SHOWN: usize = 200;

/// Reads an event.
pub fn parse<'a, T: serde::Deserialize<'a>>(data: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(data).map_err(|error| match error.is_eof() {
        true => garbled("an event of the stream was cut", error),
        false => unreadable(
            "an event of the stream cannot be read",
            &format!("{error}: {}", excerpt(data)),
        ),
    })
}

/// A complete answer that cannot be read. The server would send the same again.
fn unreadable(what: &str, words: &str) -> Failure {
    let message = format!(
        "{what} ({words}); check `base_url`, and `wire`, which says how the server is spoken to"
    );
    Failure {
        kind: FailureKind::Refused,
        public: Some(what.to_owned()),
        message,
        retry_after: None,
    }
}

fn excerpt(data: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(data.get(..SHOWN).unwrap_or(data))
}

/// The stop reason of a reply: calls must be answered, even where the provider reports a natural
/// end.
pub fn stop_of(stop: StopReason, calls: bool) -> StopReason {
    match (stop, calls) {
        (StopReason::End | StopReason::ToolUse, true) => StopReason::ToolUse,
        (StopReason::End | StopReason::ToolUse, false) => StopReason::End,
        (StopReason::Length | StopReason::Refusal, _) => stop,
    }
}

/// Numbers the parts of a reply, and continues the last one where the provider only says what kind
/// a delta is of.
#[derive(Debug, Default)]
pub struct Parts {
    next: usize,
    last: Option<(Kind, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Thinking,
    Call,
}

impl Parts {
    /// Begins a part.
    pub fn begin(&mut self, kind: Kind) -> usize {
        let part = self.next;
        self.next += 1;
        self.last = Some((kind, part));
        part
    }

    /// The last part if it is of this kind, else a new one.
    pub fn of(&mut self, kind: Kind) -> usize {
        match self.last {
            Some((last, part)) if last == kind => part,
            Some(_) | None => self.begin(kind),
        }
    }

    /// Whether the last part, if it goes on, is of this kind.
    pub fn is_last(&self, kind: Kind) -> bool {
        self.last.is_some_and(|(last, _)| last == kind)
    }

    /// Ends the last part: the next delta begins a new one, even of the same kind.
    pub fn close(&mut self) {
        self.last = None;
    }
}

/// Tokens as most providers count them: the cached ones are within the prompt's.
pub fn usage(prompt: u64, cached: u64, output: u64) -> Usage {
    Usage {
        input_tokens: prompt.saturating_sub(cached),
        output_tokens: output,
        cache_read_tokens: cached,
        ..Usage::default()
    }
}
