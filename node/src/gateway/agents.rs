//! Handles `cmd.agent.<agent>.*`: performs the command on this node, answers it from the agent's
//! record, or passes it on to the host of the agent or of its session.

use planck_common::{
    AgentId,
    command::{
        AgentInfo, AgentState, AgentStateNow, AgentVerb, Because, ChangeModel, Empty, Model,
        SavedAt, SessionState, SetCheckpoint, Snapshot, ToolName, Tools,
    },
    reply::Refusal,
    spec::ModelRef,
};

use super::{CommandReply, IncomingCommand, ok, read};
use crate::{
    actor::{
        SpecChange,
        host::{Changed, NotHere},
    },
    agent::Command,
    services::Services,
    sessions::{AgentHost, CommandOrigin},
};
use planck_store::AgentRecord;

pub(super) async fn one(
    services: &Services,
    agent: &str,
    verb: AgentVerb,
    incoming: &IncomingCommand<'_>,
) -> CommandReply {
    if verb == AgentVerb::Prompt
        && let Ok(agent) = AgentId::parse(agent)
        && let Some(target) = services.sessions.target_here(&agent)
    {
        return ok(services
            .sessions
            .prompt(target, read(incoming.body)?)
            .await?);
    }
    let agent = services.handles.lookup.agent(agent).await?;
    if services.handles.host.has(&agent.id) || verb == AgentVerb::Prompt {
        return here(services, &agent, verb, incoming.body).await;
    }
    if verb == AgentVerb::Info {
        return info(services, &agent, incoming).await;
    }
    let host = match services.sessions.host_of(&agent).await {
        Some(host) => host,
        None => match without_host(services, &agent, verb, incoming.body).await? {
            Some(reply) => return Ok(reply),
            None => services.sessions.taken_over(&agent, opens(verb)).await?,
        },
    };
    match host {
        AgentHost::Here => here(services, &agent, verb, incoming.body).await,
        AgentHost::On(host) => incoming.pass_on(services, &host).await,
    }
}

/// Returns whether the command opens a closed session.
fn opens(verb: AgentVerb) -> bool {
    match verb {
        AgentVerb::Info | AgentVerb::Snapshot | AgentVerb::Abort | AgentVerb::Stop => false,
        AgentVerb::Prompt
        | AgentVerb::Nudge
        | AgentVerb::Checkpoint
        | AgentVerb::AddTool
        | AgentVerb::RemoveTool
        | AgentVerb::ChangeModel => true,
    }
}

/// Returns the information that the agent's host has. If there is no host, the host does not
/// answer, or another node passed the command on, the information comes from the agent's record.
async fn info(
    services: &Services,
    agent: &AgentRecord,
    incoming: &IncomingCommand<'_>,
) -> CommandReply {
    let Empty {} = read(incoming.body)?;
    let info = match incoming.origin {
        CommandOrigin::Client => services.sessions.agent_info(agent).await,
        CommandOrigin::Peer => None,
    };
    ok(info.unwrap_or_else(|| recorded(agent, window(services, agent))))
}

async fn here(
    services: &Services,
    agent: &AgentRecord,
    verb: AgentVerb,
    body: &[u8],
) -> CommandReply {
    match verb {
        AgentVerb::Prompt => ok(services.sessions.prompt(agent, read(body)?).await?),
        AgentVerb::Info => {
            let Empty {} = read(body)?;
            ok(services.handles.host.info(&agent.id).await.map_err(moved)?)
        }
        AgentVerb::Snapshot => {
            let Empty {} = read(body)?;
            snapshot(services, agent).await
        }
        AgentVerb::Abort => {
            let reason = because(body)?;
            command(services, agent, Command::Abort { reason }).await
        }
        AgentVerb::Stop => stop(services, agent, because(body)?).await,
        AgentVerb::Nudge => {
            let Because { .. } = read(body)?;
            command(services, agent, Command::Nudge).await
        }
        AgentVerb::Checkpoint => {
            let SetCheckpoint { summary } = read(body)?;
            if summary.trim().is_empty() {
                return Err(Refusal::bad_request("`summary` is empty"));
            }
            services
                .handles
                .host
                .command(&agent.id, Command::Checkpoint { summary })
                .await
                .map_err(moved)?;
            ok(SavedAt {
                seq: services.handles.store.head(&agent.session).await?,
            })
        }
        AgentVerb::AddTool => {
            let ToolName { name } = read(body)?;
            let changed = change(services, agent, SpecChange::AddTool(name)).await?;
            let tools = changed.tools;
            ok(Tools { tools })
        }
        AgentVerb::RemoveTool => {
            let ToolName { name } = read(body)?;
            let changed = change(services, agent, SpecChange::RemoveTool(name)).await?;
            let tools = changed.tools;
            ok(Tools { tools })
        }
        AgentVerb::ChangeModel => change_model(services, agent, read(body)?).await,
    }
}

async fn snapshot(services: &Services, agent: &AgentRecord) -> CommandReply {
    let (info, running) = services
        .handles
        .host
        .snapshot(&agent.id)
        .await
        .map_err(moved)?;
    ok(Snapshot {
        head: services.handles.store.head(&agent.session).await?,
        info,
        running,
    })
}

async fn change_model(
    services: &Services,
    agent: &AgentRecord,
    request: ChangeModel,
) -> CommandReply {
    let ChangeModel {
        provider,
        model_id,
        base_url,
    } = request;
    if let Some(url) = &base_url {
        services.library.check_address(url)?;
    }
    let model = ModelRef {
        provider: provider.unwrap_or_else(|| agent.spec.model.provider.clone()),
        id: model_id,
        base_url,
    };
    ok(Model {
        model: change(services, agent, SpecChange::Model(model))
            .await?
            .model,
    })
}

async fn command(services: &Services, agent: &AgentRecord, command: Command) -> CommandReply {
    let state = services
        .handles
        .host
        .command(&agent.id, command)
        .await
        .map_err(moved)?;
    ok(AgentStateNow { state })
}

async fn change(
    services: &Services,
    agent: &AgentRecord,
    change: SpecChange,
) -> Result<Changed, Refusal> {
    services
        .handles
        .host
        .change(&agent.id, change)
        .await
        .map_err(moved)?
}

/// Answers a command to an agent that no living node hosts, if that needs no running agent: the
/// abort of an agent without a turn, and commands that leave a closed session closed. Returns `None`
/// if the agent has to be reached.
async fn without_host(
    services: &Services,
    agent: &AgentRecord,
    verb: AgentVerb,
    body: &[u8],
) -> Result<Option<String>, Refusal> {
    let session = services.handles.lookup.session(&agent.session).await?;
    let is_closed = session.state == SessionState::Closed;
    match verb {
        AgentVerb::Abort if is_closed || agent.state == AgentState::Idle => {
            let Because { .. } = read(body)?;
            let state = AgentState::Idle;
            ok(AgentStateNow { state }).map(Some)
        }
        AgentVerb::Snapshot if is_closed => {
            let Empty {} = read(body)?;
            let snapshot = Snapshot {
                head: session.head,
                info: recorded(agent, window(services, agent)),
                running: None,
            };
            ok(snapshot).map(Some)
        }
        AgentVerb::Stop if is_closed => stop(services, agent, because(body)?).await.map(Some),
        AgentVerb::Prompt
        | AgentVerb::Info
        | AgentVerb::Snapshot
        | AgentVerb::Abort
        | AgentVerb::Stop
        | AgentVerb::Nudge
        | AgentVerb::Checkpoint
        | AgentVerb::AddTool
        | AgentVerb::RemoveTool
        | AgentVerb::ChangeModel => Ok(None),
    }
}

async fn stop(services: &Services, agent: &AgentRecord, reason: Option<String>) -> CommandReply {
    let reason = reason.unwrap_or_else(|| "stopped".into());
    ok(AgentStateNow {
        state: services.takeover.stop_agent(agent, &reason).await?,
    })
}

fn window(services: &Services, agent: &AgentRecord) -> u64 {
    services.models.card(&agent.spec.model).context_window
}

/// Returns an agent's information from its record, without asking its host.
pub(super) fn recorded(agent: &AgentRecord, context_window: u64) -> AgentInfo {
    AgentInfo {
        id: agent.id.clone(),
        name: agent.spec.name.clone(),
        r#type: agent.spec.r#type.clone(),
        role: agent.spec.role,
        session_id: agent.session.clone(),
        team_id: agent.team.clone(),
        node_id: agent.node.clone(),
        epoch: agent.epoch,
        state: agent.state,
        turn: 0,
        model: agent.spec.model.clone(),
        tools: agent.spec.tools.clone(),
        skills: agent.spec.skills.clone(),
        usage: agent.totals,
        context_tokens: 0,
        context_window,
        queued: 0,
        permissions: agent.spec.permissions.clone(),
        system_prompt: AgentInfo::shown_prompt(&agent.spec.system_prompt),
    }
}

fn because(body: &[u8]) -> Result<Option<String>, Refusal> {
    let Because { reason } = read(body)?;
    Ok(reason)
}

fn moved(gone: NotHere) -> Refusal {
    Refusal::unavailable(format!("{gone}: it is being moved or stopped; ask again"))
}
