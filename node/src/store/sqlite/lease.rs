//! Leases: births, claims, releases, and what only their holder may change of an agent.

use planck_common::{
    AgentId, NodeId, SessionId,
    event::{WorkerExit, json},
    spec::AgentSpec,
};
use sqlx::query;

use super::{
    SqliteStore,
    decode::{Reader, role_name},
    files::InUse,
};
use crate::store::{AgentRecord, Birth, Claim, Lease, NewAgent, Newborn, StoreError, Under};

/// The first free name of those that [`crate::store::name::nth`] gives.
const BIRTH: &str = "INSERT INTO agents (id, name, type, role, spec, node_id)
    SELECT ?1, (WITH RECURSIVE tried(n, name) AS (
        SELECT 1, ?2
        UNION ALL SELECT n + 1, substr(?2, 1, 63 - length(n + 1)) || '-' || (n + 1) FROM tried
          WHERE EXISTS (SELECT 1 FROM agents WHERE agents.name = tried.name))
      SELECT name FROM tried ORDER BY n DESC LIMIT 1), ?3, ?4, ?5, ?6
    FROM sessions s JOIN agents l ON l.id = s.lead
    WHERE s.lead = ?7 AND s.state = 'open' AND l.incarnation = ?8 AND s.agents < s.max_agents
    ON CONFLICT (id) DO NOTHING RETURNING name";

const CLAIM_LEAD: &str = "UPDATE agents SET node_id = ?1, epoch = epoch + 1, incarnation = incarnation + ?4
    WHERE id = ?2 AND epoch = ?3 AND id = (SELECT lead FROM sessions) RETURNING epoch, last_seq, incarnation";

const CLAIM_MEMBER: &str = "UPDATE agents SET node_id = ?1, epoch = epoch + 1
    WHERE id = ?2 AND epoch = ?3 AND EXISTS (
      SELECT 1 FROM sessions s JOIN agents l ON l.id = s.lead WHERE l.id = ?4 AND l.incarnation = ?5)
    RETURNING epoch, last_seq, incarnation";

const EXITS: &str = "SELECT a.id, a.name, coalesce((SELECT l.body->>'reason' FROM log l
      WHERE l.agent_id = a.id AND l.kind = 'agent_stopped' ORDER BY l.seq DESC LIMIT 1), 'stopped') AS reason
    FROM agents a JOIN sessions s ON a.id <> s.lead WHERE a.state = 'stopped' AND NOT EXISTS (
      SELECT 1 FROM log l WHERE l.agent_id = s.lead AND l.body->>'id' = a.id
        AND (l.kind = 'worker_exit' OR l.kind = 'worker_spawned' AND l.hidden_by IS NOT NULL))
    ORDER BY a.n";

impl SqliteStore {
    pub(super) async fn exits_not_told(
        &self,
        session: &SessionId,
    ) -> Result<Vec<WorkerExit>, StoreError> {
        let file = self.file(session).await?;
        let rows = file.db.rows(query(EXITS)).await?;
        let exit = |row| {
            let row = Reader {
                row,
                path: file.db.path(),
            };
            Ok(WorkerExit {
                id: row.agent_id("id")?,
                name: row.get("name")?,
                reason: row.get("reason")?,
            })
        };
        rows.iter().map(exit).collect()
    }

    /// One after the other: a file has one writer anyway. The index knows them all before.
    pub(super) async fn bear_all(
        &self,
        session: &SessionId,
        born: &[Newborn],
        under: &Under,
        node: &NodeId,
    ) -> Result<Vec<Birth>, StoreError> {
        let file = self.file(session).await?;
        self.index
            .add(session, born.iter().map(|born| &born.agent.id), node)
            .await?;
        let mut births = Vec::with_capacity(born.len());
        for Newborn { agent, task } in born {
            let birth = self.bear(&file, agent, under, node).await?;
            if let (Birth::Born { .. }, Some(task)) = (&birth, task) {
                self.put_input(session, task.clone()).await?;
            }
            births.push(birth);
        }
        self.index.leased(session, node).await?;
        Ok(births)
    }

    async fn bear(
        &self,
        file: &InUse,
        agent: &NewAgent,
        under: &Under,
        node: &NodeId,
    ) -> Result<Birth, StoreError> {
        let birth = query(BIRTH)
            .bind(agent.id.as_str())
            .bind(agent.spec.name.as_str())
            .bind(agent.spec.r#type.as_str())
            .bind(role_name(agent.spec.role))
            .bind(json(&agent.spec))
            .bind(node.as_str())
            .bind(under.lead.as_str())
            .bind(under.incarnation);
        match file.db.row(birth).await? {
            Some(row) => {
                let name = Reader {
                    row: &row,
                    path: file.db.path(),
                }
                .get("name")?;
                Ok(Birth::Born {
                    lease: Lease {
                        epoch: 1,
                        last_seq: 0,
                        incarnation: 0,
                    },
                    name,
                })
            }
            None => self.unborn(file, &agent.id, under).await,
        }
    }

    /// Why an agent was not born.
    async fn unborn(
        &self,
        file: &InUse,
        agent: &AgentId,
        under: &Under,
    ) -> Result<Birth, StoreError> {
        if let Some(known) = self.agent_in(file, agent).await? {
            return Ok(Birth::Known(Box::new(known)));
        }
        let lead = self.agent_in(file, &file.lead).await?;
        if lead.is_none_or(|lead| lead.id != under.lead || lead.incarnation != under.incarnation) {
            return Ok(Birth::TeamDead);
        }
        let row = file
            .db
            .row(query(
                "SELECT max_agents FROM sessions WHERE state = 'open'",
            ))
            .await?;
        let Some(row) = row else {
            return Ok(Birth::TeamDead);
        };
        Ok(Birth::Full {
            max: Reader {
                row: &row,
                path: file.db.path(),
            }
            .get("max_agents")?,
        })
    }

    /// The index learns of the lease before the file, and once more after it: a sweep may have
    /// looked in between.
    pub(super) async fn take(
        &self,
        session: &SessionId,
        agent: &AgentId,
        seen: i64,
        claim: Claim,
        node: &NodeId,
    ) -> Result<Option<Lease>, StoreError> {
        let file = self.file(session).await?;
        self.index.leased(session, node).await?;
        let under = match &claim {
            Claim::Lead { .. } => None,
            Claim::Member(under) => Some(under),
        };
        let raised = i64::from(matches!(claim, Claim::Lead { after_death: true }));
        let statement = query(if under.is_some() {
            CLAIM_MEMBER
        } else {
            CLAIM_LEAD
        });
        let statement = statement
            .bind(node.as_str())
            .bind(agent.as_str())
            .bind(seen);
        let statement = match under {
            None => statement.bind(raised),
            Some(under) => statement.bind(under.lead.as_str()).bind(under.incarnation),
        };
        let Some(row) = file.db.row(statement).await? else {
            return self.mine(&file, agent, seen, node).await;
        };
        self.index.leased(session, node).await?;
        let row = Reader {
            row: &row,
            path: file.db.path(),
        };
        Ok(Some(Lease {
            epoch: row.number("epoch")?,
            last_seq: row.number("last_seq")?,
            incarnation: row.number("incarnation")?,
        }))
    }

    /// A claim whose answer was lost may have been carried out.
    async fn mine(
        &self,
        file: &InUse,
        agent: &AgentId,
        seen: i64,
        node: &NodeId,
    ) -> Result<Option<Lease>, StoreError> {
        let record = self.agent_in(file, agent).await?;
        let AgentRecord {
            epoch,
            last_seq,
            incarnation,
            node: holder,
            ..
        } = record.ok_or_else(|| StoreError::NotFound(format!("there is no agent {agent}")))?;
        let mine = holder.as_ref() == Some(node) && epoch == seen + 1;
        Ok(mine.then_some(Lease {
            epoch,
            last_seq,
            incarnation,
        }))
    }

    pub(super) async fn give_up(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        stopped: bool,
    ) -> Result<(), StoreError> {
        const RELEASE: &str =
            "UPDATE agents SET node_id = NULL, epoch = epoch + 1, state = iif(?3, 'stopped', state)
            WHERE id = ?1 AND epoch = ?2";
        let file = self.file(session).await?;
        if file
            .db
            .execute(
                query(RELEASE)
                    .bind(agent.as_str())
                    .bind(epoch)
                    .bind(stopped),
            )
            .await?
            > 0
        {
            return Ok(());
        }
        match self.agent_in(&file, agent).await? {
            None => Err(StoreError::NotFound(format!("there is no agent {agent}"))),
            Some(record) if record.node.is_none() && record.epoch == epoch + 1 => Ok(()),
            Some(_) => Err(StoreError::StaleEpoch(agent.to_string())),
        }
    }

    pub(super) async fn replace_spec(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        spec: &AgentSpec,
    ) -> Result<(), StoreError> {
        const RESPEC: &str =
            "UPDATE agents SET type = ?3, role = ?4, spec = ?5 WHERE id = ?1 AND epoch = ?2";
        let file = self.file(session).await?;
        let statement = query(RESPEC).bind(agent.as_str()).bind(epoch);
        let statement = statement
            .bind(spec.r#type.as_str())
            .bind(role_name(spec.role))
            .bind(json(spec));
        match file.db.execute(statement).await? {
            0 => Err(StoreError::StaleEpoch(agent.to_string())),
            _changed => Ok(()),
        }
    }
}
