//! Which requests are answered: those whose reply goes to an inbox.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::Message;
use planck_common::inbox::ReplyRule;
use tokio::time::Instant;

/// A flood of refused requests is logged once in this time.
const QUIET: Duration = Duration::from_secs(60);

/// Refuses requests whose reply would go elsewhere, counts them, and logs some of them.
#[derive(Debug)]
pub struct ReplyGuard {
    rule: ReplyRule,
    refused: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

impl ReplyGuard {
    pub fn new(rule: ReplyRule) -> Self {
        Self { rule, refused: AtomicU64::new(0), logged: Mutex::new(None) }
    }

    /// Whether a request may be done and answered. One without a reply subject is done in silence.
    pub fn admits(&self, request: &Message) -> bool {
        let Some(to) = request.reply.as_deref().filter(|to| !self.rule.admits(to)) else { return true };
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if self.may_log() {
            let (subject, to) = (shown(&request.subject), shown(to));
            tracing::warn!(
                subject,
                to,
                refused,
                "refused a request: its reply would go to a subject that is no inbox; if it is one, name it in nats.reply_prefixes"
            );
        }
        false
    }

    fn may_log(&self) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let due = logged.is_none_or(|last| now.duration_since(last) >= QUIET);
        if due {
            *logged = Some(now);
        }
        due
    }
}

/// The beginning of a subject that somebody else chose.
fn shown(subject: &str) -> String {
    subject.chars().take(120).filter(|c| !c.is_control()).collect()
}
