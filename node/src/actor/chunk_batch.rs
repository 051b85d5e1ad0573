//! Holds the chunks of a reply back briefly, so that the agent handles many small chunks in one
//! step and publishes them as one event.

use std::{pin::Pin, time::Duration};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::model::Chunk;

/// How long chunks are held back while further chunks arrive.
const WINDOW: Duration = Duration::from_millis(40);
/// How long chunks are held back at most. This is longer than [`WINDOW`] so that a stream that
/// continues needs no timer.
const LONGEST: Duration = Duration::from_millis(80);
/// The number of bytes at which chunks are no longer held back.
const FULL: usize = 2_048;

/// The chunks of one reply that the agent has not received yet.
pub struct ChunkBatch {
    chunks: Vec<Chunk>,
    bytes: usize,
    /// When the first of `chunks` arrived.
    since: Instant,
    /// Whether the agent has received chunks of this reply. The first ones are not held back.
    is_begun: bool,
    /// The only timer of the reply. It is reset when it fires too early, which is cheaper than a
    /// reset for each event.
    alarm: Pin<Box<Sleep>>,
}

impl ChunkBatch {
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            chunks: Vec::new(),
            bytes: 0,
            since: now,
            is_begun: false,
            alarm: Box::pin(sleep_until(now + LONGEST)),
        }
    }

    /// Adds chunks. Returns whether the held chunks are due now.
    pub fn push(&mut self, chunks: Vec<Chunk>, now: Instant) -> bool {
        self.bytes += chunks.iter().map(Chunk::bytes).sum::<usize>();
        if self.chunks.is_empty() {
            self.since = now;
            self.chunks = chunks;
        } else {
            self.chunks.extend(chunks);
        }
        self.bytes >= FULL || (self.is_begun && now >= self.since + WINDOW)
    }

    /// Waits until the held chunks are due although no further chunk arrives. Never returns if no
    /// chunks are held.
    pub async fn due(&mut self) {
        if self.chunks.is_empty() {
            return std::future::pending().await;
        }
        if !self.is_begun {
            return;
        }
        let until = self.since + LONGEST;
        while Instant::now() < until {
            if self.alarm.is_elapsed() {
                self.alarm.as_mut().reset(until);
            }
            self.alarm.as_mut().await;
        }
    }

    /// Removes the held chunks and returns them for the agent. Later chunks of the reply are held
    /// back.
    pub fn take(&mut self) -> Vec<Chunk> {
        self.is_begun = true;
        self.bytes = 0;
        std::mem::take(&mut self.chunks)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn text(text: &str) -> Vec<Chunk> {
        vec![Chunk::Text {
            part: 0,
            text: text.into(),
        }]
    }

    /// Returns held chunks of a reply of which the agent has received something.
    fn begun() -> ChunkBatch {
        let mut held = ChunkBatch::new();
        held.push(text("a"), Instant::now());
        held.take();
        held
    }

    #[tokio::test(start_paused = true)]
    async fn first_chunks_are_due_when_no_others_are_ready() {
        let mut held = ChunkBatch::new();
        assert!(held.due().now_or_never().is_none());
        assert!(!held.push(text("a"), Instant::now()));
        assert!(held.due().now_or_never().is_some());
        assert_eq!(held.take(), text("a"));
        assert!(held.due().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_are_held_until_the_window_has_passed() {
        let mut held = begun();
        assert!(!held.push(text("b"), Instant::now()));
        tokio::time::advance(Duration::from_millis(39)).await;
        assert!(!held.push(text("c"), Instant::now()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(held.push(text("d"), Instant::now()));
        assert_eq!(held.take().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_of_a_stream_that_pauses_are_due_in_time() {
        let mut held = begun();
        for _ in 0..3 {
            let began = Instant::now();
            held.push(text("b"), began);
            held.due().await;
            assert_eq!(began.elapsed(), LONGEST);
            held.take();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_bytes_are_due_at_once() {
        let mut held = begun();
        assert!(!held.push(text(&"x".repeat(FULL - 1)), Instant::now()));
        assert!(held.push(text("y"), Instant::now()));
        assert_eq!(held.take().len(), 2);
        assert!(!held.push(text("z"), Instant::now()));
    }
}
