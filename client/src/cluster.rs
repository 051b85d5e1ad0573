//! Commands about nodes, teams, models and sidecars.

use planck_common::{
    command::{Drain, Draining, Empty, Models, NodeInfo, NodeVerb, Nodes, Sidecars, Teams},
    subject::{Address, LIST, Target},
};

use super::{
    client::{Client, RetryPolicy},
    error::ClientError,
};

impl Client {
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
    pub async fn drain(
        &self,
        node: &str,
        timeout_ms: Option<u64>,
    ) -> Result<Draining, ClientError> {
        self.call(
            &Address::node(node, NodeVerb::Drain.name()),
            &Drain { timeout_ms },
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
