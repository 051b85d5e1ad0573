//! The tools for workers. `spawn_agent` creates a member of the team, with those of the requested
//! tools and skills that the calling agent may grant. `interrupt_agent` aborts a worker's running
//! turn, and `destroy_agent` stops a worker permanently.

use async_trait::async_trait;
use planck_common::{
    AgentId, NodeId,
    command::{FirstTask, HostAgent, Hosted},
    event::{Event, InputKind, ToolEffect, Warning, WorkerSpawned},
    reply::Refusal,
    spec::{AgentSpec, Member},
};
use planck_store::{AgentRecord, PutResult};
use planck_toolbox::{Invocation, Tool, ToolOutcome};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{CallerContext, ServicesHandle, arguments, find_member, outcome, spec};
use crate::{
    model::ToolSpec,
    placement::wanted,
    team::{self, Spawned, agents_file},
    workspace,
};

pub(super) struct SpawnAgent {
    link: ServicesHandle,
    spec: ToolSpec,
}

/// Builds the schema of the arguments. The given literal is inserted between the properties for the
/// model and for the tools.
macro_rules! parameters {
    ($address:literal) => {
        concat!(
            r#"{"type":"object","properties":{
                "type":{"type":"string","minLength":1,"maxLength":64,"description":"What kind of worker it is"},
                "name":{"type":"string","minLength":1,"maxLength":64},
                "description":{"type":"string"},
                "system_prompt":{"type":"string"},
                "provider":{"type":"string"},
                "model_id":{"type":"string"},"#,
            $address,
            r#""tools":{"type":"array","items":{"type":"string"}},
                "skills":{"type":"array","items":{"type":"string"}},
                "labels":{"type":"object","description":"Labels its node must have"},
                "near":{"type":"string","enum":["orchestrator"],"description":"Start it on your own node"},
                "task":{"type":"string","minLength":1,"description":"Delegated to it at once"}},
                "required":["type"],"additionalProperties":false}"#
        )
    };
}

const WITHOUT_ADDRESS: &str = parameters!("");
const WITH_ADDRESS: &str =
    parameters!(r#""base_url":{"type":"string","description":"One that is configured"},"#);

#[derive(Deserialize)]
struct SpawnArgs {
    r#type: String,
    name: Option<String>,
    description: Option<String>,
    system_prompt: Option<String>,
    provider: Option<String>,
    model_id: Option<String>,
    base_url: Option<String>,
    tools: Option<Vec<String>>,
    skills: Option<Vec<String>>,
    #[serde(default)]
    labels: Map<String, Value>,
    near: Option<Near>,
    task: Option<String>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Near {
    Orchestrator,
}

/// The new agent, which this call or an earlier attempt of the call created.
struct SpawnedAgent {
    id: AgentId,
    name: String,
    r#type: String,
    node_id: NodeId,
    has_task: bool,
}

impl CallerContext {
    fn first_task(&self, call: &Invocation, text: String) -> FirstTask {
        FirstTask {
            id: call.call_id.first_task(&call.session_id),
            from: self.sender(),
            text,
        }
    }
}

impl SpawnAgent {
    /// Creates the tool. Its schema includes `base_url` if the configuration has addresses to
    /// choose from.
    pub(super) fn new(link: ServicesHandle, offers_addresses: bool) -> Self {
        let parameters = if offers_addresses {
            WITH_ADDRESS
        } else {
            WITHOUT_ADDRESS
        };
        let spec = spec(
            "spawn_agent",
            "Start a new agent in the team. It inherits your model and limits unless named; `tools` and `skills` are those you may grant.",
            ToolEffect::Idempotent,
            parameters,
        );
        Self { link, spec }
    }

    async fn spawn(&self, call: &Invocation) -> Result<ToolOutcome, Refusal> {
        let mut args: SpawnArgs = arguments(call)?;
        let (task, near) = (args.task.take(), args.near);
        let caller = self.link.caller(call).await?;
        let Spawned { spec, not_granted } = self.resolve(&caller, args)?;
        let task = task.map(|text| caller.first_task(call, text));
        let spawned = self.create(&caller, call, spec, near, task.clone()).await?;
        if let Some(task) = task.filter(|_| !spawned.has_task) {
            self.delegate(&caller, &spawned, task).await?;
        }
        Ok(self.report(spawned, &not_granted))
    }

    fn resolve(&self, caller: &CallerContext, args: SpawnArgs) -> Result<Spawned, Refusal> {
        let member = Member {
            r#type: args.r#type,
            name: args.name,
            description: args.description,
            provider: args.provider,
            model_id: args.model_id,
            base_url: args.base_url,
            system_prompt: args.system_prompt,
            tools: args.tools,
            skills: args.skills,
            labels: args.labels,
            ..Member::default()
        };
        let session = &caller.session;
        let within = workspace::within(&session.workspace, &session.root);
        let context = caller
            .services
            .library
            .context("spawn_agent".into(), agents_file::of(&session.dir, within));
        team::spawn(&member, &caller.caller, &caller.spec, &context).map_err(|errors| {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Refusal::bad_request(errors.join("\n"))
        })
    }

    /// Chooses a node for the agent and asks it to create the agent.
    async fn create(
        &self,
        caller: &CallerContext,
        call: &Invocation,
        spec: AgentSpec,
        near: Option<Near>,
        task: Option<FirstTask>,
    ) -> Result<SpawnedAgent, Refusal> {
        let session = &caller.session;
        let mut wanted = wanted(&session.workspace, &spec);
        wanted.only = match near {
            Some(Near::Orchestrator) => {
                caller
                    .services
                    .handles
                    .lookup
                    .agent(&session.lead)
                    .await?
                    .node
            }
            None => None,
        };
        let request = HostAgent {
            task,
            tools_wait_ms: 0,
            session_id: session.id.clone(),
            agent_id: call.call_id.as_agent(),
            epoch: 0,
            incarnation: session.incarnation,
            lead: session.lead.clone(),
            team_id: session.team.clone(),
            spec: RawValue::from_string(planck_common::event::json(&spec)).ok(),
        };
        let id = request.agent_id.clone();
        let Hosted {
            node_id,
            name,
            has_task,
            ..
        } = caller.services.placement.place(&wanted, request).await?;
        Ok(SpawnedAgent {
            id,
            name,
            r#type: spec.r#type,
            node_id,
            has_task,
        })
    }

    /// Puts the first task into the agent's inbox. The caller needs this function if the agent
    /// existed already.
    async fn delegate(
        &self,
        caller: &CallerContext,
        spawned: &SpawnedAgent,
        task: FirstTask,
    ) -> Result<(), Refusal> {
        let (session, task) = (
            &caller.session.id,
            caller.input(task.id, &spawned.id, InputKind::Task, task.text),
        );
        match caller.services.handles.store.put(session, task).await? {
            PutResult::Put { .. } | PutResult::Known(_) => {
                caller.services.sessions.wake(session, &spawned.id).await;
                Ok(())
            }
            PutResult::NotFound => Err(Refusal::not_found(format!(
                "{} was stopped at once",
                spawned.name
            ))),
        }
    }

    /// Returns the outcome, with a `worker_spawned` event. A resumed turn that finds the agent it
    /// created reports the event again, because the first one may not have been saved.
    fn report(&self, spawned: SpawnedAgent, not_granted: &[String]) -> ToolOutcome {
        let SpawnedAgent {
            id,
            name,
            r#type,
            node_id,
            has_task: _,
        } = spawned;
        let without = (!not_granted.is_empty()).then(|| {
            format!(
                "{name} was started without {}: unknown, or not yours to grant",
                not_granted.join(", ")
            )
        });
        let text = match &without {
            None => json!({ "id": id, "name": name, "node_id": node_id }),
            Some(warning) => {
                json!({ "id": id, "name": name, "node_id": node_id, "warning": warning })
            }
        };
        let mut events = vec![Event::WorkerSpawned(WorkerSpawned {
            id,
            name,
            r#type,
            node_id,
        })];
        let without = without.map(|message| Warning::new("not_granted", message));
        events.extend(without.map(Event::Warning));
        ToolOutcome {
            events,
            ..ToolOutcome::ok(text.to_string())
        }
    }
}

#[async_trait]
impl Tool for SpawnAgent {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn waits(&self) -> bool {
        true
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        outcome(self.spawn(&call).await)
    }
}

/// The arguments that name an agent of the team and a reason.
#[derive(Deserialize)]
struct WorkerArgs {
    agent: String,
    reason: Option<String>,
}

const WORKER_ARGS: &str = r#"{"type":"object","properties":{
    "agent":{"type":"string","description":"An agent's id, or a name or type unique in the team"},
    "reason":{"type":"string"}},
  "required":["agent"],"additionalProperties":false}"#;

pub(super) struct InterruptAgent {
    link: ServicesHandle,
    spec: ToolSpec,
}

impl InterruptAgent {
    pub(super) fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "interrupt_agent",
            "Abort the running turn of an agent of the team. The agent stays, and continues with the inputs in its inbox.",
            ToolEffect::Idempotent,
            WORKER_ARGS,
        );
        Self { link, spec }
    }

    async fn interrupt(&self, call: &Invocation) -> Result<ToolOutcome, Refusal> {
        let args: WorkerArgs = arguments(call)?;
        let caller = self.link.caller(call).await?;
        let target = caller
            .worker(&args.agent, "interrupt", "interrupts")
            .await?;
        caller
            .services
            .sessions
            .abort_agent(&target, args.reason)
            .await?;
        Ok(ToolOutcome::ok(format!(
            "{} is interrupted",
            target.spec.name
        )))
    }
}

#[async_trait]
impl Tool for InterruptAgent {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        outcome(self.interrupt(&call).await)
    }
}

pub(super) struct DestroyAgent {
    link: ServicesHandle,
    spec: ToolSpec,
}

impl DestroyAgent {
    pub(super) fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "destroy_agent",
            "End an agent of the team for good, with its running turn and its processes.",
            ToolEffect::Idempotent,
            WORKER_ARGS,
        );
        Self { link, spec }
    }

    async fn destroy(&self, call: &Invocation) -> Result<ToolOutcome, Refusal> {
        let args: WorkerArgs = arguments(call)?;
        let caller = self.link.caller(call).await?;
        if is_stopped(&caller, &args.agent).await? {
            return Ok(ToolOutcome::ok(format!(
                "{} was stopped before",
                args.agent
            )));
        }
        let target = caller.worker(&args.agent, "destroy", "destroys").await?;
        let reason = args.reason.unwrap_or_else(|| "destroyed".into());
        caller
            .services
            .sessions
            .stop_agent(&target, &reason)
            .await?;
        Ok(ToolOutcome::ok(format!("{} is stopped", target.spec.name)))
    }
}

/// Returns whether the text refers to an agent that is already stopped, and to no other. A resumed
/// turn repeats the call and must find that it succeeded.
async fn is_stopped(caller: &CallerContext, wanted: &str) -> Result<bool, Refusal> {
    let meant = caller
        .services
        .handles
        .store
        .agents_matching(&caller.session.id, wanted)
        .await?;
    let (there, ended): (Vec<_>, Vec<_>) = meant.into_iter().partition(AgentRecord::is_there);
    Ok(find_member(&there, wanted).is_err() && find_member(&ended, wanted).is_ok())
}

#[async_trait]
impl Tool for DestroyAgent {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        outcome(self.destroy(&call).await)
    }
}
