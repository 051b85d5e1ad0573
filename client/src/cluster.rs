//! Commands about nodes, and what a cluster has: teams, models, sidecars.

use planck_common::{
    command::{Drain, Draining, Empty, Models, NodeInfo, NodeVerb, Nodes, Sidecars, Teams},
    subject::{Address, LIST, Target},
};

use super::{
    ask::{Client, Repeat},
    error::ClientError,
};

impl Client {
    pub async fn nodes(&self) -> Result<Nodes, ClientError> {
        self.ask(
            &Address::new(Target::Nodes, LIST),
            &Empty {},
            Repeat::Harmless,
        )
        .await
    }

    pub async fn node(&self, node: &str) -> Result<NodeInfo, ClientError> {
        self.ask(
            &Address::node(node, NodeVerb::Info.name()),
            &Empty {},
            Repeat::Harmless,
        )
        .await
    }

    pub async fn drain(
        &self,
        node: &str,
        timeout_ms: Option<u64>,
    ) -> Result<Draining, ClientError> {
        self.ask(
            &Address::node(node, NodeVerb::Drain.name()),
            &Drain { timeout_ms },
            Repeat::Harmless,
        )
        .await
    }

    pub async fn teams(&self) -> Result<Teams, ClientError> {
        self.ask(
            &Address::new(Target::Teams, LIST),
            &Empty {},
            Repeat::Harmless,
        )
        .await
    }

    pub async fn models(&self) -> Result<Models, ClientError> {
        self.ask(
            &Address::new(Target::Models, LIST),
            &Empty {},
            Repeat::Harmless,
        )
        .await
    }

    pub async fn sidecars(&self) -> Result<Sidecars, ClientError> {
        self.ask(
            &Address::new(Target::Sidecars, LIST),
            &Empty {},
            Repeat::Harmless,
        )
        .await
    }
}
