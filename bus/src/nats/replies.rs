//! Decides which requests are answered: those whose reply subject is an inbox.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use async_nats::Message;
use planck_common::inbox::{Refusals, ReplyRule};

/// Refuses requests with another reply subject, counts them, and logs some of them.
#[derive(Debug)]
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

    /// Whether a request may be performed and answered. A request without a reply subject is
    /// performed without a reply.
    pub fn admits(&self, request: &Message) -> bool {
        let Some(to) = request.reply.as_deref().filter(|to| !self.rule.admits(to)) else {
            return true;
        };
        let to_log = self
            .refusals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(Instant::now());
        if let Some(refused) = to_log {
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
}

/// Returns the beginning of a subject that the caller chose, without control characters, for the log.
fn shown(subject: &str) -> String {
    subject
        .chars()
        .take(120)
        .filter(|c| !c.is_control())
        .collect()
}
