//! The tools with which the agents of a team cooperate. An agent can only reach members of its own
//! team.

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
    event::ToolEffect,
    message::Sender,
    reply::{Code, Refusal},
    spec::AgentSpec,
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{
    actor::context::SessionContext,
    model::ToolSpec,
    services::Services,
    team::roster::{self, NoTarget},
};
use planck_store::{AgentRecord, NewInput};
use planck_toolbox::{Invocation, Tool, ToolOutcome};

/// A tool's handle to the services of the node.
#[derive(Clone)]
struct ServicesHandle {
    services: Weak<Services>,
}

/// Returns all tools between agents, which all agents of the node share. With `offers_addresses`,
/// `spawn_agent` accepts a `base_url`.
pub fn all(services: &Weak<Services>, offers_addresses: bool) -> Vec<Arc<dyn Tool>> {
    let link = || ServicesHandle {
        services: services.clone(),
    };
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

/// The agent that calls a tool. The other members of its team are read from the store when they are
/// needed.
struct CallerContext {
    services: Arc<Services>,
    caller: AgentId,
    spec: AgentSpec,
    session: Arc<SessionContext>,
}

impl ServicesHandle {
    fn services(&self) -> Result<Arc<Services>, Refusal> {
        self.services
            .upgrade()
            .ok_or_else(|| Refusal::unavailable("the node is shutting down"))
    }

    async fn caller(&self, call: &Invocation) -> Result<CallerContext, Refusal> {
        let services = self.services()?;
        let left = || Refusal::unavailable("this agent left the node");
        let host = &services.base.host;
        let session = host.hosting(&call.agent_id).ok_or_else(left)?.session;
        let spec = host.spec(&call.agent_id).await.map_err(|_| left())?;
        Ok(CallerContext {
            services,
            caller: call.agent_id.clone(),
            spec,
            session,
        })
    }
}

impl CallerContext {
    /// Finds the member to which a text refers. Refuses the caller itself.
    async fn other(&self, wanted: &str, what: &str) -> Result<AgentRecord, Refusal> {
        let meant = self
            .services
            .base
            .lookup
            .members_meant(&self.session.id, wanted)
            .await?;
        let target = match roster::find(&meant, wanted) {
            Ok(target) => target,
            Err(unknown @ NoTarget::Unknown(_)) => {
                let members = self.services.base.lookup.members(&self.session.id).await?;
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

    /// Does the same as [`Self::other`], but also refuses the orchestrator, because no agent may
    /// stop or interrupt it.
    async fn worker(&self, wanted: &str, what: &str, does: &str) -> Result<AgentRecord, Refusal> {
        let target = self.other(wanted, what).await?;
        if target.id == self.session.lead {
            return Err(Refusal::new(
                Code::Denied,
                format!("no agent {does} the orchestrator"),
            ));
        }
        Ok(target)
    }

    /// Returns the caller as the sender of an input.
    fn sender(&self) -> Sender {
        Sender {
            id: self.caller.clone(),
            name: self.spec.name.clone(),
        }
    }

    /// Builds an input that the caller sends.
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
            mode: planck_common::command::InputMode::Queue,
            sender: Some(self.sender()),
            by: None,
            reply_to: None,
            content: planck_common::event::json(&[planck_common::message::Part::text(text)]),
            fresh: false,
            at: Timestamp::now(),
        }
    }
}

/// Parses the arguments of a call, which were already checked against the tool's schema. An error
/// therefore means a mistake in the schema.
fn arguments<T: DeserializeOwned>(call: &Invocation) -> Result<T, Refusal> {
    serde_json::from_str(call.args.get())
        .map_err(|error| Refusal::bad_request(format!("bad arguments: {error}")))
}

/// Converts a result to the outcome of the tool call.
fn outcome(result: Result<ToolOutcome, Refusal>) -> ToolOutcome {
    result.unwrap_or_else(|refusal| ToolOutcome::error(refusal.message))
}

fn spec(name: &str, description: &str, effect: ToolEffect, parameters: &'static str) -> ToolSpec {
    // The schemas are constants of this crate. If a schema did not parse, the catalogue would
    // refuse the tool because of its schema `null`.
    let parameters = serde_json::from_str::<Box<RawValue>>(parameters)
        .unwrap_or_else(|_| RawValue::NULL.to_owned());
    ToolSpec {
        name: name.into(),
        description: description.into(),
        parameters: parameters.into(),
        effect,
        sidecar: None,
        wait: None,
    }
}
