//! Commands about nodes, teams, models and sidecars.

use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use planck_common::{
    command::{Drain, Draining, Empty, Models, NodeInfo, NodeVerb, Nodes, Sidecars, Teams},
    decision::Decision,
    subject::{Address, LIST, Target, Topic},
};

use super::{
    client::{Client, RetryPolicy},
    error::ClientError,
};

/// The decisions of a cluster as they are published: which nodes joined, left or died, and why.
pub type Decisions = BoxStream<'static, Decision>;

impl Client {
    /// Subscribes to the decisions of the cluster. Decisions are not stored, so those that were
    /// published earlier are missing. Messages that are no decisions are left out.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unreachable`] when the subscription is not active within four seconds, or
    /// this user may not subscribe.
    pub async fn decisions(&self) -> Result<Decisions, ClientError> {
        let subject = Topic::Cluster("*").to_string();
        let published = self.bus().subscribe(&subject).await;
        let published = published.map_err(ClientError::Unreachable)?;
        let decisions = published
            .flat_map(|delivery| stream::iter(serde_json::from_slice(&delivery.payload).ok()));
        Ok(decisions.boxed())
    }

    /// Lists the nodes of the cluster. The call is idempotent.
    pub async fn nodes(&self) -> Result<Nodes, ClientError> {
        self.call(
            &Address::new(Target::Nodes, LIST),
            &Empty {},
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Describes a node. The call is idempotent.
    pub async fn node(&self, node: &str) -> Result<NodeInfo, ClientError> {
        self.call(
            &Address::node(node, NodeVerb::Info.name()),
            &Empty {},
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Makes a node hand over its agents and accept no new ones. The call is idempotent.
    pub async fn drain(&self, node: &str, drain: &Drain) -> Result<Draining, ClientError> {
        self.call(
            &Address::node(node, NodeVerb::Drain.name()),
            drain,
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Lists the templates of teams. The call is idempotent.
    pub async fn teams(&self) -> Result<Teams, ClientError> {
        self.call(
            &Address::new(Target::Teams, LIST),
            &Empty {},
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Lists the models that agents may use. The call is idempotent.
    pub async fn models(&self) -> Result<Models, ClientError> {
        self.call(
            &Address::new(Target::Models, LIST),
            &Empty {},
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Lists the sidecars that offer tools or compactors. The call is idempotent.
    pub async fn sidecars(&self) -> Result<Sidecars, ClientError> {
        self.call(
            &Address::new(Target::Sidecars, LIST),
            &Empty {},
            RetryPolicy::Idempotent,
        )
        .await
    }
}
