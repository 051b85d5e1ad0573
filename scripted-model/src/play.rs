//! Sends a serialised stream at its pace, with the faults of the script.

use std::{io, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{Stream, stream};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{frames::Frames, script::Pace};

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
