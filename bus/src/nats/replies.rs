//! Decides which requests are performed: those without a reply subject, and those whose reply
//! subject is an inbox.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use async_nats::Message;
use planck_common::inbox::{Refusals, ReplyRule};

/// The check of the reply subjects of requests. It counts the requests that it refuses, and logs
/// some of them.
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

    /// Returns whether a request may be performed and answered. Counts a request that may not. A
    /// request without a reply subject is performed without a reply.
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

/// Returns the beginning of a subject that the caller chose, without control characters, for the
/// log.
fn shown(subject: &str) -> String {
    subject
        .chars()
        .take(120)
        .filter(|c| !c.is_control())
        .collect()
}
