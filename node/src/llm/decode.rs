//! The parts that the decoders of all providers share. They take bytes, return chunks and do no
//! I/O.

use planck_common::{message::StopReason, usage::Usage};

use super::frames::FrameSplitter;
use crate::model::{Chunk, Failure, FailureKind, Finish, Names};

/// Decodes the bytes of one reply, which may be split at any place.
pub trait Decoder: Send {
    /// Decodes more bytes and appends the resulting chunks to `chunks`.
    fn feed(&mut self, bytes: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure>;
    /// Ends the reply: no more bytes follow.
    fn finish(&mut self, chunks: &mut Vec<Chunk>) -> Result<Finish, Failure>;
    /// Returns whether the reply is complete, so that further bytes can be ignored.
    fn is_whole(&self) -> bool;
    /// Returns the names that the server gave the reply.
    fn names(&self) -> Names;
}

/// Interprets the events of one provider.
pub trait EventDecoder: Send {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure>;
    /// Returns how the reply ended, if its end has arrived.
    fn end(&self) -> Option<Finish>;
    /// Returns whether the remaining events can be ignored.
    fn is_whole(&self) -> bool;
    /// Returns the names that the server gave the reply so far.
    fn names(&self) -> Names;
    /// Reads a document that a server sent instead of a stream.
    fn document(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        self.event(data, chunks)
    }
}

/// A decoder that combines a framing with the events of a provider.
#[derive(Debug)]
pub struct Decoding<F, E> {
    frames: F,
    events: E,
}

impl<F: FrameSplitter + Default, E: EventDecoder> Decoding<F, E> {
    pub fn new(events: E) -> Self {
        Self {
            frames: F::default(),
            events,
        }
    }
}

impl<F: FrameSplitter, E: EventDecoder> Decoder for Decoding<F, E> {
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

/// Returns the failure for a broken stream. The same request may succeed later.
pub fn broken(message: impl Into<String>) -> Failure {
    Failure {
        kind: FailureKind::Transient,
        message: message.into(),
        public: None,
        retry_after: None,
    }
}

/// Returns the failure for a broken stream, described with words of the server.
pub fn garbled(what: &str, words: impl std::fmt::Display) -> Failure {
    Failure {
        public: Some(what.to_owned()),
        ..broken(format!("{what}: {words}"))
    }
}

/// The most bytes of unreadable data that a message quotes.
const SHOWN: usize = 200;

/// Parses an event.
pub fn parse<'a, T: serde::Deserialize<'a>>(data: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(data).map_err(|error| match error.is_eof() {
        true => garbled("an event of the stream was cut", error),
        false => unreadable(
            "an event of the stream cannot be read",
            &format!("{error}: {}", excerpt(data)),
        ),
    })
}

/// Returns the failure for a complete answer that cannot be read. It is permanent, because the
/// server would send the same again.
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

/// Returns the stop reason of a reply. A reply with calls needs results even if the provider
/// reports a natural end.
pub fn stop_of(stop: StopReason, calls: bool) -> StopReason {
    match (stop, calls) {
        (StopReason::End | StopReason::ToolUse, true) => StopReason::ToolUse,
        (StopReason::End | StopReason::ToolUse, false) => StopReason::End,
        (StopReason::Length | StopReason::Refusal, _) => stop,
    }
}

/// Numbers the parts of a reply. Where the provider only names the kind of a delta, a delta of the
/// same kind continues the last part.
#[derive(Debug, Default)]
pub struct PartNumbers {
    next: usize,
    last: Option<(PartKind, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartKind {
    Text,
    Thinking,
    Call,
}

impl PartNumbers {
    /// Begins a part and returns its number.
    pub fn begin(&mut self, kind: PartKind) -> usize {
        let part = self.next;
        self.next += 1;
        self.last = Some((kind, part));
        part
    }

    /// Returns the number of the last part if it is of this kind, and begins a new part otherwise.
    pub fn of(&mut self, kind: PartKind) -> usize {
        match self.last {
            Some((last, part)) if last == kind => part,
            Some(_) | None => self.begin(kind),
        }
    }

    /// Returns whether the last part is open and of this kind.
    pub fn is_last(&self, kind: PartKind) -> bool {
        self.last.is_some_and(|(last, _)| last == kind)
    }

    /// Ends the last part, so that the next delta begins a new one even if it is of the same kind.
    pub fn close(&mut self) {
        self.last = None;
    }
}

/// Converts token counts as most providers report them: the prompt's tokens include the cached
/// ones.
pub fn usage(prompt: u64, cached: u64, output: u64) -> Usage {
    Usage {
        input_tokens: prompt.saturating_sub(cached),
        output_tokens: output,
        cache_read_tokens: cached,
        ..Usage::default()
    }
}
