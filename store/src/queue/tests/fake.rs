//! Makes a store for tests of the queue from the two calls that the queue makes.

use async_trait::async_trait;
use planck_common::{
    AgentId, NodeId, Seq, SessionId,
    command::{Events, Messages},
};

use crate::{
    Appended, Batch, HeldLease, LeaseClaim, LeaseRelease, Leases, Log, LogRow, RewindOutcome,
    StoreError, Stray,
};

/// The calls that a queue makes, as described at [`Log::append`] and [`Leases::release_all`].
#[async_trait]
pub trait QueueStore: Send + Sync {
    async fn send(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError>;

    async fn send_releases(
        &self,
        session: &SessionId,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError>;
}

fn unused<T>() -> Result<T, StoreError> {
    unreachable!("a queue makes no such call")
}

#[async_trait]
impl<S: QueueStore> Log for S {
    async fn append(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError> {
        self.send(session, node, batches).await
    }

    async fn load(&self, _: &SessionId, _: &AgentId) -> Result<Vec<LogRow>, StoreError> {
        unused()
    }

    async fn head(&self, _: &SessionId) -> Result<Seq, StoreError> {
        unused()
    }

    async fn events(
        &self,
        _: &SessionId,
        _: Seq,
        _: u32,
        _: Option<&AgentId>,
    ) -> Result<Events, StoreError> {
        unused()
    }

    async fn turn_end(
        &self,
        _: &SessionId,
        _: &AgentId,
        _: u32,
        _: Seq,
    ) -> Result<Option<LogRow>, StoreError> {
        unused()
    }

    async fn messages(
        &self,
        _: &SessionId,
        _: Option<&AgentId>,
        _: Option<Seq>,
        _: Option<u32>,
    ) -> Result<Messages, StoreError> {
        unused()
    }

    async fn rewind(
        &self,
        _: &SessionId,
        _: i64,
        _: Seq,
        _: &str,
    ) -> Result<RewindOutcome, StoreError> {
        unused()
    }
}

#[async_trait]
impl<S: QueueStore> Leases for S {
    async fn claim(
        &self,
        _: &SessionId,
        _: &AgentId,
        _: i64,
        _: LeaseClaim,
        _: &NodeId,
    ) -> Result<Option<HeldLease>, StoreError> {
        unused()
    }

    async fn release_all(
        &self,
        session: &SessionId,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        self.send_releases(session, releases).await
    }

    async fn sweep(&self, _: &[NodeId]) -> Result<Vec<Stray>, StoreError> {
        unused()
    }

    async fn held_by(&self, _: &NodeId) -> Result<Vec<Stray>, StoreError> {
        unused()
    }

    async fn held_in(&self, _: &NodeId, _: &[SessionId]) -> Result<Vec<Stray>, StoreError> {
        unused()
    }
}
