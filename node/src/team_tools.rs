//! The tools with which the agents of a team cooperate. An agent can only reach members of its own
//! team, by the names that agents use for them. This file has the tools that list members and
//! models.

mod ask;
mod tasks;
mod workers;

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use futures_util::future;
use planck_common::{
    AgentId, InputId, Timestamp,
    command::AgentInfo,
    event::ToolEffect,
    message::Sender,
    reply::{Code, Refusal},
    spec::{AgentSpec, OutputSpec},
};
use planck_store::{AgentRecord, NAMESAKES, NewInput};
use planck_toolbox::{Invocation, Tool, ToolOutcome, schema::check_output};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};

use crate::{actor::SessionContext, model::ToolSpec, services::Services, sessions::Sessions};

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
        Arc::new(tasks::DelegateTask::new(link())),
        Arc::new(tasks::SendResponse::new(link())),
        Arc::new(ListTeam::new(link())),
        Arc::new(workers::SpawnAgent::new(link(), offers_addresses)),
        Arc::new(workers::DestroyAgent::new(link())),
        Arc::new(workers::InterruptAgent::new(link())),
        Arc::new(ListModels::new(link())),
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
        let host = &services.handles.host;
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
            .handles
            .lookup
            .members_meant(&self.session.id, wanted)
            .await?;
        let target = match find_member(&meant, wanted) {
            Ok(target) => target,
            Err(unknown @ NoTarget::Unknown(_)) => {
                let members = self
                    .services
                    .handles
                    .lookup
                    .members(&self.session.id)
                    .await?;
                return Err(Refusal::not_found(format!(
                    "{unknown}; there are {}",
                    member_names(&members)
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
            output: None,
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

/// Returns the shape of an answer with this schema.
fn shape(schema: Option<Value>) -> Result<Option<OutputSpec>, Refusal> {
    let shape = schema.map(|schema| OutputSpec { schema, name: None });
    match shape.as_ref().map(check_output) {
        Some(Err((_, why))) => Err(Refusal::bad_request(format!("`output_schema`: {why}"))),
        Some(Ok(())) | None => Ok(shape),
    }
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
        is_searched: false,
    }
}

/// The maximum number of members that an error about an unknown name lists.
const SHOWN: usize = 50;

/// The reason why a name does not identify an agent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NoTarget {
    #[error("no agent `{0}` in this team")]
    Unknown(String),
    #[error("`{wanted}` means {count} agents; use one of their ids: {ids}")]
    Ambiguous {
        wanted: String,
        count: String,
        ids: String,
    },
}

/// Finds an agent by its id, or else by its name, or else by its type if only one agent has that
/// type. `meant` are the agents that the name may refer to.
fn find_member<'a>(meant: &'a [AgentRecord], wanted: &str) -> Result<&'a AgentRecord, NoTarget> {
    let by_id = meant.iter().find(|agent| *agent.id == *wanted);
    if let Some(agent) = by_id.or_else(|| meant.iter().find(|agent| agent.spec.name == wanted)) {
        return Ok(agent);
    }
    let typed: Vec<_> = meant
        .iter()
        .filter(|agent| agent.spec.r#type == wanted)
        .collect();
    match typed.as_slice() {
        [one] => Ok(one),
        [] => Err(NoTarget::Unknown(wanted.into())),
        several => {
            let ids: Vec<&str> = several.iter().map(|agent| agent.id.as_str()).collect();
            let least = if several.len() >= NAMESAKES as usize {
                "at least "
            } else {
                ""
            };
            let count = format!("{least}{}", several.len());
            Err(NoTarget::Ambiguous {
                wanted: wanted.into(),
                count,
                ids: ids.join(", "),
            })
        }
    }
}

/// Returns a list of the members' names and ids, with at most [`SHOWN`] entries.
fn member_names(members: &[AgentRecord]) -> String {
    let mut names: Vec<String> = members
        .iter()
        .take(SHOWN)
        .map(|agent| format!("{} ({})", agent.spec.name, agent.id))
        .collect();
    if members.len() > SHOWN {
        names.push(format!("and {} more", members.len() - SHOWN));
    }
    names.join(", ")
}

/// Returns the text of a cycle of waiting agents, with the names of the agents.
fn cycle_of(members: &[AgentRecord], ids: &[AgentId]) -> String {
    let name = |id: &AgentId| {
        let found = members.iter().find(|agent| agent.id == *id);
        found.map_or_else(|| id.to_string(), |agent| agent.spec.name.clone())
    };
    ids.iter().map(name).collect::<Vec<_>>().join(" -> ")
}

/// The maximum number of members that are asked for their state at once.
const AT_ONCE: usize = 64;

struct ListTeam {
    link: ServicesHandle,
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct ListArgs {
    #[serde(default)]
    verbose: bool,
}

impl ListTeam {
    fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "list_team",
            "List the agents of the team, yourself included: id, name, type, description, role, node, state, turn and usage.",
            ToolEffect::Pure,
            r#"{"type":"object","properties":{
                "verbose":{"type":"boolean","description":"Add each agent's model and tools"}},
              "additionalProperties":false}"#,
        );
        Self { link, spec }
    }

    async fn list(&self, call: &Invocation) -> Result<ToolOutcome, Refusal> {
        let args: ListArgs = arguments(call)?;
        let caller = self.link.caller(call).await?;
        let members = caller
            .services
            .handles
            .lookup
            .members(&caller.session.id)
            .await?;
        let mut rows = Vec::with_capacity(members.len());
        for some in members.chunks(AT_ONCE) {
            let mut looks = Vec::with_capacity(AT_ONCE);
            for member in some {
                looks.push(row(&caller.services.sessions, member, args.verbose));
            }
            rows.extend(future::join_all(looks).await);
        }
        Ok(ToolOutcome::ok(Value::Array(rows).to_string()))
    }
}

/// Returns the row of a member. If the member cannot be asked, the row shows the state and the
/// usage in its record, and no turn.
async fn row(sessions: &Sessions, member: &AgentRecord, verbose: bool) -> Value {
    let info = sessions.agent_info(member).await;
    let spec = &member.spec;
    let (state, turn, usage) = match &info {
        Some(AgentInfo {
            state, turn, usage, ..
        }) => (*state, Some(*turn), *usage),
        None => (member.state, None, member.totals),
    };
    let mut row = json!({
        "id": member.id, "name": spec.name, "type": spec.r#type, "description": spec.description, "role": spec.role,
        "node_id": member.node, "state": state, "turn": turn, "usage": usage,
    });
    if verbose && let Some(row) = row.as_object_mut() {
        row.insert("model".into(), json!(spec.model));
        row.insert("tools".into(), json!(spec.tools));
    }
    row
}

#[async_trait]
impl Tool for ListTeam {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        outcome(self.list(&call).await)
    }
}

struct ListModels {
    link: ServicesHandle,
    spec: ToolSpec,
}

impl ListModels {
    fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "list_models",
            "List the models agents can use, with context window, output limit and prices in US dollars per million tokens.",
            ToolEffect::Pure,
            r#"{"type":"object","properties":{},"additionalProperties":false}"#,
        );
        Self { link, spec }
    }

    fn list(&self) -> Result<ToolOutcome, Refusal> {
        Ok(ToolOutcome::ok(planck_common::event::json(
            &self.link.services()?.models.list().models,
        )))
    }
}

#[async_trait]
impl Tool for ListModels {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, _call: Invocation) -> ToolOutcome {
        outcome(self.list())
    }
}
