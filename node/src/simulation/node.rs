//! The life of one node of the simulation: it starts, and ends by an order, by a crash, or because
//! its peers declared it dead. Then a new node starts in its place.

use std::{sync::Arc, time::Duration};

use planck_common::{NodeId, quantity::Period};
use tokio::{sync::mpsc, time::sleep};

use super::{
    bus::SimBus,
    registry::{SimBucket, SimRecords},
    store::SimStore,
    work::{PROVIDER, SimProvider, SimReapers, SimTool},
    world::SimWorld,
};
use crate::{
    bus::MemoryHub,
    config::{Config, ConfiguredUrl},
    node::{
        Node, RunningNode,
        assemble::simulated::{SimulatedParts, simulated, unused_clients},
    },
};
use planck_cluster::registry::ClusterRegistry;
use planck_providers::{Clients, ModelTable};

/// The workspace of all sessions.
pub(super) const WORKSPACE: &str = "simulated";

/// How long a wait is open.
pub(super) const WAITS_LAST: Duration = Duration::from_secs(6);

/// An order to the node in one place.
#[derive(Debug, Clone, Copy)]
pub(super) enum NodeOrder {
    /// The process is killed, and another one starts after this time.
    Crash { back: Duration },
    /// The node drains for at most `patience` and leaves.
    Leave { patience: Duration, back: Duration },
}

/// What all nodes share.
#[derive(Clone)]
pub(super) struct Cluster {
    pub world: Arc<SimWorld>,
    pub hub: Arc<MemoryHub>,
    pub records: SimBucket,
    pub config: Arc<Config>,
    pub clients: Clients,
    pub table: ModelTable,
}

impl Cluster {
    pub(super) fn new(seed: u64, outside: &Outside) -> Self {
        Self {
            world: SimWorld::new(seed),
            hub: MemoryHub::new(),
            records: SimBucket::default(),
            config: Arc::clone(&outside.config),
            clients: outside.clients.clone(),
            table: outside.table.clone(),
        }
    }

    /// Returns a new id. It is the same in every run of a seed, because ids decide which nodes watch
    /// which. Like those of real nodes, ids are ordered by the time of their creation.
    fn node_id(&self) -> NodeId {
        let random = self.world.draw(0..u64::MAX);
        let count = self.world.state().nodes.len();
        NodeId::parse(&format!("{count:016x}{random:016x}")).unwrap()
    }

    /// Runs the node of one place, and its successors.
    pub(super) async fn keep_node(self, place: usize, mut orders: mpsc::Receiver<NodeOrder>) {
        loop {
            let id = self.node_id();
            let name = self.world.name("node", &id);
            self.world.add(&id, place);
            let node = self.node(&id);
            self.world
                .change(&id, |link| link.node = Arc::downgrade(&node));
            let running = match node.run().await {
                Ok(running) => running,
                Err(error) => {
                    self.world.note(&format!("{name} cannot join: {error}"));
                    self.world.crash(&id);
                    sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            self.world.note(&format!("{name} joined"));
            let back = self.until_over(&id, running, &mut orders).await;
            sleep(back).await;
        }
    }

    /// Waits for the end of a node. Returns after how long another one starts in its place.
    async fn until_over(
        &self,
        id: &NodeId,
        running: RunningNode,
        orders: &mut mpsc::Receiver<NodeOrder>,
    ) -> Duration {
        let name = self.world.name("node", id);
        tokio::select! {
            biased;
            why = running.must_end() => {
                self.world.note(&format!("{name} must end: {why}"));
                if self.world.link(id).silent_until == 0 {
                    self.world.violated(format!("{name} had to end: {why}"));
                }
                self.world.crash(id);
                Duration::from_secs(1)
            }
            order = orders.recv() => match order {
                Some(NodeOrder::Crash { back }) => {
                    self.world.note(&format!("{name} crashes"));
                    self.world.crash(id);
                    tokio::spawn(self.clone().expect_failover(id.clone()));
                    back
                }
                Some(NodeOrder::Leave { patience, back }) => {
                    self.world.note(&format!("{name} leaves"));
                    self.world.change(id, |link| link.silent_until = u64::MAX);
                    tokio::select! {
                        biased;
                        () = running.shut_down(patience) => {
                            self.world.note(&format!("{name} has left"));
                        }
                        Some(_) = orders.recv() => {
                            self.world.note(&format!("{name} crashes"));
                        }
                    }
                    self.world.crash(id);
                    back
                }
                None => std::future::pending().await,
            },
        }
    }

    fn node(&self, id: &NodeId) -> Arc<Node> {
        let world = &self.world;
        let records = SimRecords {
            world: Arc::clone(world),
            node: id.clone(),
            bucket: self.records.clone(),
        };
        let store = SimStore {
            world: Arc::clone(world),
            node: id.clone(),
        };
        let provider = SimProvider {
            world: Arc::clone(world),
            node: id.clone(),
        };
        let parts = SimulatedParts {
            id: id.clone(),
            store: Arc::new(store),
            bus: Arc::new(SimBus::new(world, &self.hub, id)),
            registry: ClusterRegistry::new(Arc::new(records)),
            provider: Arc::new(provider),
            tool: Arc::new(SimTool::new(world, id)),
            reapers: Arc::new(SimReapers {
                world: Arc::clone(world),
                node: id.clone(),
            }),
            clients: self.clients.clone(),
            table: self.table.clone(),
        };
        simulated(&self.config, parts).unwrap()
    }
}

/// What is built once for all seeds.
pub(super) struct Outside {
    config: Arc<Config>,
    clients: Clients,
    table: ModelTable,
    _folder: tempfile::TempDir,
}

impl Outside {
    pub(super) fn new() -> Self {
        let folder = tempfile::TempDir::new().unwrap();
        let mut config = Config::default();
        // Only a configured address makes the node expect other nodes.
        config.nats.url = Some(ConfiguredUrl::new("nats://unused:4222".to_owned()));
        config.waits.expire_after = Period(WAITS_LAST);
        config.models.default = Some(format!("{PROVIDER}:model"));
        config
            .workspaces
            .0
            .insert(WORKSPACE.into(), folder.path().to_owned());
        Self {
            clients: unused_clients(&config),
            table: "date = \"2026-01-01\"\nmodels = []".parse().unwrap(),
            config: Arc::new(config),
            _folder: folder,
        }
    }
}
