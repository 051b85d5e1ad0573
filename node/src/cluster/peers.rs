//! What this node knows of its peers: how each introduced itself, and how it said it was doing when it was last heard.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use planck_common::{
    NodeId,
    command::{NodeInfo, NodeState},
    node::Heartbeat,
    registry::{NodeRecord, NodeStanding},
};
use tokio::time::Instant;

use super::placement::Candidate;

/// A peer silent for so long is told apart from those that are well.
const SUSPECT: Duration = Duration::from_millis(2_500);

/// A peer silent for so long gets no agents.
const AWAY: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Peers {
    known: Mutex<BTreeMap<NodeId, Peer>>,
}

#[derive(Debug)]
struct Peer {
    /// `None` until it has introduced itself.
    record: Option<NodeRecord>,
    beat: Option<Heartbeat>,
    heard: Instant,
    /// Agents that were placed on it since it told how many it has.
    placed: u32,
}

impl Peers {
    /// A peer as it introduced itself, or as the registry has it.
    pub fn introduced(&self, node: NodeId, record: NodeRecord) {
        let mut known = self.known();
        if record.state.is_final() {
            known.remove(&node);
            return;
        }
        let peer = known.entry(node).or_insert_with(Peer::unheard);
        peer.record = Some(record);
    }

    /// A peer was heard; whether it has introduced itself.
    pub fn heard(&self, beat: Heartbeat) -> bool {
        let mut known = self.known();
        let peer = known.entry(beat.node_id.clone()).or_insert_with(Peer::unheard);
        peer.heard = Instant::now();
        peer.placed = 0;
        peer.beat = Some(beat);
        peer.record.is_some()
    }

    /// Forgets those that were not heard for so long.
    pub fn forget_silent(&self, for_long: Duration) {
        self.known().retain(|_, peer| peer.heard.elapsed() < for_long);
    }

    /// An agent was placed there: it counts before the peer says so.
    pub fn placed(&self, node: &NodeId) {
        if let Some(peer) = self.known().get_mut(node) {
            peer.placed += 1;
        }
    }

    /// Those that an agent could be placed on.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.known().iter().filter_map(|(id, peer)| peer.candidate(id)).collect()
    }

    /// Those that have introduced themselves, as they are listed.
    pub fn rows(&self) -> Vec<NodeInfo> {
        self.known().iter().filter_map(|(id, peer)| peer.row(id)).collect()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<NodeId, Peer>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    fn unheard() -> Self {
        Self { record: None, beat: None, heard: Instant::now(), placed: 0 }
    }

    fn candidate(&self, id: &NodeId) -> Option<Candidate> {
        let NodeRecord { labels, workspaces, providers, capacity, .. } = self.record.clone()?;
        let takes = matches!(self.state(), NodeState::Alive | NodeState::Suspect) && self.heard.elapsed() < AWAY;
        Some(Candidate { id: id.clone(), labels, workspaces, providers, capacity, agents: self.agents(), takes })
    }

    fn row(&self, id: &NodeId) -> Option<NodeInfo> {
        let record = self.record.clone()?;
        Some(NodeInfo {
            id: id.clone(),
            name: record.name,
            state: self.state(),
            version: record.version,
            labels: record.labels,
            capacity: record.capacity,
            agents: self.agents(),
            running: self.beat.as_ref().map_or(0, |beat| beat.running),
            workspaces: record.workspaces,
            providers: record.providers,
            started_at: record.started_at,
            silent_ms: u64::try_from(self.heard.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    fn agents(&self) -> u32 {
        self.beat.as_ref().map_or(0, |beat| beat.agents).saturating_add(self.placed)
    }

    fn state(&self) -> NodeState {
        let said = |what: fn(&Heartbeat) -> bool| self.beat.as_ref().is_some_and(what);
        match self.record.as_ref().map(|record| record.state) {
            Some(NodeStanding::Dead) => NodeState::Dead,
            Some(NodeStanding::Left) => NodeState::Left,
            Some(NodeStanding::Draining) => NodeState::Draining,
            Some(NodeStanding::Alive) | None if said(|beat| beat.draining) => NodeState::Draining,
            Some(NodeStanding::Alive) | None if self.heard.elapsed() > SUSPECT => NodeState::Suspect,
            Some(NodeStanding::Alive) | None if said(|beat| beat.suspended) => NodeState::Suspended,
            Some(NodeStanding::Alive) | None => NodeState::Alive,
        }
    }
}

#[cfg(test)]
mod tests {
    use planck_common::Timestamp;

    use super::*;

    fn record(state: NodeStanding) -> NodeRecord {
        NodeRecord {
            name: "one".into(),
            state,
            version: "1".into(),
            labels: serde_json::Map::new(),
            capacity: 10,
            workspaces: vec![],
            providers: vec![],
            started_at: Timestamp::now(),
            nonce: String::new(),
            verdict: None,
        }
    }

    fn beat(node: &NodeId, agents: u32, suspended: bool) -> Heartbeat {
        let text = serde_json::json!({ "v": 1, "node_id": node, "name": "one", "seq": 1, "at": Timestamp::now(), "agents": agents,
            "running": 1, "capacity": 10, "cpu": 0.5, "rss_bytes": 1, "draining": false, "suspended": suspended });
        serde_json::from_value(text).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_what_it_said_last_and_how_long_ago() {
        let (peers, one) = (Peers::default(), NodeId::mint());
        assert!(!peers.heard(beat(&one, 3, false)), "it has not introduced itself");
        assert!(peers.candidates().is_empty() && peers.rows().is_empty());
        peers.introduced(one.clone(), record(NodeStanding::Alive));
        assert!(peers.heard(beat(&one, 3, false)));
        peers.placed(&one);
        let placeable = |peers: &Peers| (peers.candidates()[0].agents, peers.candidates()[0].takes, peers.rows()[0].state);
        assert_eq!(placeable(&peers), (4, true, NodeState::Alive));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(placeable(&peers), (4, true, NodeState::Suspect));
        assert_eq!(peers.rows()[0].silent_ms, 3_000);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(!peers.candidates()[0].takes);
        peers.heard(beat(&one, 4, true));
        assert_eq!(placeable(&peers), (4, false, NodeState::Suspended));
        tokio::time::advance(Duration::from_secs(31)).await;
        peers.forget_silent(Duration::from_secs(30));
        assert!(peers.rows().is_empty());
    }

    #[test]
    fn who_left_is_forgotten() {
        let (peers, one) = (Peers::default(), NodeId::mint());
        peers.introduced(one.clone(), record(NodeStanding::Draining));
        assert_eq!(peers.rows()[0].state, NodeState::Draining);
        assert!(!peers.candidates()[0].takes);
        peers.introduced(one, record(NodeStanding::Left));
        assert!(peers.rows().is_empty());
    }
}
