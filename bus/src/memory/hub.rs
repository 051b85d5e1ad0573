//! The state that the connections of a memory bus share: the subscriptions and the services.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{
    BusError, Delivery,
    answering::Answering,
    publisher::{LinkStatus, Outlet},
};

/// The number of messages that a subscription holds. A reader that falls further behind loses the
/// newest, as over NATS.
pub(crate) const BEHIND: usize = 65_536;

/// A bus without a server, shared by its connections.
#[derive(Default)]
pub struct MemoryHub {
    state: Mutex<HubState>,
}

#[derive(Default)]
struct HubState {
    next: u64,
    subscriptions: Vec<(String, mpsc::Sender<Delivery>)>,
    endpoints: BTreeMap<u64, HubService>,
}

/// The subjects that one service answers.
struct HubService {
    patterns: Vec<String>,
    answering: Answering,
}

impl MemoryHub {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn state(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn subscribe(&self, pattern: &str) -> mpsc::Receiver<Delivery> {
        let (sender, receiver) = mpsc::channel(BEHIND);
        self.state()
            .subscriptions
            .push((pattern.to_owned(), sender));
        receiver
    }

    pub(super) fn add(&self, patterns: Vec<String>, answering: Answering) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        state.endpoints.insert(
            id,
            HubService {
                patterns,
                answering,
            },
        );
        id
    }

    pub(super) fn remove(&self, endpoint: u64) {
        self.state().endpoints.remove(&endpoint);
    }

    /// Returns one of the services that answer a subject, chosen at random, or `None` if there is
    /// none.
    pub(super) fn find(&self, subject: &str) -> Option<Answering> {
        let state = self.state();
        let who: Vec<&HubService> = state
            .endpoints
            .values()
            .filter(|endpoint| endpoint.patterns.iter().any(|p| matches(p, subject)))
            .collect();
        fastrand::choice(who).map(|endpoint| endpoint.answering.clone())
    }

    fn deliver(&self, subject: &str, payload: &Bytes) {
        self.state().subscriptions.retain(|(pattern, sender)| {
            if matches(pattern, subject) {
                let delivery = Delivery {
                    subject: subject.to_owned(),
                    payload: payload.clone(),
                };
                if sender.try_send(delivery).is_err() && !sender.is_closed() {
                    tracing::warn!(
                        subject,
                        "dropped a message: its subscription is read too slowly"
                    );
                }
            }
            !sender.is_closed()
        });
    }
}

impl Outlet for MemoryHub {
    fn link(&self) -> LinkStatus {
        LinkStatus {
            up: true,
            connects: 1,
        }
    }

    async fn link_changed(&self) {
        std::future::pending().await
    }

    async fn send(&self, subject: String, payload: Bytes) -> Result<(), BusError> {
        self.deliver(&subject, &payload);
        Ok(())
    }

    async fn flush(&self) -> Result<(), BusError> {
        Ok(())
    }
}

/// Returns whether a subject matches a pattern with NATS wildcards.
pub(super) fn matches(pattern: &str, subject: &str) -> bool {
    let (mut pattern, mut subject) = (pattern.split('.'), subject.split('.'));
    loop {
        match (pattern.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some(want), Some(have)) if want == "*" || want == have => {}
            (Some(_), Some(_) | None) | (None, Some(_)) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn wildcards_match_as_in_nats() {
        for (pattern, subject, fits) in [
            ("agent.a", "agent.a", true),
            ("agent.*", "agent.a", true),
            ("agent.*", "agent.a.b", false),
            ("agent.>", "agent.a.b", true),
            ("agent.>", "agent", false),
            (">", "a", true),
            ("agent.a", "agent.b", false),
        ] {
            assert_eq!(matches(pattern, subject), fits, "{pattern} {subject}");
        }
    }
}
