//! Resolves the spec of an agent that another agent spawns: the values that the call names, the
//! values that the agent inherits, and the tools and skills that the agent is granted.

use planck_common::{
    AgentId,
    spec::{AgentSpec, Member},
};

use super::{
    context::TeamContext,
    grant::{self, divide},
    mistake::{Mistakes, TemplateError},
    permissions,
    resolve::{check_compactor, check_limits, checked_name, role, tools},
    tool_names::{DEFAULT, SPAWN, WORKER, canonical},
};

/// The spec of an agent to start, and the names that were left out of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Spawned {
    pub spec: AgentSpec,
    /// Tools and skills that are unknown, or that the spawner may not grant.
    pub not_granted: Vec<String>,
}

/// Resolves the arguments of `spawn_agent`. The agent inherits the model and the limits from
/// `spawner` where `member` does not name them.
pub fn spawn(
    member: &Member,
    by: &AgentId,
    spawner: &AgentSpec,
    context: &TeamContext,
) -> Result<Spawned, Vec<TemplateError>> {
    let mut found = Vec::new();
    let who = member.name.clone().unwrap_or_else(|| member.r#type.clone());
    let mut mistakes = Mistakes::of_member(&context.source, who, &mut found);
    let name = checked_name(member, &mut mistakes);
    check_limits(member.limits, &mut mistakes);
    check_compactor(member, &mut mistakes);
    permissions::check(member, &mut mistakes);
    let model = context
        .models
        .choose(member, Some(&spawner.model), &mut mistakes);
    let (Some(name), Some(model), true) = (name, model, found.is_empty()) else {
        return Err(found);
    };

    let (skills, no_skills) = granted_skills(member, spawner, context);
    let (named, no_tools) = granted_tools(member, spawner);
    let tools = tools(named, true, !skills.is_empty());
    let spec = AgentSpec {
        r#type: member.r#type.clone(),
        name,
        description: member.description.clone().unwrap_or_default(),
        role: role(&tools),
        model,
        system_prompt: context.prompt(member.system_prompt.as_deref(), &skills),
        opts: member.opts.clone(),
        grant: grant::settle(None, &tools, &skills),
        tools,
        skills,
        compactor: member.compactor.clone(),
        limits: member.limits.unwrap_or_default().within(spawner.limits),
        labels: member.labels.clone(),
        permissions: permissions::layers(&spawner.permissions, context, member),
        client_tools: Vec::new(),
        spawned_by: Some(by.clone()),
    };
    Ok(Spawned {
        spec,
        not_granted: no_tools.into_iter().chain(no_skills).collect(),
    })
}

/// Returns the tools that the member is granted, and those that it named but may not have. Neither
/// list contains the tools for team work, which every member gets. A member that names no tools
/// gets the default tools that the spawner may grant. The tool `spawn_agent` is never granted,
/// because a team has only one orchestrator.
fn granted_tools<'a>(member: &'a Member, spawner: &AgentSpec) -> (Vec<&'a str>, Vec<String>) {
    let Some(named) = &member.tools else {
        return (divide(DEFAULT, &spawner.grant.tools).0, Vec::new());
    };
    let beside = named
        .iter()
        .map(|name| canonical(name))
        .filter(|name| !WORKER.contains(name));
    let (granted, not): (Vec<_>, Vec<_>) = divide(beside, &spawner.grant.tools);
    let (orchestrator, granted): (Vec<_>, Vec<_>) =
        granted.into_iter().partition(|name| *name == SPAWN);
    (
        granted,
        not.into_iter()
            .chain(orchestrator)
            .map(Into::into)
            .collect(),
    )
}

fn granted_skills(
    member: &Member,
    spawner: &AgentSpec,
    context: &TeamContext,
) -> (Vec<String>, Vec<String>) {
    let wanted = member.skills.iter().flatten().cloned();
    wanted
        .partition(|name| spawner.grant.skills.contains(name) && context.skills.contains_key(name))
}
