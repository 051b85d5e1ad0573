//! Handles the commands of the protocol. Each handler is a function from an address and a body to a
//! reply.

mod agents;
mod nodes;
mod page;
mod read_only;
mod sessions;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use planck_common::{
    NodeId,
    command::{AgentVerb, Empty, NodeVerb, SessionVerb, SessionsVerb},
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
            nodes::own(
                services,
                find(NodeVerb::find, NodeVerb::ALL, NodeVerb::name, verb)?,
                body,
            )
            .await
        }
        Target::Nodes => list(verb, body).map(|()| nodes::list(services)),
        Target::Teams => list(verb, body).map(|()| nodes::teams(services)),
        Target::Models => list(verb, body).map(|()| nodes::models(services)),
        Target::Sidecars => list(verb, body).map(|()| nodes::sidecars(services)),
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
