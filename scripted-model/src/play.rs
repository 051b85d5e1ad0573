//! Sends the body of a response at its pace, with the faults of the script. The body was serialised
//! before: it is one buffer, divided into the events of the stream.

use std::{io, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{Stream, stream};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::script::Pace;

/// What follows the events.
pub enum StreamEnding {
    /// The body ends.
    End,
    /// The connection stays open without further data.
    Hang,
    /// The connection breaks.
    Cut,
    /// These bytes follow, then the body ends.
    Say(Bytes),
}

/// A stream to send.
pub struct Player {
    pub frames: Frames,
    /// The maximum number of events that are sent.
    pub limit: usize,
    pub ending: StreamEnding,
    pub pace: Pace,
    /// If set, the bytes are cut at random places.
    pub split: Option<Rng>,
    /// Ends the stream early when the server stops.
    pub stop: CancellationToken,
    #[expect(dead_code, reason = "held so that it is dropped with the stream")]
    pub open: Box<dyn Send>,
}

struct Playing {
    player: Player,
    next: usize,
    started: Instant,
    /// Bytes that are still to be sent in pieces.
    rest: Bytes,
    over: bool,
}

impl Player {
    pub fn play(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let playing = Playing {
            next: 0,
            started: Instant::now() + self.pace.offset(),
            player: self,
            rest: Bytes::new(),
            over: false,
        };
        stream::unfold(playing, |mut playing| async {
            Some((playing.read().await?, playing))
        })
    }
}

impl Playing {
    async fn read(&mut self) -> Option<io::Result<Bytes>> {
        if !self.rest.is_empty() {
            tokio::task::yield_now().await; // lets the last piece be written before this one
            return Some(Ok(self.piece()));
        }
        if self.next < self.player.limit.min(self.player.frames.count()) {
            return Some(self.block().await);
        }
        if std::mem::replace(&mut self.over, true) {
            return None;
        }
        match &self.player.ending {
            StreamEnding::End => None,
            StreamEnding::Say(bytes) => Some(Ok(bytes.clone())),
            StreamEnding::Hang => {
                self.player.stop.cancelled().await;
                Some(Err(io::ErrorKind::TimedOut.into()))
            }
            StreamEnding::Cut => {
                tokio::task::yield_now().await; // lets the earlier data be written
                Some(Err(io::ErrorKind::ConnectionReset.into()))
            }
        }
    }

    /// Waits until an event is due, and returns the next bytes to send. Without a rate, all events
    /// are due.
    async fn block(&mut self) -> io::Result<Bytes> {
        let last = self.player.limit.min(self.player.frames.count());
        let rate = self.player.pace.per_second;
        let to = if rate > 0.0 {
            let at = self.started + Duration::from_secs_f64(self.next as f64 / rate);
            tokio::select! {
                () = sleep_until(at) => (),
                () = self.player.stop.cancelled() => return Err(io::ErrorKind::TimedOut.into()),
            }
            let due = (self.started.elapsed().as_secs_f64() * rate) as usize + 1;
            due.clamp(self.next + 1, last)
        } else {
            let block = self.player.pace.block;
            self.player.frames.fitting(self.next, block).min(last)
        };
        let block = self.player.frames.range(self.next, to);
        self.next = to;
        if self.player.split.is_none() {
            return Ok(block);
        }
        self.rest = block;
        Ok(self.piece())
    }

    fn piece(&mut self) -> Bytes {
        let size = self
            .player
            .split
            .as_mut()
            .map_or(usize::MAX, |random| random.usize(1..=7));
        self.rest.split_to(size.min(self.rest.len()))
    }
}

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
