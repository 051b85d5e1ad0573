//! Which requests are answered: those whose reply goes to an inbox.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use planck_common::inbox::ReplyRule;
use tokio::time::Instant;

/// A flood of refused requests is logged once in this time.
const QUIET: Duration = Duration::from_secs(60);

/// A sidecar may publish more than those who ask it, and its answers can be another program's commands.
pub struct ReplyGuard {
    rule: ReplyRule,
    refused: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

impl ReplyGuard {
    pub fn new(rule: ReplyRule) -> Self {
        Self { rule, refused: AtomicU64::new(0), logged: Mutex::new(None) }
    }

    /// Whether the reply to a request may go to a subject; one that may not is counted, and logged once a minute.
    pub fn admits(&self, request: &str, to: &str) -> bool {
        let admitted = self.rule.admits(to);
        if !admitted {
            let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
            self.log(request, to, refused);
        }
        admitted
    }

    fn log(&self, request: &str, to: &str, refused: u64) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if logged.is_none_or(|last| now.duration_since(last) >= QUIET) {
            *logged = Some(now);
            tracing::warn!(
                "refused a request on {request:?}: its reply would go to {to:?}, which is no inbox ({refused} so far)"
            );
        }
    }
}
