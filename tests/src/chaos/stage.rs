//! The cluster on which the faults are inflicted. If there is one nats-server, its nodes reach it
//! through links that can be cut.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use planck_common::{NodeId, registry::NodeStanding};
use planck_scripted_model::Script;

use super::{Plan, Servers, timeline::Timeline};
use crate::{
    nats::{NatsCluster, NatsServer},
    node::Node,
    postgres::Database,
    proxy::Proxy,
    registry::record,
    world::{Backend, World},
};

/// The name of the file to which tools append a line for each run.
const LEDGER: &str = "ledger";

/// A world with the nodes that the faults affect.
pub struct Stage {
    pub world: World,
    pub timeline: Timeline,
    pub nodes: Vec<Member>,
    nats: SocketAddr,
}

/// A node with its link. In a cluster of NATS servers the node does not use the link.
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
    pub async fn set(plan: &Plan, script: impl Fn(&Path) -> Script) -> Result<Self> {
        let servers = match plan.servers {
            Servers::One => vec![NatsServer::start()?],
            Servers::Three => NatsCluster::start()?.servers,
        };
        let database = match plan.backend {
            Backend::Postgres if plan.freezes_the_database() => {
                Some(Database::create_alone().await?)
            }
            backend @ (Backend::Sqlite | Backend::Postgres) => backend.database().await?,
        };
        let world = World::start_with(servers, database, Script::new()).await?;
        world
            .model
            .set_script(script(&world.dir().join(LEDGER)).without_auth());
        let timeline = Timeline::start(&world.caller.nats).await?;
        let nats = world
            .nats
            .url()
            .trim_start_matches("nats://")
            .parse()
            .context("nats-server's address")?;
        let mut stage = Self {
            world,
            timeline,
            nodes: Vec::new(),
            nats,
        };
        for _ in 0..plan.nodes {
            stage.add().await?;
        }
        Ok(stage)
    }

    /// Starts one more node, with its link.
    pub async fn add(&mut self) -> Result<()> {
        let link = Proxy::start(self.nats).await?;
        let many = [
            "PLANCK_LIMITS_SESSION_MAX_AGENTS",
            "PLANCK_NODE_CAPACITY",
            "PLANCK_PROVIDERS_SCRIPTED_MAX_CONCURRENT",
        ];
        let mut environment: Vec<(&str, &str)> = many.iter().map(|name| (*name, "10000")).collect();
        let url = link.nats_url();
        if self.world.mates.is_empty() {
            environment.push(("NATS_URL", &url));
        }
        let node = self.world.node_with(&environment).await?;
        self.nodes.push(Member { node, link });
        Ok(())
    }

    /// Removes a node from the list and returns it. The caller must end the node.
    pub fn take(&mut self, id: &NodeId) -> Option<Member> {
        let at = self.nodes.iter().position(|member| member.id() == id)?;
        Some(self.nodes.swap_remove(at))
    }

    pub fn member(&self, id: &NodeId) -> Option<&Member> {
        self.nodes.iter().find(|member| member.id() == id)
    }

    pub fn ledger(&self) -> PathBuf {
        self.world.dir().join(LEDGER)
    }

    /// Ends the cluster. It ignores the warnings of the nodes, because the faults cause some. It
    /// skips nodes that were declared dead, because these end by themselves.
    pub async fn tear_down(self) -> Result<()> {
        let Self {
            world,
            timeline,
            nodes,
            ..
        } = self;
        for Member { node, .. } in nodes {
            let id = node.id().clone();
            if timeline.deaths().contains(&id) {
                continue;
            }
            if let Err(error) = node.leave_despite(&[""]).await {
                // On a slow machine even a short stop can lead to a death record, and the event
                // about the death may have been lost. So this reads the registry.
                let record = record(&world.caller, &id).await?;
                if record.is_none_or(|record| record.state != NodeStanding::Dead) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
