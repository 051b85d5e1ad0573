//! Tells the reapers that this node lives: a byte into each one's pipe, four times a second.

use std::{
    collections::HashMap,
    io::{PipeWriter, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How often the heart is to beat; a reaper gives a node up after a few of these.
pub const INTERVAL: Duration = Duration::from_millis(250);

/// The pipes to the living reapers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Heart(Arc<Pipes>);

#[derive(Debug)]
struct Pipes {
    silence: Duration,
    next: AtomicU64,
    open: Mutex<HashMap<u64, PipeWriter>>,
}

impl Heart {
    /// After `silence` of this heart a reaper kills what runs under it.
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

    /// One sign of life to each reaper. Never blocks: the pipes do not, and a full one holds signs
    /// enough.
    pub fn beat(&self) {
        for pipe in self.lock().values_mut() {
            let _ = pipe.write(&[0]);
        }
    }

    /// Kills what runs under every reaper, at once.
    pub fn cut(&self) {
        self.lock().clear();
    }

    /// How many reapers listen.
    pub fn reapers(&self) -> usize {
        self.lock().len()
    }

    /// Takes the non-blocking end of a pipe; it is closed when the guard is dropped.
    pub(super) fn register(&self, mut pipe: PipeWriter) -> Registered {
        let _ = pipe.write(&[0]);
        let key = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(key, pipe);
        Registered {
            heart: self.clone(),
            key,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, PipeWriter>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pipe in the heart's care.
#[derive(Debug)]
pub(super) struct Registered {
    heart: Heart,
    key: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let pipe = self.heart.lock().remove(&self.key);
        drop(pipe);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::*;

    #[test]
    fn every_pipe_hears_each_beat_until_its_guard_is_dropped() {
        let heart = Heart::new(10 * INTERVAL);
        let (mut reader, writer) = io::pipe().unwrap();
        let registered = heart.register(writer);
        heart.beat();
        drop(registered);
        heart.beat();
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).unwrap();
        assert_eq!(heard.len(), 2, "one at the start and one beat");
        assert_eq!(heart.reapers(), 0);
    }

    #[test]
    fn a_cut_closes_every_pipe() {
        let heart = Heart::new(10 * INTERVAL);
        let (mut reader, writer) = io::pipe().unwrap();
        let _registered = heart.register(writer);
        heart.cut();
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).unwrap();
        assert_eq!((heard.len(), heart.reapers()), (1, 0));
    }
}
