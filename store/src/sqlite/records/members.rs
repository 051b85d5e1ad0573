//! Records new members of a running session.

use planck_common::{AgentId, NodeId, SessionId, event::json};
use sqlx::query;

use crate::{
    AgentCreation, HeldLease, Inbox as _, LeadIncarnation, NewAgent, NewMember, StoreError,
    sqlite::{SqliteStore, files::InUse},
    stored,
};

/// The statement that records a member under the first free name in the order of
/// [`crate::name::nth`].
const CREATE: &str = "INSERT INTO agents (id, name, type, role, spec, node_id)
    SELECT ?1, (WITH RECURSIVE tried(n, name) AS (
        SELECT 1, ?2
        UNION ALL SELECT n + 1, substr(?2, 1, 63 - length(n + 1)) || '-' || (n + 1) FROM tried
          WHERE EXISTS (SELECT 1 FROM agents WHERE agents.name = tried.name))
      SELECT name FROM tried ORDER BY n DESC LIMIT 1), ?3, ?4, ?5, ?6
    FROM sessions s JOIN agents l ON l.id = s.lead
    WHERE s.lead = ?7 AND s.state = 'open' AND l.incarnation = ?8 AND s.agents < s.max_agents
    ON CONFLICT (id) DO NOTHING RETURNING name";

/// Adds all members to the index, and then creates them one after the other, because a file has
/// only one writer at a time.
pub async fn create_agents(
    store: &SqliteStore,
    session: &SessionId,
    members: &[NewMember],
    lead: &LeadIncarnation,
    node: &NodeId,
) -> Result<Vec<AgentCreation>, StoreError> {
    let file = store.file(session).await?;
    let ids = members.iter().map(|member| &member.agent.id);
    store.index.add(session, ids, node).await?;
    let mut outcomes = Vec::with_capacity(members.len());
    for member in members {
        let outcome = match member.refusal() {
            Some(refused) => refused,
            None => create_agent(&file, &member.agent, lead, node).await?,
        };
        if let (AgentCreation::Created { .. }, Some(task)) = (&outcome, &member.task) {
            store.put(session, task.clone()).await?;
        }
        outcomes.push(outcome);
    }
    store.index.leased(session, node).await?;
    Ok(outcomes)
}

async fn create_agent(
    file: &InUse,
    agent: &NewAgent,
    lead: &LeadIncarnation,
    node: &NodeId,
) -> Result<AgentCreation, StoreError> {
    let created = query(CREATE)
        .bind(agent.id.as_str())
        .bind(agent.spec.name.as_str())
        .bind(agent.spec.r#type.as_str())
        .bind(stored::role_name(agent.spec.role))
        .bind(json(&agent.spec))
        .bind(node.as_str())
        .bind(lead.lead.as_str())
        .bind(lead.incarnation);
    match file.db.row(created).await? {
        Some(row) => Ok(AgentCreation::Created {
            lease: HeldLease::FIRST,
            name: file.reader(&row).get("name")?,
        }),
        None => why_not_created(file, &agent.id, lead).await,
    }
}

async fn why_not_created(
    file: &InUse,
    agent: &AgentId,
    wanted: &LeadIncarnation,
) -> Result<AgentCreation, StoreError> {
    if let Some(known) = file.agent(agent).await? {
        return Ok(AgentCreation::Known(Box::new(known)));
    }
    let lead = file.agent(&file.lead).await?;
    if lead.is_none_or(|lead| lead.id != wanted.lead || lead.incarnation != wanted.incarnation) {
        return Ok(AgentCreation::TeamDead);
    }
    const MAX: &str = "SELECT max_agents FROM sessions WHERE state = 'open'";
    let Some(row) = file.db.row(query(MAX)).await? else {
        return Ok(AgentCreation::TeamDead);
    };
    Ok(AgentCreation::Full {
        max: file.reader(&row).get("max_agents")?,
    })
}
