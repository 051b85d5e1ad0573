//! `cmd.node.<node>.*` and the lists any node answers.

use std::sync::Arc;

use planck_common::{
    command::{Empty, ModelRow, Models, NodeVerb, Nodes, Relay, Sidecars, Teams, Wake},
    event::json,
    reply::{Code, Refusal},
    subject::{Address, Target},
};

use super::{Reply, ok, read};
use crate::{actor::Verdict, agent::Arrival, node::Node};

pub(super) async fn own(node: &Arc<Node>, verb: NodeVerb, body: &[u8]) -> Reply {
    match verb {
        NodeVerb::Info => {
            let Empty {} = read(body)?;
            ok(node.info())
        }
        NodeVerb::Wake => wake(node, read(body)?).await,
        NodeVerb::Relay => relay(node, read(body)?).await,
        NodeVerb::Host => ok(node.host_agent(read(body)?).await?),
        NodeVerb::Drain | NodeVerb::StopTeam => {
            Err(Refusal::bad_request(format!("this node does not know `{}` yet: it works alone", verb.name())))
        }
    }
}

async fn wake(node: &Arc<Node>, wake: Wake) -> Reply {
    if let Some(answered) = &wake.answered {
        node.waiters().settle(answered);
    }
    let input = match &wake.input_id {
        Some(input) => node.store().input(&wake.session_id, input).await?,
        None => None,
    };
    let woken = match input {
        Some(input) => node.host().arrive(&wake.agent_id, Arrival::from(input)).await,
        None => node.host().look(&wake.agent_id).await.map(|()| Verdict::Taken),
    };
    match woken {
        Ok(Verdict::Taken) => ok(Empty {}),
        Ok(Verdict::Busy) => Err(Refusal::new(Code::Busy, "the agent is busy")),
        Err(gone) => Err(Refusal::not_found(gone.to_string())),
    }
}

async fn relay(node: &Arc<Node>, relay: Relay) -> Reply {
    let address = Address::parse(&relay.subject)
        .ok_or_else(|| Refusal::bad_request(format!("`{}` is no command", super::excerpt(&relay.subject))))?;
    match address.target {
        Target::Agent(_) | Target::Session(_) => {}
        Target::Node(_) | Target::Sessions | Target::Nodes | Target::Teams | Target::Models | Target::Sidecars => {
            return Err(Refusal::bad_request("only commands of agents and sessions are relayed"));
        }
    }
    Box::pin(super::dispatch(node, &address, &relay.body.get().to_owned().into())).await
}

pub(super) fn list(node: &Node) -> String {
    json(&Nodes { nodes: node.nodes() })
}

pub(super) fn teams(node: &Node) -> String {
    json(&Teams { teams: node.team_rows() })
}

pub(super) fn models(node: &Node) -> String {
    let models: Vec<ModelRow> = node.models().list();
    json(&Models { models })
}

pub(super) fn sidecars(_node: &Node) -> String {
    json(&Sidecars { sidecars: Vec::new() })
}
