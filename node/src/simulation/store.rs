//! The session store of simulated nodes, in memory. It keeps what the stores in SQL keep for
//! sessions without questions and rewinds. A node that does not reach it waits and then gets
//! an error. An answer may be lost after the statement was carried out.

mod data;
mod log;
mod waits;

use std::sync::Arc;

use async_trait::async_trait;
use planck_common::{
    AgentId, CallId, InputId, NodeId, Seq, SessionId, Timestamp,
    command::{
        Events, ListSessions, ListWaits, Messages, RemovedCounts, SessionState, Sessions, WaitRow,
        Waits as WaitPage,
    },
    event::WorkerExit,
    spec::AgentSpec,
    wait::WaitAnswer,
};
use serde_json::{Map, Value};

pub(super) use self::data::{SimSession, StoreData};
use super::world::SimWorld;
use planck_store::{
    AgentCreation, AgentRecord, AnswerOutcome, Appended, AskOutcome, Baselines, Batch,
    CallBaseline, Created, HeldLease, Inbox, LeadIncarnation, LeaseClaim, LeaseRelease, Leases,
    Log, LogRow, NewInput, NewMember, NewSession, PutResult, RewindOutcome, SessionRecord,
    SessionRecords, SessionRule, SessionStore, StoreError, StoredInput, Stray, TaskRecord, Waits,
    WorkRows,
};

/// The store as one node uses it.
pub(super) struct SimStore {
    pub world: Arc<SimWorld>,
    pub node: NodeId,
}

impl SimStore {
    /// Carries a statement out, unless the node does not reach the database.
    async fn run<T>(
        &self,
        act: impl FnOnce(&mut StoreData) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        let is_reached = || self.world.outages(&self.node).sql <= self.world.millis();
        self.world.while_running(&self.node).await;
        self.world.pause(0..4).await;
        self.world.slowly(&self.node).await;
        self.world.while_running(&self.node).await;
        if !is_reached() {
            self.world.pause(100..1_500).await;
            self.world.while_running(&self.node).await;
            return Err(StoreError::Away("no answer".into()));
        }
        let done = act(&mut self.world.data());
        self.world.pause(0..3).await;
        self.world.while_running(&self.node).await;
        if !is_reached() || self.world.is_lost(&self.node) {
            self.world.pause(100..1_500).await;
            self.world.while_running(&self.node).await;
            return Err(StoreError::Away("the answer was lost".into()));
        }
        done
    }

    /// Carries a statement about one session out.
    async fn run_in<T>(
        &self,
        session: &SessionId,
        act: impl FnOnce(&mut SimSession) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        self.run(|data| act(data.session(session)?)).await
    }
}

fn not_simulated<T>() -> Result<T, StoreError> {
    Err(StoreError::Broken("not simulated".into()))
}

#[async_trait]
impl SessionStore for SimStore {
    async fn id(&self) -> Result<String, StoreError> {
        Ok("simulated".into())
    }
}

#[async_trait]
impl SessionRecords for SimStore {
    async fn create(&self, session: NewSession, node: &NodeId) -> Result<Created, StoreError> {
        self.run(|data| data.create(session, node)).await
    }

    async fn session(&self, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError> {
        self.run(|data| Ok(data.find(id_or_name).map(SimSession::record)))
            .await
    }

    async fn sessions(&self, _: ListSessions) -> Result<Sessions, StoreError> {
        not_simulated()
    }

    async fn session_names(&self, _: u32) -> Result<Vec<String>, StoreError> {
        not_simulated()
    }

    async fn set_state(
        &self,
        session: &SessionId,
        epoch: i64,
        state: SessionState,
    ) -> Result<(), StoreError> {
        let set = self.run_in(session, |session| session.set_state(epoch, state));
        let set = set.await;
        if set.is_ok() && state == SessionState::Closed {
            self.world.state().must_close.remove(session);
        }
        let (on, name) = (
            self.world.name("node", &self.node),
            self.world.name("session", session),
        );
        self.world
            .note(&format!("{on} makes {name} {state:?}: {set:?}"));
        set
    }

    async fn set_metadata(&self, _: &SessionId, _: &Map<String, Value>) -> Result<(), StoreError> {
        not_simulated()
    }

    async fn delete(&self, _: &SessionId) -> Result<RemovedCounts, StoreError> {
        not_simulated()
    }

    async fn expired(&self, _: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        not_simulated()
    }

    async fn find_agent(&self, agent: &AgentId) -> Result<Option<AgentRecord>, StoreError> {
        self.run(|data| Ok(data.agent(agent))).await
    }

    async fn agents(&self, session: &SessionId) -> Result<Vec<AgentRecord>, StoreError> {
        self.run(|data| {
            let found = data.find(session);
            Ok(found.map_or_else(Vec::new, |session| session.agents.clone()))
        })
        .await
    }

    async fn agents_named(
        &self,
        session: &SessionId,
        id_or_name: &str,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        self.run_in(session, |session| {
            let is_named = |agent: &&AgentRecord| {
                agent.id.as_str() == id_or_name || agent.spec.name == id_or_name
            };
            Ok(session.agents.iter().filter(is_named).cloned().collect())
        })
        .await
    }

    async fn agents_of_type(&self, _: &SessionId, _: &str) -> Result<Vec<AgentRecord>, StoreError> {
        Ok(Vec::new())
    }

    async fn create_agents(
        &self,
        session: &SessionId,
        members: &[NewMember],
        lead: &LeadIncarnation,
        node: &NodeId,
    ) -> Result<Vec<AgentCreation>, StoreError> {
        self.run_in(session, |session| {
            let create = |member| session.create_agent(member, lead, node);
            Ok(members.iter().map(create).collect())
        })
        .await
    }

    async fn replace_spec(
        &self,
        _: &SessionId,
        _: &AgentId,
        _: i64,
        _: &AgentSpec,
    ) -> Result<(), StoreError> {
        not_simulated()
    }

    async fn unreported_exits(&self, session: &SessionId) -> Result<Vec<WorkerExit>, StoreError> {
        self.run_in(session, |session| Ok(session.unreported_exits()))
            .await
    }
}

#[async_trait]
impl Leases for SimStore {
    async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentId,
        seen: i64,
        claim: LeaseClaim,
        node: &NodeId,
    ) -> Result<Option<HeldLease>, StoreError> {
        let world = &self.world;
        let claimed = self
            .run_in(session, |session| {
                let before = session
                    .agent(agent)
                    .and_then(|agent| Some((agent.node.clone()?, agent.epoch)));
                let claimed = session.claim(agent, seen, &claim, node);
                if let (Ok(Some(lease)), Some((before, old))) = (&claimed, before)
                    && lease.epoch > old
                {
                    let nodes = (&before, node);
                    world.claimed(session, agent, nodes, (&claim, lease.epoch));
                }
                claimed
            })
            .await;
        let (agent, on) = (
            self.world.name("agent", agent),
            self.world.name("node", node),
        );
        self.world
            .note(&format!("{on} claims {agent} at {seen}: {claimed:?}"));
        claimed
    }

    async fn release_all(
        &self,
        session: &SessionId,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let released = self
            .run_in(session, |session| {
                Ok(releases.iter().map(|one| session.release(one)).collect())
            })
            .await;
        let on = self.world.name("node", &self.node);
        for release in releases {
            let agent = self.world.name("agent", &release.agent);
            let done = released.is_ok();
            self.world.note(&format!(
                "{on} releases {agent} at {}: {done}",
                release.epoch
            ));
        }
        released
    }

    async fn sweep(&self, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError> {
        self.run(|data| Ok(data.sweep(alive))).await
    }

    async fn held_by(&self, node: &NodeId) -> Result<Vec<Stray>, StoreError> {
        self.run(|data| Ok(data.held_by(node, |_| true))).await
    }

    async fn held_in(
        &self,
        node: &NodeId,
        sessions: &[SessionId],
    ) -> Result<Vec<Stray>, StoreError> {
        self.run(|data| Ok(data.held_by(node, |session| sessions.contains(session))))
            .await
    }
}

#[async_trait]
impl Inbox for SimStore {
    async fn put(&self, session: &SessionId, input: NewInput) -> Result<PutResult, StoreError> {
        self.run_in(session, |session| Ok(session.put(input))).await
    }

    async fn ask(
        &self,
        _: &SessionId,
        _: NewInput,
        _: i64,
        _: u32,
    ) -> Result<AskOutcome, StoreError> {
        not_simulated()
    }

    async fn withdraw(&self, _: &SessionId, _: &InputId) -> Result<bool, StoreError> {
        not_simulated()
    }

    async fn input(
        &self,
        session: &SessionId,
        id: &InputId,
    ) -> Result<Option<StoredInput>, StoreError> {
        self.run_in(session, |session| {
            let found = session.inputs.iter().find(|row| row.input.id == *id);
            Ok(found.cloned())
        })
        .await
    }

    async fn open_inputs(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<StoredInput>, StoreError> {
        self.run_in(session, |session| {
            let mut rows = session.inputs.clone();
            rows.retain(|row| row.input.agent == *agent && row.outcome.is_none());
            Ok(rows)
        })
        .await
    }

    async fn tasks(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<TaskRecord>, StoreError> {
        self.run_in(session, |session| Ok(session.tasks(agent)))
            .await
    }

    async fn work(
        &self,
        _: &SessionId,
        _: Option<&InputId>,
    ) -> Result<Option<WorkRows>, StoreError> {
        not_simulated()
    }
}

#[async_trait]
impl Log for SimStore {
    async fn append(
        &self,
        session: &SessionId,
        _: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError> {
        self.run_in(session, |session| {
            let appended = session.append(batches);
            let opened = std::mem::take(&mut session.opened);
            opened
                .into_iter()
                .for_each(|wait| self.world.wait_opened(session, wait));
            Ok(appended)
        })
        .await
    }

    async fn load(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<LogRow>, StoreError> {
        self.run_in(session, |session| Ok(session.load(agent)))
            .await
    }

    async fn head(&self, session: &SessionId) -> Result<Seq, StoreError> {
        self.run_in(session, |session| Ok(session.head())).await
    }

    async fn events(
        &self,
        _: &SessionId,
        _: Seq,
        _: u32,
        _: Option<&AgentId>,
    ) -> Result<Events, StoreError> {
        not_simulated()
    }

    async fn turn_end(
        &self,
        _: &SessionId,
        _: &AgentId,
        _: u32,
        _: Seq,
    ) -> Result<Option<LogRow>, StoreError> {
        not_simulated()
    }

    async fn messages(
        &self,
        _: &SessionId,
        _: Option<&AgentId>,
        _: Option<Seq>,
        _: Option<u32>,
    ) -> Result<Messages, StoreError> {
        not_simulated()
    }

    async fn rewind(
        &self,
        _: &SessionId,
        _: i64,
        _: Seq,
        _: &str,
    ) -> Result<RewindOutcome, StoreError> {
        not_simulated()
    }
}

#[async_trait]
impl Waits for SimStore {
    async fn waits(&self, _: Option<&SessionId>, _: &ListWaits) -> Result<WaitPage, StoreError> {
        not_simulated()
    }

    async fn wait(&self, session: &SessionId, id: &CallId) -> Result<Option<WaitRow>, StoreError> {
        self.run_in(session, |session| Ok(session.wait(id))).await
    }

    async fn answer(
        &self,
        session: &SessionId,
        id: &CallId,
        digest: &str,
        answer: &WaitAnswer,
    ) -> Result<AnswerOutcome, StoreError> {
        self.run_in(session, |session| Ok(session.answer(id, digest, answer)))
            .await
    }

    async fn answers(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<(CallId, WaitAnswer)>, StoreError> {
        self.run_in(session, |session| Ok(session.answers(agent)))
            .await
    }

    async fn session_rules(&self, _: &SessionId) -> Result<Vec<SessionRule>, StoreError> {
        Ok(Vec::new())
    }

    async fn expire_waits(&self) -> Result<u64, StoreError> {
        self.run(|data| Ok(data.expire_waits(Timestamp::now())))
            .await
    }
}

#[async_trait]
impl Baselines for SimStore {
    async fn put_baseline(&self, _: &SessionId, _: &CallBaseline) -> Result<(), StoreError> {
        Ok(())
    }

    async fn undecided_baselines(&self, _: &SessionId) -> Result<Vec<CallBaseline>, StoreError> {
        Ok(Vec::new())
    }

    async fn baseline_changed(&self, _: &SessionId, _: &CallId) -> Result<(), StoreError> {
        Ok(())
    }

    async fn remove_baselines(&self, _: &SessionId, _: &[CallId]) -> Result<(), StoreError> {
        Ok(())
    }
}
