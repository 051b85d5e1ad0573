//! The code that the decoders of all providers share. Decoders take bytes, return chunks and do no
//! I/O.

use planck_common::{message::StopReason, usage::Usage};

use super::frames::FrameSplitter;
use planck_agent::model::{Chunk, Failure, FailureKind, Finish, Names};

/// Decodes the bytes of one reply, which may be split at any place.
pub trait Decoder: Send {
    /// Decodes more bytes and appends the resulting chunks to `chunks`.
    fn feed(&mut self, bytes: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure>;
    /// Ends the reply, because no more bytes follow. Returns how the reply ended, or the failure if
    /// it is incomplete.
    fn finish(&mut self, chunks: &mut Vec<Chunk>) -> Result<Finish, Failure>;
    /// Returns whether the reply is complete. Further bytes can be ignored then.
    fn is_whole(&self) -> bool;
    /// Returns the response id and the model that the server reported.
    fn names(&self) -> Names;
}

/// Interprets the events of one provider's streams.
pub trait EventDecoder: Send {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure>;
    /// Returns how the reply ended, or `None` if its end has not arrived.
    fn end(&self) -> Option<Finish>;
    /// Returns the failure of a stream that ended although the end of the reply has not arrived.
    fn unfinished(&self) -> Failure {
        unfinished()
    }
    /// Returns whether the reply is complete. The remaining events can be ignored then.
    fn is_whole(&self) -> bool;
    /// Returns the response id and the model that the server has reported so far.
    fn names(&self) -> Names;
    /// Decodes a complete JSON document that a server sent instead of a stream.
    fn document(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        self.event(data, chunks)
    }
}

/// A decoder that splits the bytes with `F` and interprets the events with `E`.
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
        let mut finish = self.end(chunks)?;
        // A refusal by a filter may come before the model has done anything.
        if finish.usage.tokens() == 0 && finish.stop != StopReason::Refusal {
            finish.deviations.push(NO_USAGE);
        }
        Ok(finish)
    }

    fn is_whole(&self) -> bool {
        self.events.is_whole()
    }

    fn names(&self) -> Names {
        self.events.names()
    }
}

const NO_USAGE: &str =
    "it sent no usage, so that limits of tokens and costs do not count its answers";

impl<F: FrameSplitter, E: EventDecoder> Decoding<F, E> {
    fn end(&mut self, chunks: &mut Vec<Chunk>) -> Result<Finish, Failure> {
        let Self { frames, events } = self;
        if !frames.is_document() {
            frames.finish(|data| events.event(data, chunks))?;
            return events.end().ok_or_else(|| events.unfinished());
        }
        let mut shown = String::new();
        frames.finish(|data| {
            shown = excerpt(data);
            events.document(data, chunks)
        })?;
        let mut finish = events
            .end()
            .ok_or_else(|| unreadable("the server sent a document that is no reply", &shown))?;
        finish
            .deviations
            .push("it sent a whole document where a stream was asked for");
        Ok(finish)
    }
}

/// Returns the failure of a stream that ended in the middle of a reply.
pub fn unfinished() -> Failure {
    broken("the stream ended before the reply did")
}

/// Returns the failure for a broken stream. It is transient, because the same request may succeed
/// later.
pub fn broken(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Transient, message)
}

/// Returns the failure for a broken stream. The message quotes `words`, which come from the server.
pub fn garbled(what: &str, words: impl std::fmt::Display) -> Failure {
    Failure {
        public: Some(what.to_owned()),
        ..broken(format!("{what}: {words}"))
    }
}

/// The maximum number of bytes of unreadable data that an error message quotes.
const SHOWN: usize = 1_000;

/// Parses an event as JSON.
pub fn parse<'a, T: serde::Deserialize<'a>>(data: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(data).map_err(|error| match error.is_eof() {
        true => garbled("an event of the stream was cut", error),
        false => unreadable(
            "an event of the stream cannot be read",
            &format!("{error}: {}", excerpt(data)),
        ),
    })
}

/// Returns the failure for data that has arrived completely and cannot be parsed. It is permanent,
/// because the server would send the same data again.
fn unreadable(what: &str, words: &str) -> Failure {
    let message = format!(
        "{what} ({words}); check `base_url`, and `wire`, which says how the server is spoken to"
    );
    Failure {
        public: Some(what.to_owned()),
        ..Failure::new(FailureKind::Refused, message)
    }
}

fn excerpt(data: &[u8]) -> String {
    bounded(&String::from_utf8_lossy(data), SHOWN)
}

/// Returns a text of a server for an error message. Of a longer text, returns the first `most`
/// characters, and says that there were more.
pub fn bounded(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!(
            "{}… (cut after {most} of {} characters)",
            text.get(..end).unwrap_or_default(),
            text.chars().count()
        ),
        None => text.to_owned(),
    }
}

/// Returns the stop reason of a reply. If the provider reports a natural end or tool calls, the
/// calls in the reply decide between the two.
pub fn stop_of(stop: StopReason, calls: bool) -> StopReason {
    match (stop, calls) {
        (StopReason::End | StopReason::ToolUse, true) => StopReason::ToolUse,
        (StopReason::End | StopReason::ToolUse, false) => StopReason::End,
        (StopReason::Length | StopReason::Refusal, _) => stop,
    }
}

/// Assigns numbers to the parts of a reply. If the provider reports only the kind of a delta, a
/// delta of the same kind as the last part continues that part.
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
    /// Begins a part of this kind and returns its number.
    pub fn begin(&mut self, kind: PartKind) -> usize {
        let part = self.next;
        self.next += 1;
        self.last = Some((kind, part));
        part
    }

    /// Returns the number of the last part if it is of this kind. Otherwise begins a new part and
    /// returns its number.
    pub fn of(&mut self, kind: PartKind) -> usize {
        match self.last {
            Some((last, part)) if last == kind => part,
            Some(_) | None => self.begin(kind),
        }
    }

    /// Returns whether the next delta would continue the last part: the part is of this kind and
    /// was not closed.
    pub fn is_last(&self, kind: PartKind) -> bool {
        self.last.is_some_and(|(last, _)| last == kind)
    }

    /// Closes the last part, so that the next delta begins a new part even if it is of the same
    /// kind.
    pub fn close(&mut self) {
        self.last = None;
    }
}

/// Converts token counts from the form that most providers use, in which the prompt's tokens
/// include the cached ones.
pub fn usage(prompt: u64, cached: u64, output: u64) -> Usage {
    Usage {
        input_tokens: prompt.saturating_sub(cached),
        output_tokens: output,
        cache_read_tokens: cached,
        ..Usage::default()
    }
}
