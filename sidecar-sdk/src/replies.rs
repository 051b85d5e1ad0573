//! Decides which requests are answered: those whose reply subject is an inbox.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use planck_common::inbox::{Refusals, ReplyRule};

/// Refuses requests whose reply would go to another subject. A sidecar may publish to more subjects
/// than its callers, and its answers could be commands of another program.
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

    /// Whether the reply to a request may go to a subject. Refusals are counted, and logged at most
    /// once a minute.
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
