//! Waits for conditions, so that tests need not sleep for a fixed time.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// How long [`eventually`] waits. A busy machine may take this long for what an idle one does at
/// once.
pub const PATIENCE: Duration = Duration::from_secs(20);

const BETWEEN: Duration = Duration::from_millis(20);

/// Repeats `look` until it returns a value. Fails after `patience` with an error that contains
/// `what`.
pub async fn within<T>(
    patience: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let until = Instant::now() + patience;
    loop {
        if let Some(found) = look().await {
            return Ok(found);
        }
        if Instant::now() > until {
            bail!("not within {patience:?}: {what}");
        }
        sleep(BETWEEN).await;
    }
}

/// Like [`within`], with the default patience.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    within(PATIENCE, what, look).await
}
