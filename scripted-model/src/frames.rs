//! The body of a response, serialised before it is sent: one buffer, divided into the events of the
//! stream.

use bytes::Bytes;
use serde::Serialize;

/// A serialised stream.
#[derive(Debug, Clone)]
pub struct Frames {
    bytes: Bytes,
    ends: Vec<usize>,
}

/// A writer that puts events into one buffer, one after the other.
#[derive(Default)]
pub struct FrameWriter {
    buffer: Vec<u8>,
    ends: Vec<usize>,
}

impl FrameWriter {
    /// Returns the events that a function writes.
    pub fn write(events: impl FnOnce(&mut Self)) -> Frames {
        let mut writer = Self::default();
        events(&mut writer);
        Frames {
            bytes: writer.buffer.into(),
            ends: writer.ends,
        }
    }

    /// Writes pieces as the end of an event.
    pub fn frame(&mut self, pieces: &[FramePiece<'_>]) {
        self.pieces(pieces);
        self.ends.push(self.buffer.len());
    }

    /// Writes pieces without ending the event.
    pub fn pieces(&mut self, pieces: &[FramePiece<'_>]) {
        for piece in pieces {
            match piece {
                FramePiece::Raw(text) => self.buffer.extend_from_slice(text.as_bytes()),
                FramePiece::Json(text) => self.json(text),
                FramePiece::Number(number) => self.json(number),
            }
        }
    }

    fn json<T: Serialize + ?Sized>(&mut self, value: &T) {
        let written = serde_json::to_writer(&mut self.buffer, value);
        debug_assert!(written.is_ok(), "text and numbers always serialise");
    }
}

/// A piece of an event.
pub enum FramePiece<'a> {
    /// Copied unchanged.
    Raw(&'a str),
    /// Written as a JSON string.
    Json(&'a str),
    Number(u64),
}

impl Frames {
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the bytes of the events from index `from` up to, but without, index `to`.
    pub fn range(&self, from: usize, to: usize) -> Bytes {
        let start = from.checked_sub(1).map_or(0, |before| self.end(before));
        let end = to.checked_sub(1).map_or(0, |before| self.end(before));
        self.bytes.slice(start..end.max(start))
    }

    /// Returns the index after the last event that fits into a block of `size` bytes that begins
    /// with event `from`. The block contains at least one event, whatever its size.
    pub fn fitting(&self, from: usize, size: usize) -> usize {
        let start = from.checked_sub(1).map_or(0, |before| self.end(before));
        self.ends
            .partition_point(|end| *end <= start + size)
            .max(from + 1)
    }

    fn end(&self, index: usize) -> usize {
        self.ends.get(index).copied().unwrap_or(self.bytes.len())
    }
}

/// Returns the pieces of a text. Each has `characters` characters, except the last one.
pub fn chunks(text: &str, characters: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let cut = rest
            .char_indices()
            .nth(characters.max(1))
            .map_or(rest.len(), |(index, _)| index);
        let (chunk, tail) = rest.split_at(cut);
        rest = tail;
        (!chunk.is_empty()).then_some(chunk)
    })
}
