//! The heartbeats to the reapers. The membership thread writes one byte into the pipe of each
//! reaper four times a second. A reaper that misses several bytes in a row assumes that its node is
//! dead.

use std::{
    collections::HashMap,
    io::{PipeWriter, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The pipes to the running reapers. Clones share them.
#[derive(Debug, Clone)]
pub struct ReaperHeartbeat(Arc<Pipes>);

#[derive(Debug)]
struct Pipes {
    silence: Duration,
    next: AtomicU64,
    open: Mutex<HashMap<u64, PipeWriter>>,
}

impl ReaperHeartbeat {
    /// Creates the heartbeat without any reaper. A reaper kills its processes when it has received
    /// no heartbeat for `silence`.
    pub fn new(silence: Duration) -> Self {
        Self(Arc::new(Pipes {
            silence,
            next: AtomicU64::new(0),
            open: Mutex::default(),
        }))
    }

    pub(super) fn silence(&self) -> Duration {
        self.0.silence
    }

    /// Sends one byte to each reaper. Never blocks, because the pipes are non-blocking. If a pipe
    /// is full, the bytes in it already serve as heartbeats.
    pub fn beat(&self) {
        for pipe in self.lock().values_mut() {
            let _ = pipe.write(&[0]);
        }
    }

    /// Closes all pipes, so that every reaper immediately kills its processes.
    pub fn cut(&self) {
        self.lock().clear();
    }

    /// Returns the number of registered reapers.
    pub fn reapers(&self) -> usize {
        self.lock().len()
    }

    /// Registers the node's end of a pipe, which must be non-blocking, and sends the first
    /// heartbeat. The pipe is closed when the returned guard is dropped.
    pub(super) fn register(&self, mut pipe: PipeWriter) -> Registered {
        let _ = pipe.write(&[0]);
        let key = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(key, pipe);
        Registered {
            heartbeat: self.clone(),
            key,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, PipeWriter>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registration of a pipe. Dropping it closes the pipe.
#[derive(Debug)]
pub(super) struct Registered {
    heartbeat: ReaperHeartbeat,
    key: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let pipe = self.heartbeat.lock().remove(&self.key);
        drop(pipe);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::*;

    #[test]
    fn every_pipe_receives_each_beat_until_its_guard_is_dropped() {
        let heartbeat = ReaperHeartbeat::new(Duration::from_secs(3));
        let (mut reader, writer) = io::pipe().unwrap();
        let registered = heartbeat.register(writer);
        heartbeat.beat();
        drop(registered);
        heartbeat.beat();
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), 2, "one at the start and one beat");
        assert_eq!(heartbeat.reapers(), 0);
    }

    #[test]
    fn a_cut_closes_every_pipe() {
        let heartbeat = ReaperHeartbeat::new(Duration::from_secs(3));
        let (mut reader, writer) = io::pipe().unwrap();
        let _registered = heartbeat.register(writer);
        heartbeat.cut();
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        assert_eq!((received.len(), heartbeat.reapers()), (1, 0));
    }
}
