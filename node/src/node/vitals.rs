//! The state of a node for its probes and metrics.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use super::Node;
use planck_telemetry::vitals::{Gauges, Vitals};

#[async_trait]
impl Vitals for Node {
    fn gauges(&self) -> Gauges {
        let here = self.services.base.host.counts();
        Gauges {
            sessions: [here.active, here.sessions.saturating_sub(here.active)].map(count),
            agents: [
                here.running,
                here.live.saturating_sub(here.running),
                here.resting,
                here.parked,
            ]
            .map(count),
            inbox: count(here.queued),
            heartbeat_age: self.services.base.view.heartbeat_age(),
        }
    }

    async fn unready(&self, patience: Duration) -> Vec<String> {
        let mut causes = Vec::new();
        if !self.services.base.bus.is_connected() {
            causes.push("NATS is away".to_owned());
        }
        if self.services.base.view.is_suspended() {
            causes.push(
                "the node is suspended: its heartbeats do not come back, or it cannot write to the registry"
                    .into(),
            );
        }
        if self.services.base.view.draining().is_cancelled() || self.stop.is_cancelled() {
            causes.push("the node is draining".into());
        }
        match timeout(patience, self.services.base.store.id()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "the store is not ready");
                causes.push("the session store is away".into());
            }
            Err(_) => causes.push(format!(
                "the session store does not answer within {} ms",
                patience.as_millis()
            )),
        }
        causes
    }

    async fn turns(&self, within: Duration) -> bool {
        self.services.base.host.turns(within).await
    }
}

fn count(of: usize) -> u64 {
    u64::try_from(of).unwrap_or(u64::MAX)
}
