//! Records new members of a running session, in one statement if the server accepts the data of
//! all.

use planck_common::{NodeId, SessionId, event::json};

use super::find_agent;
use crate::{
    AgentCreation, DEFAULT_MAX_AGENTS, HeldLease, LeadIncarnation, NewMember, StoreError,
    postgres::{
        database::{Database, PgStatement, reader, unknown_verdict},
        log::append::column,
    },
    refusal, stored,
};

const CREATE: &str = "
WITH b AS MATERIALIZED (SELECT * FROM planck_births($1, $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
  (SELECT lead FROM sessions WHERE id = $1 AND lead = $2), $3, $4, $5)),
i AS (INSERT INTO inputs (session_id, id, agent_id, kind, mode, sender, sender_name, content, at, head)
  SELECT $1, t.task, t.agent, 'task', 'queue', t.sender, t.sender_name, t.content, t.at, (SELECT next_seq - 1 FROM sessions WHERE id = $1)
  FROM b JOIN unnest($6::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[])
    WITH ORDINALITY AS t(agent, task, sender, sender_name, content, at, n) USING (n)
  WHERE b.verdict = 'born' AND t.task IS NOT NULL ORDER BY n ON CONFLICT DO NOTHING)
SELECT verdict, detail, most FROM b ORDER BY n";

/// Creates the valid members, and refuses those that no store can record.
pub async fn create_agents(
    database: &Database,
    session: &SessionId,
    members: &[NewMember],
    lead: &LeadIncarnation,
    node: &NodeId,
) -> Result<Vec<AgentCreation>, StoreError> {
    let refused: Vec<Option<AgentCreation>> = members.iter().map(NewMember::refusal).collect();
    if refused.iter().all(Option::is_none) {
        return create_all(database, session, members, lead, node).await;
    }
    let good = members.iter().zip(&refused);
    let good: Vec<NewMember> = good
        .filter(|(_, refused)| refused.is_none())
        .map(|(member, _)| member.clone())
        .collect();
    let created = create_all(database, session, &good, lead, node).await?;
    let mut created = created.into_iter();
    Ok(refused
        .into_iter()
        .filter_map(|refused| refused.or_else(|| created.next()))
        .collect())
}

async fn create_all(
    database: &Database,
    session: &SessionId,
    members: &[NewMember],
    lead: &LeadIncarnation,
    node: &NodeId,
) -> Result<Vec<AgentCreation>, StoreError> {
    match state(database, session, members, lead, node).await? {
        Ok(outcomes) => Ok(outcomes),
        Err(refusal) if members.len() == 1 => Ok(vec![AgentCreation::Refused(refusal)]),
        // The members are created one by one, so that only those with bad data are refused.
        Err(_) => {
            let mut outcomes = Vec::with_capacity(members.len());
            for one in members {
                let outcome =
                    state(database, session, std::slice::from_ref(one), lead, node).await?;
                outcomes.extend(
                    outcome.unwrap_or_else(|refusal| vec![AgentCreation::Refused(refusal)]),
                );
            }
            Ok(outcomes)
        }
    }
}

/// Creates members with one statement. The inner `Err` is the server's message if the server
/// refused the data.
async fn state(
    database: &Database,
    session: &SessionId,
    members: &[NewMember],
    lead: &LeadIncarnation,
    node: &NodeId,
) -> Result<Result<Vec<AgentCreation>, String>, StoreError> {
    let statement = sqlx::query(CREATE)
        .bind(session.as_str())
        .bind(lead.lead.as_str())
        .bind(lead.incarnation)
        .bind(node.as_str())
        .bind(i32::try_from(DEFAULT_MAX_AGENTS).unwrap_or(i32::MAX));
    let statement = bind_tasks(bind_agents(statement, members), members);
    let rows = match database.all_or_refused(statement).await? {
        Ok(rows) => rows,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut outcomes = Vec::with_capacity(members.len());
    for (row, NewMember { agent, .. }) in rows.iter().zip(members) {
        let row = reader(row);
        outcomes.push(match row.get::<&str>("verdict")? {
            "born" => AgentCreation::Created {
                lease: HeldLease::FIRST,
                name: row.text("detail")?,
            },
            "known" => match find_agent(database, &agent.id).await? {
                Some(record) if record.session == *session => {
                    AgentCreation::Known(Box::new(record))
                }
                Some(_) | None => {
                    AgentCreation::Refused(refusal::no_agent(&agent.id, session).to_string())
                }
            },
            "team_dead" => AgentCreation::TeamDead,
            "full" => AgentCreation::Full {
                max: row.small("most")?,
            },
            other => {
                return Err(unknown_verdict(other));
            }
        });
    }
    Ok(Ok(outcomes))
}

fn bind_agents<'q>(statement: PgStatement<'q>, members: &[NewMember]) -> PgStatement<'q> {
    statement
        .bind(column(members, |member| member.agent.id.as_str()))
        .bind(column(members, |member| member.agent.spec.name.as_str()))
        .bind(column(members, |member| member.agent.spec.r#type.as_str()))
        .bind(column(members, |member| {
            stored::role_name(member.agent.spec.role)
        }))
        .bind(column(members, |member| json(&member.agent.spec)))
}

fn bind_tasks<'q>(statement: PgStatement<'q>, members: &[NewMember]) -> PgStatement<'q> {
    let sender = |member: &NewMember| member.task.as_ref().and_then(|task| task.sender.clone());
    statement
        .bind(column(members, |member| {
            member.task.as_ref().map(|task| task.id.as_str())
        }))
        .bind(column(members, |member| {
            sender(member).map(|sender| sender.id.to_string())
        }))
        .bind(column(members, |member| {
            sender(member).map(|sender| sender.name)
        }))
        .bind(column(members, |member| {
            member.task.as_ref().map(|task| task.content.as_str())
        }))
        .bind(column(members, |member| {
            member.task.as_ref().map(|task| task.at.millis())
        }))
}
