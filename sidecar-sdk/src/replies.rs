//! Decides which requests a sidecar answers, by their reply subject. The reply subject must be an
//! inbox.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use planck_common::inbox::{Refusals, ReplyRule};

/// The check that the reply to a request goes to an inbox. A sidecar may be allowed to publish to
/// more subjects than its callers. On such a subject, its reply could act as a command to another
/// program.
pub struct ReplyGuard {
    rule: ReplyRule,
    refusals: Mutex<Refusals>,
}

impl ReplyGuard {
    pub fn new(rule: ReplyRule) -> Self {
        Self {
            rule,
            refusals: Mutex::default(),
        }
    }

    /// Returns whether the reply to a request may go to a subject. Counts refusals, and logs them
    /// at most once a minute.
    pub fn admits(&self, request: &str, to: &str) -> bool {
        let admitted = self.rule.admits(to);
        if !admitted {
            let to_log = self
                .refusals
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .add(Instant::now());
            if let Some(refused) = to_log {
                tracing::warn!(
                    "refused a request on {request:?}: its reply would go to {to:?}, which is no inbox ({refused} so far)"
                );
            }
        }
        admitted
    }
}
