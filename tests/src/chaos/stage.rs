//! The cluster that faults are done to: nodes that reach NATS through links which can be cut.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::{Context as _, Result};
use planck_common::NodeId;
use planck_scripted_model::{Reply, Script, When};
use serde_json::json;

use super::{Plan, timeline::Timeline};
use crate::{node::Node, proxy::Proxy, world::World};

/// What the nodes may warn of while they are being disturbed.
pub struct Stage {
    pub world: World,
    pub timeline: Timeline,
    pub nodes: Vec<Member>,
    nats: SocketAddr,
}

/// A node with its link.
pub struct Member {
    pub node: Node,
    pub link: Proxy,
}

impl Member {
    pub fn id(&self) -> &NodeId {
        self.node.id()
    }
}

impl Stage {
    pub async fn set(plan: &Plan) -> Result<Self> {
        let world = World::start(plan.backend, script()).await?;
        let timeline = Timeline::start(&world.caller.nats).await?;
        let nats = world.nats.url().trim_start_matches("nats://").parse().context("nats-server's address")?;
        let mut stage = Self { world, timeline, nodes: Vec::new(), nats };
        for _ in 0..plan.nodes {
            stage.add().await?;
        }
        Ok(stage)
    }

    /// One more node.
    pub async fn add(&mut self) -> Result<()> {
        let link = Proxy::start(self.nats).await?;
        let node = self.world.node_with(&[("NATS_URL", &link.nats_url())]).await?;
        self.nodes.push(Member { node, link });
        Ok(())
    }

    /// Takes a node out of the list, which somebody else will end.
    pub fn take(&mut self, id: &NodeId) -> Option<Member> {
        let at = self.nodes.iter().position(|member| member.id() == id)?;
        Some(self.nodes.swap_remove(at))
    }

    pub fn member(&self, id: &NodeId) -> Option<&Member> {
        self.nodes.iter().find(|member| member.id() == id)
    }

    pub fn ledger(&self) -> PathBuf {
        self.world.dir().join("ledger")
    }

    /// Ends all of it. Nodes that were disturbed may have warned.
    pub async fn strike(self) -> Result<()> {
        for Member { node, .. } in self.nodes {
            node.leave_despite(&[""]).await?;
        }
        Ok(())
    }
}

/// A lead that does a piece of work by itself, has its helper do another, and says that it is done.
fn script() -> Script {
    let writes = |mark: &str| json!({ "command": format!("echo {{{{word_after:work }}}}{mark} >> ledger; sleep 0.{{{{word_after:for }}}}") });
    let asks = json!({ "agent": "helper", "question": "work {{word_after:work }} for {{word_after:for }}" });
    Script::new()
        .rounds(
            When::any().tool("spawn_agent"),
            [Reply::call("bash", writes("-lead")), Reply::call("ask_agent", asks), Reply::text("All of it is done.")],
        )
        .rounds(When::any(), [Reply::call("bash", writes("-helper")), Reply::text("My part is done.")])
}
