//! Gets to know peers: who is heard for the first time is asked to introduce itself, and again now and then.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::BoxStream};
use planck_common::{
    NodeId,
    command::{NodeInfo, NodeState, NodeVerb},
    node::Heartbeat,
    registry::{NodeRecord, NodeStanding},
    reply,
    subject::Address,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{bus::Delivery, node::Node};

/// Between two introductions of one peer.
const AGAIN: Duration = Duration::from_secs(10);

/// Between two requests to a peer that has not introduced itself yet.
const SOON: Duration = Duration::from_secs(1);

/// How long a peer has to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A peer that was not heard for so long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// Hears heartbeats until told to stop.
pub(crate) async fn meet(node: Arc<Node>, mut heard: BoxStream<'static, Delivery>, stop: CancellationToken) {
    let mut asked: HashMap<NodeId, Instant> = HashMap::new();
    while let Some(Some(Delivery { payload, .. })) = stop.run_until_cancelled(heard.next()).await {
        let Ok(beat) = serde_json::from_slice::<Heartbeat>(&payload) else { continue };
        if beat.node_id == *node.id() {
            asked.retain(|_, at| at.elapsed() < FORGOTTEN);
            node.peers().forget_silent(FORGOTTEN);
            continue;
        }
        let peer = beat.node_id.clone();
        let pause = if node.peers().heard(beat) { AGAIN } else { SOON };
        if asked.get(&peer).is_none_or(|at| at.elapsed() >= pause) {
            asked.insert(peer.clone(), Instant::now());
            node.tasks().spawn(ask(Arc::clone(&node), peer));
        }
    }
}

async fn ask(node: Arc<Node>, peer: NodeId) {
    let to = Address::node(&peer, NodeVerb::Info.name());
    let answer = node.bus().request(&to, "{}".into(), PATIENCE).await;
    let info = answer.ok().and_then(|answer| reply::decode::<NodeInfo>(&answer).ok());
    match info {
        Some(info) => node.peers().introduced(peer, record(info)),
        None => tracing::debug!(%peer, "a peer does not introduce itself"),
    }
}

fn record(info: NodeInfo) -> NodeRecord {
    NodeRecord {
        name: info.name,
        state: match info.state {
            NodeState::Alive | NodeState::Suspended | NodeState::Suspect => NodeStanding::Alive,
            NodeState::Draining => NodeStanding::Draining,
            NodeState::Left => NodeStanding::Left,
            NodeState::Dead => NodeStanding::Dead,
        },
        version: info.version,
        labels: info.labels,
        capacity: info.capacity,
        workspaces: info.workspaces,
        providers: info.providers,
        started_at: info.started_at,
        nonce: String::new(),
        verdict: None,
    }
}
