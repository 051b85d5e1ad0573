//! The nodes of the cluster as this node knows them. The membership thread fills the census from
//! records and heartbeats. The services read it, and count the agents that they place.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use planck_common::{
    NodeId,
    command::{NodeInfo, NodeState},
    node::Heartbeat,
    registry::{NodeRecord, NodeStanding},
};
use tokio::{sync::Notify, time::Instant};

use crate::{clock, moment::Moment};

/// How long the census keeps a node without a record and without heartbeats, unless the node left
/// or died.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// How long the load that a node told counts as known if this node does not watch the other one.
const LOAD_KNOWN: Duration = Duration::from_secs(1);

/// The maximum number of nodes that the census keeps after they left or died.
const GONE_REMEMBERED: usize = 1_000;

/// The maximum number of questions about nodes that wait for the membership thread.
const MOST_ASKED: usize = 1_000;

/// The known nodes. Reading them sends no request.
#[derive(Debug, Default)]
pub struct Census {
    entries: Mutex<BTreeMap<NodeId, CensusEntry>>,
    asked: Mutex<BTreeSet<NodeId>>,
    was_asked: Notify,
    one_is_gone: Notify,
}

/// What a node last reported about its work.
#[derive(Debug, Clone, Copy, Default)]
struct KnownLoad {
    agents: u32,
    running: u32,
    draining: bool,
    suspended: bool,
}

#[derive(Debug)]
struct CensusEntry {
    record: Option<(u64, NodeRecord)>,
    load: Option<KnownLoad>,
    /// When the node was heard last, became known or began to be watched.
    heard: Instant,
    /// Whether this node receives the heartbeats of the other one.
    watched: bool,
    suspect: bool,
    /// Whether the membership thread reported that the node left or died. The flag stays set if the
    /// registry loses the node's record.
    gone: bool,
    /// Since when the node has been silent, if the membership thread reported that it died.
    quiet_since: Option<Moment>,
    /// How many agents this node asked the other node to host since its last heartbeat.
    placed: u32,
}

impl CensusEntry {
    fn new() -> Self {
        Self {
            record: None,
            load: None,
            heard: Instant::now(),
            watched: false,
            suspect: false,
            gone: false,
            quiet_since: None,
            placed: 0,
        }
    }

    /// Returns the entry of this node in the list of nodes, or `None` if its record is unknown.
    fn info(&self, id: &NodeId) -> Option<NodeInfo> {
        let (_, record) = self.record.clone()?;
        let state = self.state();
        let load = self.load.filter(|_| !is_over(state)).unwrap_or_default();
        Some(NodeInfo {
            id: id.clone(),
            name: record.name,
            state,
            version: record.version,
            labels: record.labels,
            capacity: record.capacity,
            agents: load.agents,
            running: load.running,
            workspaces: record.workspaces,
            providers: record.providers,
            started_at: record.started_at,
            silent_ms: u64::try_from(self.heard.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Returns whether the load is that of the last heartbeats, or was told a moment ago.
    fn is_load_known(&self) -> bool {
        self.watched || self.load.is_some() && self.heard.elapsed() < LOAD_KNOWN
    }

    fn standing(&self) -> Option<NodeStanding> {
        self.record.as_ref().map(|(_, record)| record.state)
    }

    fn is_gone(&self) -> bool {
        self.gone || self.standing().is_some_and(NodeStanding::is_final)
    }

    fn state(&self) -> NodeState {
        let load = self.load.unwrap_or_default();
        match self.standing() {
            Some(NodeStanding::Dead) => NodeState::Dead,
            Some(NodeStanding::Left) => NodeState::Left,
            Some(NodeStanding::Alive | NodeStanding::Draining) | None if self.suspect => {
                NodeState::Suspect
            }
            Some(NodeStanding::Draining) => NodeState::Draining,
            Some(NodeStanding::Alive) | None if load.draining => NodeState::Draining,
            Some(NodeStanding::Alive) | None if load.suspended => NodeState::Suspended,
            Some(NodeStanding::Alive) | None => NodeState::Alive,
        }
    }
}

fn is_over(state: NodeState) -> bool {
    matches!(state, NodeState::Left | NodeState::Dead)
}

impl Census {
    /// Returns the list of nodes, which includes this one and those that left or died. Each has the
    /// load that it told last.
    pub(crate) fn nodes(&self) -> Vec<NodeInfo> {
        let entries = self.entries();
        entries
            .iter()
            .filter_map(|(id, entry)| entry.info(id))
            .collect()
    }

    /// Returns the nodes that neither left nor died. Their agents include those that this node
    /// asked them to host since they told their load. A node whose load is not known counts as one
    /// without agents.
    pub(crate) fn candidates(&self) -> Vec<NodeInfo> {
        let candidate = |(id, entry): (&NodeId, &CensusEntry)| {
            let mut info = entry.info(id).filter(|info| !is_over(info.state))?;
            if !entry.is_load_known() {
                info.agents = 0;
                info.state = match entry.standing() {
                    Some(NodeStanding::Draining) => NodeState::Draining,
                    Some(_) | None => NodeState::Alive,
                };
            }
            info.agents = info.agents.saturating_add(entry.placed);
            Some(info)
        };
        self.entries().iter().filter_map(candidate).collect()
    }

    /// Returns the time since a node's last heartbeat, or `None` if no heartbeat was received.
    pub(crate) fn silence(&self, node: &NodeId) -> Option<Duration> {
        self.entries()
            .get(node)
            .filter(|entry| entry.load.is_some())
            .map(|entry| entry.heard.elapsed())
    }

    /// Adds one to the number of agents on a known node, because this node asks that node to host
    /// an agent. The node's next heartbeat replaces this count.
    pub(crate) fn placed(&self, node: &NodeId) {
        if let Some(entry) = self.entries().get_mut(node) {
            entry.placed += 1;
        }
    }

    /// Returns the nodes that are not gone, and that sent a heartbeat or became known within the
    /// last `lately`. A node that this node does not watch needs only a record, because others
    /// judge it.
    pub(crate) fn present(&self, lately: Duration) -> Vec<NodeId> {
        let entries = self.entries();
        let is_present = |entry: &CensusEntry| {
            let is_listed = !entry.watched && entry.record.is_some();
            !entry.is_gone() && (is_listed || entry.heard.elapsed() < lately)
        };
        let present = entries.iter().filter(|(_, entry)| is_present(entry));
        present.map(|(node, _)| node.clone()).collect()
    }

    /// Returns whether a node left or died, or `None` if the census holds no report of the registry
    /// about it.
    pub(crate) fn is_gone(&self, node: &NodeId) -> Option<bool> {
        let entries = self.entries();
        let entry = entries.get(node)?;
        (entry.gone || entry.record.is_some()).then(|| entry.is_gone())
    }

    /// Returns since when a node that died has been silent, or `None` if the census does not know
    /// of its death. The record of a death may arrive before the membership thread has reported
    /// since when the node has been silent. Until then the silence counts as beginning now, so that
    /// nothing starts too early.
    pub(crate) fn quiet_since(&self, node: &NodeId) -> Option<Moment> {
        let entries = self.entries();
        let entry = entries.get(node)?;
        let is_dead = entry.standing() == Some(NodeStanding::Dead);
        entry.quiet_since.or_else(|| is_dead.then(clock::now))
    }

    /// Waits until the registry reports that a node left or died.
    pub(crate) async fn until_gone(&self, node: &NodeId) {
        loop {
            let next = self.one_is_gone.notified();
            if self.is_gone(node) == Some(true) {
                return;
            }
            next.await;
        }
    }

    /// Asks the membership thread to read the record of an unknown node, unless too many such
    /// requests wait.
    pub(crate) fn ask_about(&self, node: &NodeId) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.len() < MOST_ASKED && asked.insert(node.clone()) {
            self.was_asked.notify_one();
        }
    }

    /// Returns the number of known nodes that neither left nor died.
    pub(super) fn count(&self) -> usize {
        let entries = self.entries();
        entries.values().filter(|entry| !entry.is_gone()).count()
    }

    pub(super) async fn was_asked(&self) -> BTreeSet<NodeId> {
        self.was_asked.notified().await;
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn record(&self, node: &NodeId) -> Option<(u64, NodeRecord)> {
        self.entries().get(node)?.record.clone()
    }

    pub(super) fn heard(&self, heartbeat: Heartbeat) {
        let load = KnownLoad {
            agents: heartbeat.agents,
            running: heartbeat.running,
            draining: heartbeat.draining,
            suspended: heartbeat.suspended,
        };
        self.told(&heartbeat.node_id, load);
    }

    /// Stores what a node answered when it was asked for its load.
    pub(crate) fn answered(&self, info: &NodeInfo) {
        let load = KnownLoad {
            agents: info.agents,
            running: info.running,
            draining: info.state == NodeState::Draining,
            suspended: info.state == NodeState::Suspended,
        };
        self.told(&info.id, load);
    }

    fn told(&self, node: &NodeId, load: KnownLoad) {
        let mut entries = self.entries();
        let entry = entries.entry(node.clone()).or_insert_with(CensusEntry::new);
        entry.heard = Instant::now();
        entry.placed = 0;
        entry.load = Some(load);
    }

    /// Returns the nodes that neither left nor died and whose load is not known. They must be asked.
    pub(crate) fn of_unknown_load(&self) -> Vec<NodeId> {
        let entries = self.entries();
        let unknown = entries
            .iter()
            .filter(|(_, entry)| !entry.is_gone() && !entry.is_load_known());
        unknown.map(|(node, _)| node.clone()).collect()
    }

    /// Stores a node's record from the registry. A node that is gone stays gone. It is public because
    /// the tests of `planck-node` fill a census without a cluster.
    pub fn recorded(&self, node: &NodeId, revision: u64, record: NodeRecord) {
        let mut entries = self.entries();
        let entry = entries.entry(node.clone()).or_insert_with(CensusEntry::new);
        let is_back = entry.is_gone() && !record.state.is_final();
        if !is_back {
            entry.record = Some((revision, record));
        }
        let is_gone = entry.is_gone();
        drop(entries);
        if is_gone {
            self.one_is_gone.notify_waiters();
        }
    }

    /// Records that a node left or died. `quiet_since` says since when a node that died has been
    /// silent, and is `None` for a node that left. The census keeps the node even if the registry
    /// loses its record, because its leases may still have to be claimed. If there are too many
    /// such nodes, forgets the one that was heard the longest time ago.
    pub(super) fn gone(&self, node: &NodeId, quiet_since: Option<Moment>) {
        let mut entries = self.entries();
        let gone = |entries: &BTreeMap<NodeId, CensusEntry>| {
            entries.values().filter(|entry| entry.gone).count()
        };
        if gone(&entries) >= GONE_REMEMBERED
            && let Some(oldest) = entries
                .iter()
                .filter(|(_, entry)| entry.gone)
                .min_by_key(|(_, entry)| entry.heard)
                .map(|(node, _)| node.clone())
        {
            entries.remove(&oldest);
        }
        let entry = entries.entry(node.clone()).or_insert_with(CensusEntry::new);
        entry.gone = true;
        entry.quiet_since = quiet_since;
        drop(entries);
        self.one_is_gone.notify_waiters();
    }

    /// Stores all records of the registry. Removes each node without a record, unless it left or
    /// died, or was heard or became known recently.
    pub(super) fn all_recorded(&self, records: &[(NodeId, u64, NodeRecord)]) {
        for (node, revision, record) in records {
            self.recorded(node, *revision, record.clone());
        }
        let stands: BTreeSet<&NodeId> = records.iter().map(|(node, ..)| node).collect();
        self.entries().retain(|node, entry| {
            entry.gone || stands.contains(node) || entry.heard.elapsed() < FORGOTTEN
        });
    }

    /// Records whether this node receives the heartbeats of another one from now on.
    pub(super) fn watched(&self, node: &NodeId, is_watched: bool) {
        let mut entries = self.entries();
        let entry = entries.entry(node.clone()).or_insert_with(CensusEntry::new);
        (entry.watched, entry.suspect) = (is_watched, false);
        if is_watched {
            entry.heard = Instant::now();
        }
    }

    pub(super) fn suspected(&self, node: &NodeId, suspect: bool) {
        if let Some(entry) = self.entries().get_mut(node) {
            entry.suspect = suspect;
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<NodeId, CensusEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
