//! The tools with which agents of a team work together. Each is confined to the caller's own team.

mod ask;
mod delegate;
mod destroy;
mod interrupt;
mod list;
mod models;
mod respond;
mod spawn;

use std::sync::{Arc, Weak};

use planck_common::{
    AgentId, InputId, Timestamp,
    event::Effect,
    message::Sender,
    reply::{Code, Refusal},
    spec::AgentSpec,
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::roster::{self, NoTarget};
use crate::{
    actor::parts::Facts,
    model::ToolSpec,
    node::Node,
    store::{AgentRecord, NewInput},
    tools::{Invocation, Outcome, Tool},
};

/// What an inter-agent tool works with: the node. Who calls is in the call.
#[derive(Clone)]
struct Link {
    node: Weak<Node>,
}

/// All of them; every agent of the node shares them.
pub(crate) fn all(node: &Weak<Node>, offers_addresses: bool) -> Vec<Arc<dyn Tool>> {
    let link = || Link { node: node.clone() };
    vec![
        Arc::new(ask::AskAgent::new(link())),
        Arc::new(delegate::DelegateTask::new(link())),
        Arc::new(respond::SendResponse::new(link())),
        Arc::new(list::ListTeam::new(link())),
        Arc::new(spawn::SpawnAgent::new(link(), offers_addresses)),
        Arc::new(destroy::DestroyAgent::new(link())),
        Arc::new(interrupt::InterruptAgent::new(link())),
        Arc::new(models::ListModels::new(link())),
    ]
}

/// A call as it finds its caller; the rest of the team is looked up as far as it is meant.
struct Scene {
    node: Arc<Node>,
    caller: AgentId,
    spec: AgentSpec,
    session: Arc<Facts>,
}

impl Link {
    fn node(&self) -> Result<Arc<Node>, Refusal> {
        self.node
            .upgrade()
            .ok_or_else(|| Refusal::unavailable("the node is shutting down"))
    }

    async fn scene(&self, call: &Invocation) -> Result<Scene, Refusal> {
        let node = self.node()?;
        let left = || Refusal::unavailable("this agent left the node");
        let session = node
            .host()
            .hosting(&call.agent_id)
            .ok_or_else(left)?
            .session;
        let spec = node.host().spec(&call.agent_id).await.map_err(|_| left())?;
        Ok(Scene {
            node,
            caller: call.agent_id.clone(),
            spec,
            session,
        })
    }
}

impl Scene {
    /// The agent that is meant, which is not the caller.
    async fn other(&self, wanted: &str, what: &str) -> Result<AgentRecord, Refusal> {
        let meant = self.node.members_meant(&self.session.id, wanted).await?;
        let target = match roster::find(&meant, wanted) {
            Ok(target) => target,
            Err(unknown @ NoTarget::Unknown(_)) => {
                let members = self.node.members(&self.session.id).await?;
                return Err(Refusal::not_found(format!(
                    "{unknown}; there are {}",
                    roster::names(&members)
                )));
            }
            Err(ambiguous @ NoTarget::Ambiguous { .. }) => {
                return Err(Refusal::not_found(ambiguous.to_string()));
            }
        };
        if target.id == self.caller {
            return Err(Refusal::bad_request(format!(
                "an agent cannot {what} itself"
            )));
        }
        Ok(target.clone())
    }

    /// [`Self::other`], but not the orchestrator, whom nobody ends or interrupts.
    async fn worker(&self, wanted: &str, what: &str, does: &str) -> Result<AgentRecord, Refusal> {
        let target = self.other(wanted, what).await?;
        if target.id == self.session.lead {
            return Err(Refusal::new(
                Code::Denied,
                format!("nobody {does} the orchestrator"),
            ));
        }
        Ok(target)
    }

    /// The caller as others see it.
    fn sender(&self) -> Sender {
        Sender {
            id: self.caller.clone(),
            name: self.spec.name.clone(),
        }
    }

    /// An input from the caller.
    fn input(
        &self,
        id: InputId,
        to: &AgentId,
        kind: planck_common::event::InputKind,
        text: String,
    ) -> NewInput {
        NewInput {
            id,
            agent: to.clone(),
            kind,
            mode: planck_common::command::Mode::Queue,
            sender: Some(self.sender()),
            reply_to: None,
            content: planck_common::event::json(&[planck_common::message::Part::text(text)]),
            fresh: false,
            at: Timestamp::now(),
        }
    }
}

/// Arguments that fit the schema; a mismatch is a bug of the schema and said so.
fn arguments<T: DeserializeOwned>(call: &Invocation) -> Result<T, Refusal> {
    serde_json::from_str(call.args.get())
        .map_err(|error| Refusal::bad_request(format!("bad arguments: {error}")))
}

/// A tool's text, or its error.
fn outcome(result: Result<Outcome, Refusal>) -> Outcome {
    result.unwrap_or_else(|refusal| Outcome::error(refusal.message))
}

fn spec(name: &str, description: &str, effect: Effect, parameters: &'static str) -> ToolSpec {
    // The schemas are constants of this crate; a test reads each.
    let parameters = serde_json::from_str::<Box<RawValue>>(parameters)
        .unwrap_or_else(|_| RawValue::NULL.to_owned());
    ToolSpec {
        name: name.into(),
        description: description.into(),
        parameters: parameters.into(),
        effect,
    }
}
