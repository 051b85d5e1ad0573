//! Handles `cmd.node.<node>.*`, and the lists of nodes, teams, models and sidecars, which any node
//! can answer.

use std::time::Duration;

use planck_common::{
    command::{Drain, Draining, Empty, NodeState, NodeVerb, Nodes, Relay, Sidecars, Teams},
    event::json,
    reply::{Refusal, excerpt},
    subject::{Address, Target},
};

use super::{CommandReply, ok, read};
use crate::{services::Services, sessions::CommandOrigin};

pub(super) async fn own(services: &Services, verb: NodeVerb, body: &[u8]) -> CommandReply {
    match verb {
        NodeVerb::Info => {
            let Empty {} = read(body)?;
            ok(services.placement.local().info())
        }
        NodeVerb::Wake => ok(services
            .sessions
            .wake_here(read(body)?)
            .await
            .map(|()| Empty {})?),
        NodeVerb::Relay => relay(services, read(body)?).await,
        NodeVerb::Host => ok(services.placement.host_agent(read(body)?).await?),
        NodeVerb::StopTeam => ok(services.teams.stop_here(&read(body)?).await),
        NodeVerb::Drain => {
            let Drain { timeout_ms, reason } = read(body)?;
            let patience = timeout_ms.map(Duration::from_millis);
            services.takeover.request_drain(patience, reason);
            ok(Draining {
                state: NodeState::Draining,
                agents: services.placement.local().info().agents,
            })
        }
    }
}

/// Performs a command that another node passed on. Refuses commands that are not for an agent, for
/// a session or for `sessions`.
async fn relay(services: &Services, relay: Relay) -> CommandReply {
    let address = Address::parse(&relay.subject).ok_or_else(|| {
        Refusal::bad_request(format!("`{}` is no command", excerpt(&relay.subject)))
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
        services,
        CommandOrigin::Peer,
        &address,
        &relay.body.get().to_owned().into(),
    ))
    .await
}

pub(super) fn list(services: &Services) -> String {
    let mut nodes = vec![services.placement.local().info()];
    nodes.extend(services.base.view.other_nodes());
    json(&Nodes { nodes })
}

pub(super) fn teams(services: &Services) -> String {
    json(&Teams {
        teams: services.library.rows(),
    })
}

pub(super) fn models(services: &Services) -> String {
    json(&services.models.list())
}

pub(super) fn sidecars(services: &Services) -> String {
    json(&Sidecars {
        sidecars: services.sidecars.rows(),
    })
}
