//! Which requests are answered: those whose reply goes to an inbox.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use planck_common::inbox::{Refusals, ReplyRule};

/// A sidecar may publish more than those who ask it, and its answers can be another program's
/// commands.
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

    /// Whether the reply to a request may go to a subject; one that may not is counted, and logged
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
