//! `cmd.node.<node>.*` and the lists any node answers.

use std::sync::Arc;

use planck_common::{
    command::{Drain, Draining, Empty, NodeState, NodeVerb, Nodes, Relay, Sidecars, Teams},
    event::json,
    reply::Refusal,
    subject::{Address, Target},
};

use super::{Reply, ok, read};
use crate::{node::Node, session::Hop};

pub(super) async fn own(node: &Arc<Node>, verb: NodeVerb, body: &[u8]) -> Reply {
    match verb {
        NodeVerb::Info => {
            let Empty {} = read(body)?;
            ok(node.info())
        }
        NodeVerb::Wake => ok(node.woken(read(body)?).await.map(|()| Empty {})?),
        NodeVerb::Relay => relay(node, read(body)?).await,
        NodeVerb::Host => ok(node.host_agent(read(body)?).await?),
        NodeVerb::StopTeam => ok(node.stop_team(read(body)?).await?),
        NodeVerb::Drain => {
            let Drain { timeout_ms } = read(body)?;
            node.ask_to_drain(timeout_ms.map(std::time::Duration::from_millis));
            ok(Draining {
                state: NodeState::Draining,
                agents: node.info().agents,
            })
        }
    }
}

/// Relayed once: whoever asked took this node for the host.
async fn relay(node: &Arc<Node>, relay: Relay) -> Reply {
    let address = Address::parse(&relay.subject).ok_or_else(|| {
        Refusal::bad_request(format!(
            "`{}` is no command",
            super::excerpt(&relay.subject)
        ))
    })?;
    match address.target {
        Target::Agent(_) | Target::Session(_) | Target::Sessions => {}
        Target::Node(_) | Target::Nodes | Target::Teams | Target::Models | Target::Sidecars => {
            return Err(Refusal::bad_request(
                "only commands of agents and sessions are relayed",
            ));
        }
    }
    Box::pin(super::dispatch(
        node,
        Hop::Last,
        &address,
        &relay.body.get().to_owned().into(),
    ))
    .await
}

pub(super) fn list(node: &Node) -> String {
    json(&Nodes {
        nodes: node.nodes(),
    })
}

pub(super) fn teams(node: &Node) -> String {
    json(&Teams {
        teams: node.team_rows(),
    })
}

pub(super) fn models(node: &Node) -> String {
    json(&node.models().list())
}

pub(super) fn sidecars(node: &Node) -> String {
    json(&Sidecars {
        sidecars: node.sidecars().rows(),
    })
}
