//! The probes of a process that has a front and no node.

use std::time::Duration;

use async_trait::async_trait;
use planck_client::Client;
use planck_telemetry::vitals::{Gauges, Vitals};

/// A front without a node. It is ready if a node answers it.
pub struct FrontOnly(pub Client);

#[async_trait]
impl Vitals for FrontOnly {
    fn gauges(&self) -> Gauges {
        Gauges::default()
    }

    async fn unready(&self, patience: Duration) -> Vec<String> {
        match tokio::time::timeout(patience, self.0.nodes()).await {
            Ok(Ok(_)) => Vec::new(),
            Ok(Err(error)) => vec![error.to_string()],
            Err(_) => vec!["no node answers in time".to_owned()],
        }
    }

    async fn turns(&self, _within: Duration) -> bool {
        true
    }
}
