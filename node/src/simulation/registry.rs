//! The records of a simulated node: the bucket in memory, with delays, outages and lost answers.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt as _, future::ready, stream::BoxStream};
use planck_common::NodeId;
use tokio::time::sleep;

use super::world::SimWorld;
use crate::bus::{
    MemoryRecords, Records,
    records::{DEADLINE, Hint, Record, RecordsError, Write},
};

#[derive(Clone)]
pub(super) struct SimRecords {
    pub world: Arc<SimWorld>,
    pub node: NodeId,
    pub inner: MemoryRecords,
}

impl SimRecords {
    fn is_reached(&self) -> bool {
        let is_away = self.world.state().is_registry_away;
        !is_away && self.world.link(&self.node).has_nats
    }

    async fn reach(&self) -> Result<(), RecordsError> {
        self.world.unless_crashed(&self.node).await;
        self.world.pause(1..4).await;
        self.world.slowly(&self.node).await;
        if !self.is_reached() {
            sleep(DEADLINE).await;
            self.world.unless_crashed(&self.node).await;
            return Err(RecordsError::Away("no answer".into()));
        }
        Ok(())
    }

    /// Returns whether the answer is lost.
    async fn is_lost(&self) -> bool {
        let lost = self.world.state().lost;
        self.world.pause(0..3).await;
        self.world.unless_crashed(&self.node).await;
        !self.is_reached() || self.world.chance(lost)
    }
}

#[async_trait]
impl Records for SimRecords {
    async fn open(&self) -> Result<Duration, RecordsError> {
        self.reach().await?;
        self.inner.open().await
    }

    async fn read(&self, key: &str) -> Result<Record, RecordsError> {
        self.reach().await?;
        let read = self.inner.read(key).await;
        match self.is_lost().await {
            true => Err(RecordsError::Away("the answer was lost".into())),
            false => read,
        }
    }

    async fn read_all(&self, pattern: &str) -> Result<Vec<Record>, RecordsError> {
        self.reach().await?;
        let read = self.inner.read_all(pattern).await;
        match self.is_lost().await {
            true => Err(RecordsError::Away("the answer was lost".into())),
            false => read,
        }
    }

    async fn write(&self, writes: Vec<Write>) -> Result<u64, RecordsError> {
        let sent = self.world.millis();
        self.reach().await?;
        let written = self.inner.write(writes.clone()).await;
        if written.is_ok() {
            self.world.registry_wrote(&self.node, &writes, sent);
        }
        match self.is_lost().await {
            true => Err(RecordsError::Unknown("the answer was lost".into())),
            false => written,
        }
    }

    fn watch(&self, pattern: &str) -> BoxStream<'static, Hint> {
        let own = self.clone();
        let heard = move |_: &Hint| {
            let is_crashed = own.world.link(&own.node).is_crashed;
            ready(own.is_reached() && !is_crashed)
        };
        self.inner.watch(pattern).filter(heard).boxed()
    }
}
