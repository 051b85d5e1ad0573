//! Single-threaded runtimes for actors, one per core by default. The task of an agent stays on one
//! runtime and uses the HTTP clients of that runtime. The connections of a pool belong to the
//! runtime that opened them, and a stream is cheapest if it stays on one thread.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use tokio::{runtime, sync::oneshot};

use planck_providers::{Clients, HttpClientError};

/// The threads of the actors. They end when this is dropped.
pub struct Runtimes {
    runtimes: Vec<ActorRuntime>,
    next: AtomicUsize,
}

/// A thread with a runtime and the HTTP clients that belong to it.
pub struct ActorRuntime {
    pub handle: runtime::Handle,
    pub clients: Clients,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Runtimes {
    /// Starts `count` threads, or one if `count` is 0.
    pub fn start(
        count: usize,
        clients: impl Fn() -> Result<Clients, HttpClientError>,
    ) -> io::Result<Self> {
        let runtimes = (0..count.max(1))
            .map(|index| ActorRuntime::start(index, clients().map_err(io::Error::other)?));
        Ok(Self {
            runtimes: runtimes.collect::<io::Result<_>>()?,
            next: AtomicUsize::new(0),
        })
    }

    /// Returns a single runtime that runs the agents on the current one, for a simulation, which runs
    /// all nodes on one thread.
    #[cfg(all(test, any(debug_assertions, feature = "simulation")))]
    pub(crate) fn on_this_thread(clients: Clients) -> Self {
        let here = ActorRuntime {
            handle: runtime::Handle::current(),
            clients,
            stop: None,
            thread: None,
        };
        Self {
            runtimes: vec![here],
            next: AtomicUsize::new(0),
        }
    }

    /// Returns the runtime for the next task of an agent. The runtimes are used in rotation.
    pub fn next(&self) -> Option<&ActorRuntime> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        self.runtimes.get(index % self.runtimes.len().max(1))
    }

    /// Returns whether every runtime completes an empty task within this time.
    pub async fn turn(&self, within: Duration) -> bool {
        let turns = self
            .runtimes
            .iter()
            .map(|runtime| tokio::time::timeout(within, runtime.handle.spawn(async {})));
        futures_util::future::join_all(turns)
            .await
            .iter()
            .all(|turned| matches!(turned, Ok(Ok(()))))
    }
}

impl ActorRuntime {
    fn start(index: usize, clients: Clients) -> io::Result<Self> {
        let turning = runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(64)
            .build()?;
        let handle = turning.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name(format!("actors-{index}"))
            .spawn(move || {
                let _ = turning.block_on(stopped);
                turning.shutdown_timeout(Duration::from_secs(1));
            })?;
        Ok(Self {
            handle,
            clients,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for ActorRuntime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A task on the runtime's own thread may drop it, and a thread cannot join itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_blocked_runtime_makes_no_progress() {
        let runtimes = Runtimes::start(2, || Clients::new(&Default::default())).unwrap();
        let long = Duration::from_secs(10);
        assert!(runtimes.turn(long).await);
        let (free, held) = mpsc::channel::<()>();
        runtimes.next().unwrap().handle.spawn(async move {
            let _freed = held.recv();
        });
        assert!(!runtimes.turn(Duration::from_millis(100)).await);
        drop(free);
        assert!(runtimes.turn(long).await);
    }
}
