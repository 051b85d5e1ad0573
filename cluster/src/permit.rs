//! The permit to begin new work on this node: calling a model, running a tool, or reading an input.
//! Work that is already running does not need it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{clock, moment::Moment};

/// A handle to the permit that is cheap to clone. The permit expires unless it is renewed in time.
/// If the process was suspended, or if the thread that renews the permit hangs, the permit expires,
/// and no new work begins.
#[derive(Debug, Clone)]
pub struct Permit(Arc<PermitInner>);

#[derive(Debug)]
struct PermitInner {
    /// When the permit expires, in milliseconds of a clock that also counts suspended time.
    until: AtomicU64,
    given: Notify,
    /// Holds one notification until [`Permit::returned`] takes it.
    returned: Notify,
    /// Cancelled when the node begins to drain, after which it calls no more models.
    draining: CancellationToken,
}

impl Permit {
    /// Returns a permit that never expires, for a node without a cluster.
    pub fn always() -> Self {
        Self::until(u64::MAX)
    }

    /// Returns a permit that is not granted yet.
    pub(crate) fn withheld() -> Self {
        Self::until(0)
    }

    fn until(until: u64) -> Self {
        Self(Arc::new(PermitInner {
            until: AtomicU64::new(until),
            given: Notify::new(),
            returned: Notify::new(),
            draining: CancellationToken::new(),
        }))
    }

    /// Grants the permit until this time of the clock `CLOCK_BOOTTIME`. A time in the past
    /// withdraws the permit.
    pub fn give_until(&self, millis: u64) {
        let before = self.0.until.swap(millis, Ordering::SeqCst);
        // An agent that saw that the old permit had expired did so before the swap, so the old time
        // is compared with the clock after it.
        if !is_ahead(before) && self.is_given() {
            self.0.given.notify_waiters();
            self.0.returned.notify_one();
        }
    }

    /// Withdraws the permit at once. Work that is already running goes on.
    pub fn take_back(&self) {
        self.0.until.store(0, Ordering::SeqCst);
    }

    /// Returns a token that is cancelled when the node begins to drain, after which it calls no
    /// more models.
    pub fn draining(&self) -> &CancellationToken {
        &self.0.draining
    }

    /// Returns whether new work may begin now.
    pub fn is_given(&self) -> bool {
        is_ahead(self.0.until.load(Ordering::SeqCst))
    }

    /// Waits until the permit is granted. Returns immediately if it is granted already.
    pub async fn given(&self) {
        loop {
            let mut given = std::pin::pin!(self.0.given.notified());
            given.as_mut().enable();
            if self.is_given() {
                return;
            }
            given.await;
        }
    }

    /// Waits until the permit is granted after it was not. Returns at once if that happened since
    /// the last call.
    pub async fn returned(&self) {
        self.0.returned.notified().await;
    }
}

fn is_ahead(until: u64) -> bool {
    until == u64::MAX || clock::now() < Moment::from_millis(until)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    fn in_millis(millis: u64) -> u64 {
        clock::now().as_millis() + millis
    }

    #[tokio::test]
    async fn waiters_continue_when_the_permit_is_given() {
        let permit = Permit::withheld();
        let waiting = tokio::spawn({
            let permit = permit.clone();
            async move { permit.given().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        permit.give_until(in_millis(60_000));
        waiting.await.unwrap();
        permit.take_back();
        assert!(!permit.is_given());
        assert!(Permit::always().is_given());
    }

    #[tokio::test]
    async fn permit_expires_by_itself_and_can_be_given_again() {
        let permit = Permit::withheld();
        permit.give_until(in_millis(30));
        while permit.is_given() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let waiting = permit.clone();
        let waiting = tokio::spawn(async move { waiting.given().await });
        tokio::task::yield_now().await;
        permit.give_until(in_millis(60_000));
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn return_of_the_permit_is_reported_once_and_a_renewal_is_not() {
        let permit = Permit::always();
        let has_returned = || permit.returned().now_or_never().is_some();
        permit.give_until(in_millis(60_000));
        assert!(!has_returned(), "it was only renewed");
        permit.take_back();
        assert!(!has_returned());
        permit.give_until(in_millis(30));
        assert!(has_returned() && !has_returned());
        while permit.is_given() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        permit.give_until(in_millis(60_000));
        assert!(has_returned(), "it had expired");
    }
}
