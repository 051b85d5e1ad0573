//! The leases of agents, in Postgres.

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use planck_common::{AgentId, NodeId, SessionId};

use super::{
    PostgresStore,
    database::{reader, unknown_verdict},
};
use crate::{
    HeldLease, LeaseClaim, LeaseRelease, Leases, StoreError, Stray, no_agent, stale_lease,
};

const CLAIM_LEAD: &str = "
UPDATE agents SET node_id = $4, epoch = epoch + 1, incarnation = incarnation + $5
WHERE session_id = $1 AND id = $2 AND epoch = $3 AND id = (SELECT lead FROM sessions WHERE id = $1) RETURNING epoch, last_seq, incarnation";

const CLAIM_MEMBER: &str = "
WITH lead AS MATERIALIZED (SELECT 1 FROM agents WHERE session_id = $1 AND id = $5 AND incarnation = $6
  AND id = (SELECT lead FROM sessions WHERE id = $1) FOR SHARE)
UPDATE agents a SET node_id = $4, epoch = a.epoch + 1 FROM lead
WHERE a.session_id = $1 AND a.id = $2 AND a.epoch = $3 RETURNING a.epoch, a.last_seq, a.incarnation";

const CURRENT: &str =
    "SELECT epoch, last_seq, incarnation, node_id FROM agents WHERE session_id = $1 AND id = $2";

/// The agents are locked in the order of their ids, so that two such statements cannot deadlock.
const RELEASE: &str = "
WITH asked AS (SELECT * FROM unnest($2::text[], $3::bigint[], $4::boolean[]) WITH ORDINALITY AS r (id, epoch, stopped, n)),
  done AS MATERIALIZED (SELECT n, planck_release($1, id, epoch, stopped) AS verdict FROM (SELECT * FROM asked ORDER BY id) sorted)
SELECT verdict FROM done ORDER BY n";

const SWEEP: &str = "
SELECT session_id, id, node_id, epoch FROM agents WHERE node_id <> ALL ($1)
UNION SELECT a.session_id, a.id, a.node_id, a.epoch FROM inputs i JOIN agents a ON a.session_id = i.session_id AND a.id = i.agent_id
WHERE i.outcome IS NULL AND i.turn IS NULL AND (a.node_id IS NULL OR a.node_id = ANY ($1)) AND a.state <> 'stopped'
UNION SELECT a.session_id, a.id, a.node_id, a.epoch FROM waits w JOIN agents a ON a.session_id = w.session_id AND a.id = w.agent_id
WHERE w.state = 'answered' AND (a.node_id IS NULL OR a.node_id = ANY ($1)) AND a.state <> 'stopped'";

const HELD: &str = "SELECT session_id, id, node_id, epoch FROM agents WHERE node_id = $1";

#[async_trait]
impl Leases for PostgresStore {
    async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentId,
        seen: i64,
        claim: LeaseClaim,
        node: &NodeId,
    ) -> Result<Option<HeldLease>, StoreError> {
        let text = match &claim {
            LeaseClaim::Lead { .. } => CLAIM_LEAD,
            LeaseClaim::Member(_) => CLAIM_MEMBER,
        };
        let statement = sqlx::query(text)
            .bind(session.as_str())
            .bind(agent.as_str())
            .bind(seen)
            .bind(node.as_str());
        let statement = match &claim {
            LeaseClaim::Lead { after_death } => statement.bind(i64::from(*after_death)),
            LeaseClaim::Member(lead) => statement.bind(lead.lead.as_str()).bind(lead.incarnation),
        };
        if let Some(row) = self.database.optional(statement).await? {
            return reader(&row).lease().map(Some);
        }
        let current = sqlx::query(CURRENT)
            .bind(session.as_str())
            .bind(agent.as_str());
        let Some(row) = self.database.optional(current).await? else {
            return Err(no_agent(agent, session));
        };
        let row = reader(&row);
        let holder: Option<NodeId> = row.parse_optional("node_id")?;
        Ok(row.lease()?.of_lost_claim(holder.as_ref(), seen, node))
    }

    async fn release_all(
        &self,
        session: &SessionId,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let agents: Vec<&str> = releases.iter().map(|one| one.agent.as_str()).collect();
        let epochs: Vec<i64> = releases.iter().map(|one| one.epoch).collect();
        let stopped: Vec<bool> = releases.iter().map(|one| one.stopped).collect();
        let statement = sqlx::query(RELEASE);
        let statement = statement
            .bind(session.as_str())
            .bind(agents)
            .bind(epochs)
            .bind(stopped);
        let rows = self.database.all(statement).await?;
        let mut results: Vec<Result<(), StoreError>> = Vec::with_capacity(releases.len());
        for (release, row) in releases.iter().zip(&rows) {
            results.push(match reader(row).get::<&str>("verdict")? {
                "released" => Ok(()),
                "not_found" => Err(no_agent(&release.agent, session)),
                "stale_epoch" => Err(stale_lease(&release.agent)),
                other => Err(unknown_verdict(other)),
            });
        }
        Ok(results)
    }

    async fn sweep(&self, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError> {
        let alive: Vec<&str> = alive.iter().map(NodeId::as_str).collect();
        let found = self.database.all(sqlx::query(SWEEP).bind(&alive)).await?;
        found.iter().map(stray).collect()
    }

    async fn held_by(&self, node: &NodeId) -> Result<Vec<Stray>, StoreError> {
        let found = self
            .database
            .all(sqlx::query(HELD).bind(node.as_str()))
            .await?;
        found.iter().map(stray).collect()
    }

    async fn held_in(
        &self,
        node: &NodeId,
        sessions: &[SessionId],
    ) -> Result<Vec<Stray>, StoreError> {
        const HELD_IN: &str = "SELECT session_id, id, node_id, epoch FROM agents
            WHERE node_id = $1 AND session_id = ANY ($2)";
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let sessions: Vec<String> = sessions.iter().map(SessionId::to_string).collect();
        let statement = sqlx::query(HELD_IN).bind(node.as_str()).bind(sessions);
        let found = self.database.all(statement).await?;
        found.iter().map(stray).collect()
    }
}

fn stray(row: &PgRow) -> Result<Stray, StoreError> {
    let row = reader(row);
    Ok(Stray {
        session: row.parse("session_id")?,
        agent: row.parse("id")?,
        node: row.parse_optional("node_id")?,
        epoch: row.number("epoch")?,
    })
}
