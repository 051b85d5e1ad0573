//! Checks the node about once a second and stores the result, so that a probe is answered
//! immediately even if the node hangs.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::vitals::{self, Vitals};

const EVERY: Duration = Duration::from_secs(1);
/// How long each step of a check may take, so that a problem is detected within a few seconds.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// How long a runtime may make no progress before the liveness probe fails. After that time, only a
/// restart helps: a busy runtime responds within a few milliseconds.
const STUCK: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Pulse(Mutex<PulseState>);

#[derive(Debug)]
struct PulseState {
    /// When all runtimes were last seen to make progress.
    turned: Instant,
    unready: Vec<String>,
}

impl Pulse {
    pub fn new() -> Self {
        Self(Mutex::new(PulseState {
            turned: Instant::now(),
            unready: vec!["the node is starting".into()],
        }))
    }

    pub fn is_alive(&self) -> bool {
        self.state().turned.elapsed() < STUCK
    }

    pub fn unready(&self) -> Vec<String> {
        self.state().unready.clone()
    }

    pub async fn keep_checking(self: Arc<Self>, main: Handle) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let node = vitals::node();
            let (turned, unready) = tokio::join!(turns(&main, node.clone()), unready(&main, node));
            let mut state = self.state();
            state.unready = unready;
            if turned {
                state.turned = Instant::now();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, PulseState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn turns(main: &Handle, node: Option<Arc<dyn Vitals>>) -> bool {
    let turned = timeout(PATIENCE, main.spawn(async {})).await.is_ok();
    match node {
        Some(node) => turned && node.turns(PATIENCE).await,
        None => turned,
    }
}

/// Returns the reasons why the node is not ready. The check runs on the main runtime, because the
/// connections of the store belong to that runtime.
async fn unready(main: &Handle, node: Option<Arc<dyn Vitals>>) -> Vec<String> {
    let Some(node) = node else {
        return vec!["the node is starting".into()];
    };
    let request = main.spawn(async move { node.unready(PATIENCE).await });
    match timeout(PATIENCE + EVERY / 2, request).await {
        Ok(Ok(unready)) => unready,
        Ok(Err(_)) | Err(_) => vec!["the node does not answer".into()],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime;

    use super::*;

    /// Returns a runtime with one thread, which is blocked by a task until the returned sender is
    /// dropped.
    fn held() -> (runtime::Runtime, mpsc::Sender<()>) {
        let main = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let (free, held) = mpsc::channel();
        let (holds, is_held) = mpsc::channel();
        main.spawn(async move {
            holds.send(()).unwrap();
            let _freed = held.recv();
        });
        is_held.recv().unwrap();
        (main, free)
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_with_a_stuck_runtime_is_not_alive_until_it_makes_progress() {
        let (main, free) = held();
        let pulse = Arc::new(Pulse::new());
        let feeling = tokio::spawn(Arc::clone(&pulse).keep_checking(main.handle().clone()));
        tokio::time::sleep(STUCK - EVERY).await;
        assert!(pulse.is_alive(), "it may only be busy");
        tokio::time::sleep(2 * EVERY).await;
        assert!(!pulse.is_alive());
        assert!(!pulse.unready().is_empty());
        tokio::time::resume();
        drop(free);
        while !pulse.is_alive() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        feeling.abort();
        main.shutdown_background();
    }
}
