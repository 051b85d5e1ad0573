//! Handles the commands of the protocol. Each handler is a function from an address and a body to a
//! reply. This file handles `cmd.node.<node>.*`, and the lists of nodes, teams, models and
//! sidecars, which any node can answer.

mod agents;
mod read_only;
mod sessions;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use planck_common::{
    NodeId,
    command::{
        AgentVerb, Drain, Draining, Empty, NodeState, NodeVerb, Nodes, Relay, SessionVerb,
        SessionsVerb, Sidecars, Teams,
    },
    event::json,
    json_text,
    reply::{Code, Refusal, excerpt},
    subject::{Address, LIST, Target},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{bus::CommandHandler, services::Services, sessions::CommandOrigin, storable};

pub use read_only::{ReadOnly, read_only_handler};

/// The JSON of the reply's `ok` field, or a refusal.
type CommandReply = Result<String, Refusal>;

/// A command, and whether a client or another node sent it.
struct IncomingCommand<'a> {
    origin: CommandOrigin,
    address: &'a Address,
    body: &'a [u8],
}

impl IncomingCommand<'_> {
    /// Passes the command on to `host`, and returns that node's reply. Refuses a command that
    /// another node has already passed on.
    async fn pass_on(&self, services: &Services, host: &NodeId) -> CommandReply {
        services
            .sessions
            .pass_on(self.origin, host, self.address, self.body)
            .await
    }
}

/// Returns the request handler of a node.
pub fn answer(services: Arc<Services>) -> CommandHandler {
    Arc::new(move |address, body| {
        let services = Arc::clone(&services);
        Box::pin(async move { dispatch(&services, CommandOrigin::Client, &address, &body).await })
    })
}

async fn dispatch(
    services: &Services,
    origin: CommandOrigin,
    address: &Address,
    body: &Bytes,
) -> CommandReply {
    let Address { target, verb } = address;
    let incoming = IncomingCommand {
        origin,
        address,
        body,
    };
    match target {
        Target::Sessions => {
            sessions::all(
                services,
                origin,
                find(
                    SessionsVerb::find,
                    SessionsVerb::ALL,
                    SessionsVerb::name,
                    verb,
                )?,
                body,
            )
            .await
        }
        Target::Session(session) => {
            let verb = find(SessionVerb::find, SessionVerb::ALL, SessionVerb::name, verb)?;
            sessions::one(services, session, verb, &incoming).await
        }
        Target::Agent(agent) => {
            let verb = find(AgentVerb::find, AgentVerb::ALL, AgentVerb::name, verb)?;
            agents::one(services, agent, verb, &incoming).await
        }
        Target::Node(_) => {
            own_node(
                services,
                find(NodeVerb::find, NodeVerb::ALL, NodeVerb::name, verb)?,
                body,
            )
            .await
        }
        Target::Nodes => {
            list(verb, body)?;
            Ok(list_nodes(services).await)
        }
        Target::Teams => list(verb, body).map(|()| list_teams(services)),
        Target::Models => list(verb, body).map(|()| list_models(services)),
        Target::Sidecars => list(verb, body).map(|()| list_sidecars(services)),
    }
}

fn find<V: Copy>(
    find: fn(&str) -> Option<V>,
    all: &[V],
    name: fn(V) -> &'static str,
    verb: &str,
) -> Result<V, Refusal> {
    find(verb).ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|verb| name(*verb)).collect();
        unknown(verb, &known.join(", "))
    })
}

fn list(verb: &str, body: &[u8]) -> Result<(), Refusal> {
    if verb != LIST {
        return Err(unknown(verb, LIST));
    }
    read(body).map(|Empty {}| ())
}

fn unknown(verb: &str, known: &str) -> Refusal {
    Refusal::bad_request(format!(
        "unknown verb `{}`; known are {known}",
        excerpt(verb)
    ))
}

/// Parses the JSON object in a body. An empty body means `{}`.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let body = if body.iter().all(u8::is_ascii_whitespace) {
        b"{}"
    } else {
        body
    };
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Refusal::bad_request("the body is no JSON object"));
    }
    if let Some(why) = json_text::refusal(body) {
        return Err(Refusal::new(Code::TooLarge, why));
    }
    serde_json::from_slice(&storable::json(body))
        .map_err(|error| Refusal::bad_request(format!("the body cannot be read: {error}")))
}

fn ok<T: Serialize>(value: T) -> CommandReply {
    Ok(json(&value))
}

async fn own_node(services: &Services, verb: NodeVerb, body: &[u8]) -> CommandReply {
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
    Box::pin(dispatch(
        services,
        CommandOrigin::Peer,
        &address,
        &relay.body.get().to_owned().into(),
    ))
    .await
}

async fn list_nodes(services: &Services) -> String {
    let nodes = services.placement.all_nodes().await;
    json(&Nodes { nodes })
}

fn list_teams(services: &Services) -> String {
    json(&Teams {
        teams: services.library.rows(),
    })
}

fn list_models(services: &Services) -> String {
    json(&services.models.list())
}

fn list_sidecars(services: &Services) -> String {
    json(&Sidecars {
        sidecars: services.sidecars.rows(),
    })
}

#[cfg(test)]
mod tests;
