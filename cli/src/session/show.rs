//! The command `planck session show`.

use planck_common::command::SessionState;

use crate::{
    exit::Exit,
    output::{Format, Output, or_dash, say, table},
};
use planck_client::Client;

pub fn state(state: SessionState) -> &'static str {
    match state {
        SessionState::Open => "open",
        SessionState::Closed => "closed",
    }
}

pub async fn show(client: &Client, session: &str, output: Output) -> anyhow::Result<Exit> {
    let mut info = client.session(session).await?;
    info.usage = crate::render::rounded(info.usage);
    let usage = crate::render::consumed(&info.usage);
    let mut pairs = vec![
        ("name", info.name.to_string()),
        ("id", info.id.to_string()),
        ("state", state(info.state).into()),
        ("workspace", format!("{} {}", info.workspace, info.dir)),
        ("node", or_dash(info.owner.as_ref())),
        ("log", format!("{} events", info.head)),
        ("consumed", usage),
    ];
    pairs.extend(info.title.clone().map(|title| ("title", title)));
    output.pairs(&info, &pairs)?;
    if output.output == Format::Table {
        say("\n")?;
        say(&agents(&info.agents))?;
    }
    Ok(Exit::Done)
}

/// Formats the agents of a session as a table.
pub fn agents(agents: &[planck_common::command::AgentRow]) -> String {
    let rows: Vec<_> = agents.iter().map(agent_row).collect();
    table(&AGENT_COLUMNS, &rows)
}

pub const AGENT_COLUMNS: [&str; 6] = ["name", "type", "role", "state", "node", "id"];

pub fn agent_row(agent: &planck_common::command::AgentRow) -> Vec<String> {
    let role = match agent.role {
        planck_common::spec::AgentRole::Orchestrator => "orchestrator",
        planck_common::spec::AgentRole::Worker => "worker",
    };
    vec![
        agent.name.clone(),
        agent.r#type.clone(),
        role.into(),
        agent.state.name().into(),
        or_dash(agent.node_id.as_ref()),
        agent.id.to_string(),
    ]
}
