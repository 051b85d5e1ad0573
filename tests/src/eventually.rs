//! Waiting for what will come true, instead of sleeping and hoping.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// How long a machine shared with many may take for what is done at once on an idle one.
pub const PATIENCE: Duration = Duration::from_secs(20);

const BETWEEN: Duration = Duration::from_millis(20);

/// Asks again and again until there is an answer, or fails with what was waited for.
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

/// [`within`] the usual patience.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    within(PATIENCE, what, look).await
}
