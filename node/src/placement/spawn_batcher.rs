//! Batches spawns. While one batch of a team's agents is being created, further requests for the
//! same incarnation queue up and form the next batch. A batch usually costs one registry read, one
//! registry write and one SQL statement.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future;
use planck_common::{
    Timestamp,
    command::{AgentState, FirstTask, HostAgent, Hosted, InputMode},
    event::{InputKind, json},
    message::Part,
    reply::{Code, Refusal},
    spec::AgentSpec,
    usage::Usage,
};
use tokio::sync::oneshot;

use super::{AdmissionPermit, Placement, hosting::team_moved};
use crate::{
    actor::{Hosting, Opening, SessionContext},
    agent::Memory,
};
use planck_cluster::cascade::TeamIncarnation;
use planck_store::{
    AgentCreation, AgentRecord, HeldLease, LeadIncarnation, NewAgent, NewInput, NewMember,
};

/// The maximum number of agents in a batch.
const BATCH: usize = 64;

/// The spawns that wait, by incarnation. An incarnation has an entry while a [`BatchWorker`]
/// creates agents for it.
#[derive(Default)]
pub(super) struct SpawnBatcher(Arc<Mutex<BTreeMap<TeamIncarnation, Vec<PendingSpawn>>>>);

/// A new agent that waits to be created.
struct PendingSpawn {
    request: HostAgent,
    member: NewMember,
    permit: AdmissionPermit,
    hosted: oneshot::Sender<Result<Hosted, Refusal>>,
}

/// The exclusive right to create agents for one incarnation. If the worker is dropped early, the
/// spawns that still wait fail.
struct BatchWorker {
    batcher: SpawnBatcher,
    incarnation: TeamIncarnation,
    is_done: bool,
}

impl SpawnBatcher {
    /// Queues a spawn. If a worker is returned, the caller must run it.
    fn queue(&self, incarnation: TeamIncarnation, spawn: PendingSpawn) -> Option<BatchWorker> {
        let mut waiting = self.lock();
        if let Some(waiting) = waiting.get_mut(&incarnation) {
            waiting.push(spawn);
            return None;
        }
        waiting.insert(incarnation.clone(), vec![spawn]);
        Some(BatchWorker {
            batcher: Self(Arc::clone(&self.0)),
            incarnation,
            is_done: false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TeamIncarnation, Vec<PendingSpawn>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BatchWorker {
    /// Takes the next batch from the queue, in which each agent occurs once. If no spawn waits,
    /// ends the exclusive right and returns `None`.
    fn next(&mut self) -> Option<Vec<PendingSpawn>> {
        let mut all = self.batcher.lock();
        let waiting = all
            .get_mut(&self.incarnation)
            .filter(|waiting| !waiting.is_empty());
        let Some(waiting) = waiting else {
            all.remove(&self.incarnation);
            self.is_done = true;
            return None;
        };
        let mut known = BTreeSet::new();
        let batch = waiting
            .iter()
            .take(BATCH)
            .take_while(|spawn| known.insert(spawn.request.agent_id.clone()))
            .count();
        Some(waiting.drain(..batch).collect())
    }
}

impl Drop for BatchWorker {
    fn drop(&mut self) {
        if !self.is_done {
            self.batcher.lock().remove(&self.incarnation);
        }
    }
}

impl PendingSpawn {
    fn answer(self, hosted: Result<Hosted, Refusal>) {
        // Sending fails if the caller stopped waiting. A caller that tries again finds the agent's
        // row.
        let _ = self.hosted.send(hosted);
    }
}

impl Placement {
    /// Creates an agent on this node, in one batch with other new agents of its incarnation.
    pub(super) async fn spawn_here(
        self: &Arc<Self>,
        request: HostAgent,
        spec: AgentSpec,
        permit: AdmissionPermit,
    ) -> Result<Hosted, Refusal> {
        let (hosted, answer) = oneshot::channel();
        let incarnation = TeamIncarnation {
            team: request.team_id.clone(),
            incarnation: request.incarnation,
        };
        let member = member(&request, spec);
        let spawn = PendingSpawn {
            request,
            member,
            permit,
            hosted,
        };
        if let Some(mut worker) = self.batcher.queue(incarnation, spawn) {
            let placement = Arc::clone(self);
            self.handles.tasks.spawn(async move {
                while let Some(batch) = worker.next() {
                    placement.create(batch).await;
                }
            });
        }
        let shutting_down = || Err(Refusal::unavailable("the node is shutting down"));
        answer.await.unwrap_or_else(|_| shutting_down())
    }

    /// Creates the agents of a batch. First writes the members' records to the registry if the team
    /// is still alive, then writes their rows to SQL, and then starts them. With this order it is
    /// safe to stop after any step.
    async fn create(&self, batch: Vec<PendingSpawn>) {
        let (context, outcomes) = match self.record(&batch).await {
            Ok(recorded) => recorded,
            Err(refusal) => {
                return batch
                    .into_iter()
                    .for_each(|spawn| spawn.answer(Err(refusal.clone())));
            }
        };
        let refused = batch
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| !matches!(outcome, AgentCreation::Created { .. }));
        let absent = refused
            .map(|(spawn, _)| &spawn.request.agent_id)
            .filter(|agent| !self.handles.host.has(agent));
        future::join_all(absent.map(|agent| self.teams.remove_member(&context, agent))).await;
        for (spawn, outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                AgentCreation::Created { lease, name } => {
                    self.start_spawned(&context, spawn, lease, name).await
                }
                other @ (AgentCreation::Known(_)
                | AgentCreation::TeamDead
                | AgentCreation::Full { .. }
                | AgentCreation::Refused(_)) => {
                    spawn.answer(self.not_created(other));
                }
            }
        }
    }

    async fn record(
        &self,
        batch: &[PendingSpawn],
    ) -> Result<(Arc<SessionContext>, Vec<AgentCreation>), Refusal> {
        let first = batch
            .first()
            .map(|spawn| &spawn.request)
            .ok_or_else(team_moved)?;
        let context = self.context_of(first).await?;
        let agents = batch.iter().map(|spawn| {
            let agent = &spawn.member.agent;
            (&agent.id, &agent.spec)
        });
        self.teams.add_members(&context, agents).await?;
        let _guard = self.handles.host.taking_leases(&context.id);
        let members: Vec<NewMember> = batch.iter().map(|spawn| spawn.member.clone()).collect();
        let lead = LeadIncarnation {
            lead: first.lead.clone(),
            incarnation: first.incarnation,
        };
        let outcomes = self
            .handles
            .store
            .create_agents(&context.id, &members, &lead, self.handles.view.id())
            .await?;
        Ok((context, outcomes))
    }

    /// Starts a new agent from the data that was just written, without reading it back from the
    /// store.
    async fn start_spawned(
        &self,
        context: &Arc<SessionContext>,
        spawn: PendingSpawn,
        lease: HeldLease,
        name: String,
    ) {
        let PendingSpawn {
            request: _,
            member: NewMember { agent, task },
            permit,
            hosted,
        } = spawn;
        let answer = self.hosted(lease.epoch, name.clone(), task.is_some());
        let record = AgentRecord {
            session: agent.session,
            id: agent.id.clone(),
            team: context.team.clone(),
            spec: AgentSpec { name, ..agent.spec },
            state: AgentState::Idle,
            totals: Usage::default(),
            node: Some(self.handles.view.id().clone()),
            epoch: lease.epoch,
            last_seq: lease.last_seq,
            incarnation: lease.incarnation,
        };
        let hosting = Hosting {
            session: Arc::clone(context),
            agent: agent.id,
            epoch: lease.epoch,
            opening: Opening {
                known: Some(Box::new((record, Memory::of_new_agent(task)))),
                ..Opening::default()
            },
            tools_from: None,
        };
        self.start_registered(hosting, Some(permit)).await;
        let _ = hosted.send(Ok(answer));
    }

    fn not_created(&self, outcome: AgentCreation) -> Result<Hosted, Refusal> {
        match outcome {
            AgentCreation::Known(record) => {
                let node_id = record.node.clone();
                Ok(Hosted {
                    node_id: node_id.unwrap_or_else(|| self.handles.view.id().clone()),
                    epoch: record.epoch,
                    name: record.spec.name,
                    has_task: false,
                })
            }
            AgentCreation::Full { max } => Err(Refusal::new(
                Code::Limit,
                format!("the session has had its {max} agents (max_agents)"),
            )),
            AgentCreation::Refused(why) => Err(Refusal::bad_request(why)),
            AgentCreation::TeamDead | AgentCreation::Created { .. } => Err(team_moved()),
        }
    }
}

fn member(request: &HostAgent, spec: AgentSpec) -> NewMember {
    let task = request
        .task
        .clone()
        .map(|FirstTask { id, from, text }| NewInput {
            id,
            agent: request.agent_id.clone(),
            kind: InputKind::Task,
            mode: InputMode::Queue,
            sender: Some(from),
            by: None,
            reply_to: None,
            content: json(&[Part::text(text)]),
            fresh: false,
            output: None,
            at: Timestamp::now(),
        });
    NewMember {
        agent: NewAgent {
            session: request.session_id.clone(),
            id: request.agent_id.clone(),
            spec,
        },
        task,
    }
}
