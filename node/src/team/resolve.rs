//! Resolves the members of a team, and an agent that another agent spawns, into the specs of
//! agents: what the member or the call names, what the agent inherits, its permissions, and the
//! tools and skills that it may grant.

use std::collections::BTreeSet;

use planck_common::{
    AgentId,
    permission::Permissions,
    spec::{AgentLimits, AgentRole, AgentSpec, Grant, Member},
};

use super::{
    DEFAULT_TOOLS, NOT_GRANTED, SKILL_TOOLS, SPAWN_TOOL, WORKER_TOOLS, canonical,
    context::TeamContext,
    sorted_names,
    template::{Mistakes, TemplateError, did_you_mean},
};
use crate::agent::permission;
use planck_toolbox::schema;

/// The default system prompt of an agent without a team.
const DEFAULT_PROMPT: &str = "You are an agent at work in a directory of a person's machine. Look before you change \
anything, do what you are asked and no more, check what you did, and say briefly what came of it.";

/// Returns the specs of a team's agents. The orchestrator's spec is the first. If there is a single
/// member, or none, defaults supply the fields that are not set.
pub fn resolve(
    members: &[Member],
    context: &TeamContext,
) -> Result<Vec<AgentSpec>, Vec<TemplateError>> {
    match members {
        [] => settle_all(&[lone_agent(&Member::default(), context)], context),
        [only] => settle_all(&[lone_agent(only, context)], context),
        _ => settle_all(members, context),
    }
}

fn settle_all(
    members: &[Member],
    context: &TeamContext,
) -> Result<Vec<AgentSpec>, Vec<TemplateError>> {
    let mut found = Vec::new();
    check_orchestrators(members, context, &mut found);
    let several = members.len() > 1;
    let mut names = BTreeSet::new();
    let mut specs = Vec::new();
    for (at, member) in members.iter().enumerate() {
        let mut mistakes = Mistakes::of_member(&context.source, label(at, member), &mut found);
        if let Some(mut spec) = settle_member(member, several, context, &mut mistakes) {
            spec.name = unique(&mut names, &spec.name);
            specs.push(spec);
        }
    }
    if !found.is_empty() {
        return Err(found);
    }
    specs.sort_by_key(|spec| spec.role == AgentRole::Worker);
    Ok(specs)
}

/// Returns the agent of a session without a team. Fields that the member does not set get defaults:
/// the type `agent`, the default prompt and every skill.
fn lone_agent(member: &Member, context: &TeamContext) -> Member {
    let r#type = if member.r#type.is_empty() {
        "agent".into()
    } else {
        member.r#type.clone()
    };
    let system_prompt = member
        .system_prompt
        .clone()
        .or_else(|| Some(DEFAULT_PROMPT.into()));
    let skills = member
        .skills
        .clone()
        .or_else(|| Some(context.skills.keys().cloned().collect()));
    Member {
        r#type,
        system_prompt,
        skills,
        ..member.clone()
    }
}

fn label(at: usize, member: &Member) -> String {
    let named = member.name.as_deref().unwrap_or(&member.r#type);
    if named.is_empty() {
        format!("#{}", at + 1)
    } else {
        named.into()
    }
}

fn names_spawn(member: &Member) -> bool {
    member.tools.iter().flatten().any(|name| name == SPAWN_TOOL)
}

fn check_orchestrators(members: &[Member], context: &TeamContext, found: &mut Vec<TemplateError>) {
    let orchestrators: Vec<String> = members
        .iter()
        .enumerate()
        .filter(|(_, member)| names_spawn(member))
        .map(|(at, member)| label(at, member))
        .collect();
    let what = match orchestrators.len() {
        1 => return,
        0 if members.len() == 1 => return,
        0 => "no member is the orchestrator".to_owned(),
        _ => format!(
            "several members are orchestrators: {}",
            orchestrators.join(", ")
        ),
    };
    Mistakes::in_file(&context.source, found).field(
        "tools",
        what,
        "give `spawn_agent` to exactly one member",
    );
}

fn settle_member(
    member: &Member,
    several: bool,
    context: &TeamContext,
    mistakes: &mut Mistakes<'_>,
) -> Option<AgentSpec> {
    let name = checked_name(member, mistakes);
    check_limits(member.limits, mistakes);
    check_compactor(member, mistakes);
    check_permissions(member, mistakes);
    check_output(member, mistakes);
    check_tools(member, context, mistakes);
    let skills = known_skills(member.skills.iter().flatten(), context, mistakes);
    let model = context
        .models
        .choose(member, context.models.default.as_ref(), mistakes)?;
    let named = member
        .tools
        .as_ref()
        .map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
    let tools = tools(
        named.unwrap_or_else(|| context.default_tools().collect()),
        several,
        !skills.is_empty(),
    );
    Some(AgentSpec {
        r#type: member.r#type.clone(),
        name: name?,
        description: member.description.clone().unwrap_or_default(),
        role: role(&tools),
        model,
        system_prompt: context.prompt(member.system_prompt.as_deref(), &skills),
        opts: member.opts.clone(),
        grant: settle_grant(member.grant.as_ref(), &tools, &skills),
        tools,
        skills,
        compactor: member.compactor.clone(),
        listed_tools: member.listed_tools,
        limits: member.limits.unwrap_or_default().within(context.limits),
        labels: member.labels.clone(),
        permissions: permission_layers(&[], context, member),
        client_tools: Vec::new(),
        output: member.output.clone(),
        spawned_by: None,
    })
}

/// Returns all tools of an agent: the named ones, those for team work if the agent is in a team or
/// can spawn agents, and those that read skills if the agent has skills.
pub(super) fn tools(named: Vec<&str>, several: bool, has_skills: bool) -> Vec<String> {
    let in_team = several || named.contains(&SPAWN_TOOL);
    let team = WORKER_TOOLS.into_iter().filter(|_| in_team);
    let skill = SKILL_TOOLS.into_iter().filter(|_| has_skills);
    sorted_names(named.iter().copied().chain(team).chain(skill))
}

pub(super) fn role(tools: &[String]) -> AgentRole {
    if tools.iter().any(|name| name == SPAWN_TOOL) {
        AgentRole::Orchestrator
    } else {
        AgentRole::Worker
    }
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.chars().count())
        && text.trim() == text
        && !text.chars().any(char::is_control)
}

fn checked_name(member: &Member, mistakes: &mut Mistakes<'_>) -> Option<String> {
    let remedy = "write 1 to 64 printable characters";
    if !is_name(&member.r#type) {
        mistakes.field("type", format!("{:?} is no type", member.r#type), remedy);
        return None;
    }
    let name = member.name.as_ref().unwrap_or(&member.r#type);
    if !is_name(name) {
        mistakes.field("name", format!("{name:?} is no name"), remedy);
        return None;
    }
    Some(name.clone())
}

fn check_limits(limits: Option<AgentLimits>, mistakes: &mut Mistakes<'_>) {
    let limits = limits.unwrap_or_default();
    let zero = [
        (
            "limits.max_requests_per_turn",
            limits.max_requests_per_turn == Some(0),
        ),
        ("limits.max_tokens", limits.max_tokens == Some(0)),
        (
            "limits.max_turn_seconds",
            limits.max_turn_seconds == Some(0),
        ),
        (
            "limits.max_cost_usd",
            limits.max_cost_usd.is_some_and(|cost| cost <= 0.0),
        ),
    ];
    for (field, _) in zero.into_iter().filter(|(_, is_zero)| *is_zero) {
        mistakes.field(
            field,
            "0 would let nothing happen",
            "write more, or take it out for no limit",
        );
    }
}

fn check_compactor(member: &Member, mistakes: &mut Mistakes<'_>) {
    let is_address = |name: &String| {
        let words: Vec<&str> = name.split('.').collect();
        words.len() <= 2 && words.into_iter().all(planck_common::id::is_id)
    };
    if let Some(name) = member.compactor.as_ref().filter(|name| !is_address(name)) {
        mistakes.field(
            "compactor",
            format!("`{name}` names no compactor"),
            "write `<sidecar>.<compactor>`, or a name that only one sidecar has",
        );
    }
}

fn check_tools(member: &Member, context: &TeamContext, mistakes: &mut Mistakes<'_>) {
    let granted = member
        .grant
        .iter()
        .flat_map(|grant| &grant.tools)
        .map(|name| ("grant.tools", name));
    let named = member.tools.iter().flatten().map(|name| ("tools", name));
    for (field, name) in named.chain(granted) {
        if let Some(clash) = context.clash("tool", canonical(name)) {
            mistakes.field(field, clash.to_string(), "rename one of them");
        }
    }
}

fn known_skills<'a>(
    wanted: impl Iterator<Item = &'a String>,
    context: &TeamContext,
    mistakes: &mut Mistakes<'_>,
) -> Vec<String> {
    let (known, unknown): (Vec<_>, Vec<_>) =
        wanted.partition(|name| context.skills.contains_key(*name));
    for name in unknown {
        if let Some(clash) = context.clash("skill", name) {
            mistakes.field("skills", clash.to_string(), "rename one of them");
            continue;
        }
        let remedy = match context.skills.is_empty() {
            true => "no skill is installed; see `skills.dirs` in the configuration".into(),
            false => did_you_mean(name, context.skills.keys().map(String::as_str)),
        };
        mistakes.field("skills", format!("unknown skill `{name}`"), remedy);
    }
    known
        .into_iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .cloned()
        .collect()
}

/// Returns a name that is not taken yet, and adds it to `taken`. The second member with the same
/// name gets the suffix `-2`.
fn unique(taken: &mut BTreeSet<String>, name: &str) -> String {
    let numbered = (2_u32..).map(|number| format!("{name}-{number}"));
    let free = std::iter::once(name.to_owned())
        .chain(numbered)
        .find(|name| !taken.contains(name));
    let free = free.unwrap_or_else(|| name.to_owned());
    taken.insert(free.clone());
    free
}

/// The spec of an agent to start, and the names that were left out of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Spawned {
    pub spec: AgentSpec,
    /// Tools and skills that are unknown, or that the spawner may not grant.
    pub not_granted: Vec<String>,
}

/// Resolves the arguments of `spawn_agent`. The agent inherits the model, the limits and the number
/// of listed tools from `spawner` where `member` does not name them.
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
    check_permissions(member, &mut mistakes);
    check_output(member, &mut mistakes);
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
        grant: settle_grant(None, &tools, &skills),
        tools,
        skills,
        compactor: member.compactor.clone(),
        listed_tools: member.listed_tools.or(spawner.listed_tools),
        limits: member.limits.unwrap_or_default().within(spawner.limits),
        labels: member.labels.clone(),
        permissions: permission_layers(&spawner.permissions, context, member),
        client_tools: Vec::new(),
        output: member.output.clone(),
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
        return (divide(DEFAULT_TOOLS, &spawner.grant.tools).0, Vec::new());
    };
    let beside = named
        .iter()
        .map(|name| canonical(name))
        .filter(|name| !WORKER_TOOLS.contains(name));
    let (granted, not): (Vec<_>, Vec<_>) = divide(beside, &spawner.grant.tools);
    let (orchestrator, granted): (Vec<_>, Vec<_>) =
        granted.into_iter().partition(|name| *name == SPAWN_TOOL);
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

/// Returns the grant of an agent, with canonical names. If `named` is `None`, the agent may grant
/// all its own tools and skills, except the tools to spawn and destroy agents.
fn settle_grant(named: Option<&Grant>, tools: &[String], skills: &[String]) -> Grant {
    match named {
        Some(grant) => Grant {
            tools: sorted_names(grant.tools.iter().map(String::as_str)),
            skills: sorted_names(grant.skills.iter().map(String::as_str)),
        },
        None => {
            let tools = tools
                .iter()
                .filter(|name| !NOT_GRANTED.contains(&name.as_str()));
            Grant {
                tools: tools.cloned().collect(),
                skills: skills.to_vec(),
            }
        }
    }
}

/// Makes names canonical, and splits them into those that are granted and those that are not.
pub fn divide<'a>(
    wanted: impl IntoIterator<Item = &'a str>,
    granted: &[String],
) -> (Vec<&'a str>, Vec<&'a str>) {
    wanted
        .into_iter()
        .map(canonical)
        .partition(|name| granted.iter().any(|known| covers(known, name)))
}

/// Returns whether a granted name is this name, or that of all tools of its sidecar.
fn covers(granted: &str, name: &str) -> bool {
    let of_sidecar = granted.strip_suffix('*');
    granted == name
        || of_sidecar.is_some_and(|start| start.ends_with("__") && name.starts_with(start))
}

/// Returns the layers of an agent: those that it inherits, those of the node and of the request that
/// started the session, and its own. Layers that let every call run are left out, and so are layers
/// that the agent has already. A layer only ever makes an agent's permissions stricter, so an agent
/// is never permitted more than its spawner.
fn permission_layers(
    inherited: &[Permissions],
    context: &TeamContext,
    member: &Member,
) -> Vec<Permissions> {
    let own = Permissions {
        mode: member.permission_mode.unwrap_or_default(),
        rules: member.permissions.clone(),
    };
    let mut layers: Vec<Permissions> = Vec::new();
    for layer in inherited.iter().chain(&context.permissions).chain([&own]) {
        if !layer.allow_everything() && !layers.contains(layer) {
            layers.push(layer.clone());
        }
    }
    layers
}

fn check_output(member: &Member, mistakes: &mut Mistakes<'_>) {
    if let Some(Err((field, why))) = member.output.as_ref().map(schema::check_output) {
        mistakes.field(
            &format!("output.{field}"),
            why,
            "write a JSON Schema of the type object, as docs/structured-output.md shows",
        );
    }
}

fn check_permissions(member: &Member, mistakes: &mut Mistakes<'_>) {
    for mistake in permission::check(&member.permissions) {
        let field = format!("permissions{}", mistake.field);
        mistakes.field(&field, mistake.what, mistake.remedy);
    }
}
