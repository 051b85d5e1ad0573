//! What tests of a cluster observe: the list of nodes, the decisions, and the registry.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use futures_util::StreamExt;
use planck_common::{
    NodeId,
    command::{NodeInfo, NodeState, Nodes},
    decision::{Decision, DecisionKind},
    registry::{NodeRecord, NodeStanding},
    subject::Target,
};
pub use planck_tests::registry::{record, value};
use planck_tests::{
    caller::{Caller, list_of},
    eventually::eventually,
    node::Node,
    world::World,
};
use serde_json::json;
use tokio::task::JoinHandle;

/// A recording of every decision that is published after the recording began.
pub struct Decisions {
    heard: Arc<Mutex<Vec<Decision>>>,
    task: JoinHandle<()>,
}

impl Decisions {
    pub async fn hear(caller: &Caller) -> Result<Self> {
        let mut news = caller.nats.subscribe("cluster.*").await?;
        // A round trip after the subscription shows that the subscription is active.
        let _nobody = caller.nats.request("nobody.there", "".into()).await;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heard);
        let task = tokio::spawn(async move {
            while let Some(message) = news.next().await {
                let decision: Decision = serde_json::from_slice(&message.payload).unwrap();
                assert_eq!(
                    *message.subject,
                    *format!("cluster.{}", decision.r#type.name())
                );
                kept.lock().unwrap().push(decision);
            }
        });
        Ok(Self { heard, task })
    }

    pub fn of(&self, kind: DecisionKind) -> Vec<Decision> {
        self.heard
            .lock()
            .unwrap()
            .iter()
            .filter(|decision| decision.r#type == kind)
            .cloned()
            .collect()
    }

    pub async fn until(&self, kind: DecisionKind) -> Result<Decision> {
        eventually(kind.name(), async || self.of(kind).pop()).await
    }
}

impl Drop for Decisions {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Requests the list of nodes from one of them.
pub async fn list(caller: &Caller) -> Result<Vec<NodeInfo>> {
    let nodes: Nodes = caller.read(&list_of(Target::Nodes), &json!({})).await?;
    Ok(nodes.nodes)
}

/// Waits until a node is listed in a state.
pub async fn until_listed(world: &World, node: &NodeId, state: NodeState) -> Result<NodeInfo> {
    let what = format!("node {node} is {state:?}");
    let listed = eventually(&what, async || {
        list(&world.caller)
            .await
            .ok()?
            .into_iter()
            .find(|info| info.id == *node && info.state == state)
    });
    let now = async || {
        list(&world.caller).await.map(|nodes| {
            nodes
                .into_iter()
                .map(|info| (info.id, info.state))
                .collect::<Vec<_>>()
        })
    };
    match listed.await {
        Ok(info) => Ok(info),
        Err(error) => Err(error.context(format!("listed: {:?}", now().await))),
    }
}

/// Waits until each of these nodes answers, and a series of lists, each from a node that NATS
/// chooses, has exactly these nodes as alive.
pub async fn until_all_see(world: &World, nodes: &[&Node]) -> Result<()> {
    let mut ids: Vec<NodeId> = nodes.iter().map(|node| node.id().clone()).collect();
    ids.sort();
    eventually("all nodes see each other alive", async || {
        for node in nodes {
            let subject = format!("cmd.node.{}.info", node.id());
            world.caller.raw(&subject, "{}").await.ok()?;
        }
        for _ in 0..nodes.len() * 4 {
            let listed = list(&world.caller)
                .await
                .ok()?
                .into_iter()
                .filter(|info| info.state == NodeState::Alive);
            let mut alive: Vec<NodeId> = listed.map(|info| info.id).collect();
            alive.sort();
            if alive != ids {
                return None;
            }
        }
        Some(())
    })
    .await
}

pub async fn until_recorded(
    caller: &Caller,
    node: &NodeId,
    standing: NodeStanding,
) -> Result<NodeRecord> {
    eventually(
        &format!("the record of {node} says {standing:?}"),
        async || {
            record(caller, node)
                .await
                .ok()
                .flatten()
                .filter(|record| record.state == standing)
        },
    )
    .await
}
