//! Starts an agent on this node: builds its actor from the rows in the store.

use std::{sync::Arc, time::Duration};

use planck_common::{
    Timestamp,
    envelope::Writer,
    event::{AgentStarted, Event, ToolsChanged, Warning},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    ActorContext, ActorIdentity, Opening,
    host::{ActorMessage, StopAck, TaskEnd},
    model_call::Encoding,
    run::{Actor, PendingAcks, ToolsDiffer, names},
    saving::{QueueHandle, Saves},
    spans::Spans,
    work::ActorWork,
};
use crate::{
    agent::{Agent, Effect, Memory, OpenTurn, Setup},
    baselines,
};
use planck_providers::Clients;
use planck_store::{AgentRecord, StoreError};
use planck_toolbox::{Runner, Toolbox};

/// The pause between attempts to load an agent while the store is unreachable.
const STORE_AWAY: Duration = Duration::from_millis(500);

/// The parts from which the task of an agent starts.
pub(super) struct ActorStartup {
    pub(super) context: Arc<ActorContext>,
    pub(super) identity: ActorIdentity,
    pub(super) clients: Clients,
    pub(super) opening: Opening,
    /// Cancelled when the agent's task under an earlier epoch has ended. `None` if there was no
    /// such task here.
    pub(super) predecessor: Option<CancellationToken>,
    pub(super) dropped: CancellationToken,
}

/// An actor, its first effects, and the events to write to its log before them.
type StartedActor = (Box<Actor>, Vec<Effect>, Vec<Event>);

impl ActorStartup {
    /// Runs the agent until its task ends. If `rested` contains an actor, that actor continues
    /// without being loaded again.
    pub(super) async fn live(
        self,
        rested: Option<Box<Actor>>,
        mut mailbox: mpsc::Receiver<Box<ActorMessage>>,
    ) -> TaskEnd {
        let was_refused = matches!(self.opening.open_turn, OpenTurn::Refused(_));
        let begun = match rested {
            Some(mut actor) => {
                actor.wake_up(self.clients, self.dropped);
                Some((actor, Vec::new(), Vec::new()))
            }
            None => Box::pin(self.loaded()).await,
        };
        let Some((mut actor, effects, opening)) = begun else {
            return TaskEnd::Gone(StopAck::to_nobody());
        };
        let ended = actor.run(effects, opening, &mut mailbox).await;
        Box::pin(actor.end(ended, was_refused, mailbox)).await
    }

    /// Loads the agent. Returns `None` if it cannot be loaded, or if it was dropped meanwhile.
    async fn loaded(self) -> Option<StartedActor> {
        let agent = self.identity.agent.clone();
        let dropped = self.dropped.clone();
        match dropped.run_until_cancelled(self.load()).await? {
            Ok(begun) => Some(begun),
            Err(StoreError::StaleEpoch(_)) => {
                tracing::debug!(%agent, "another node holds the agent's lease");
                None
            }
            Err(error) => {
                tracing::error!(%agent, %error, "cannot load the agent");
                None
            }
        }
    }

    async fn load(mut self) -> Result<StartedActor, StoreError> {
        if let Some(predecessor) = self.predecessor.take() {
            predecessor.cancelled().await;
        }
        let mut known = self.opening.known.take();
        loop {
            let recalled = match known.take() {
                Some(known) => Ok(*known),
                None => self.recall().await,
            };
            match recalled {
                Ok((record, memory)) => {
                    self.context.tools.ready_for(&record.spec).await;
                    let handle = self.context.queues.handle(&self.identity.session.id);
                    let enrolled = handle
                        .queue
                        .enroll(self.identity.agent.clone(), record.last_seq)
                        .await;
                    enrolled.map_err(|error| StoreError::Away(error.to_string()))?;
                    return self.begin(record, memory, handle);
                }
                Err(StoreError::Away(reason)) => {
                    tracing::warn!(agent = %self.identity.agent, reason, "cannot load the agent: the store is unreachable; trying again");
                    tokio::time::sleep(STORE_AWAY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn recall(&self) -> Result<(AgentRecord, Memory), StoreError> {
        let ActorIdentity {
            session,
            agent,
            epoch,
            ..
        } = &self.identity;
        let store = &self.context.store;
        let gone = || StoreError::NotFound(format!("agent {agent} is not in the store"));
        let record = store.find_agent(agent).await?.ok_or_else(gone)?;
        if record.epoch != *epoch {
            return Err(StoreError::StaleEpoch(agent.to_string()));
        }
        let totals = store.session(&session.id).await?.ok_or_else(gone)?.totals;
        let is_new = record.last_seq == 0;
        let tasks = if is_new {
            vec![]
        } else {
            store.tasks(&session.id, agent).await?
        };
        let memory = Memory {
            rows: if is_new {
                vec![]
            } else {
                store.load(&session.id, agent).await?
            },
            inputs: store.open_inputs(&session.id, agent).await?,
            responded: tasks
                .into_iter()
                .filter(|task| task.responded)
                .map(|task| task.id)
                .collect(),
            totals: record.totals,
            session: totals,
            open_turn: self.opening.open_turn.clone(),
        };
        Ok((record, memory))
    }

    fn begin(
        self,
        record: AgentRecord,
        memory: Memory,
        handle: QueueHandle,
    ) -> Result<StartedActor, StoreError> {
        let Self {
            context,
            identity,
            clients,
            opening,
            predecessor: _,
            dropped,
        } = self;
        let (mut opening, had) = (opening.events, opening.had);
        let (toolbox, unknown) = context.tools.toolbox(&record.spec);
        if !unknown.is_empty() {
            tracing::info!(agent = %identity.agent, ?unknown, "tools of the agent are not available now");
        }
        if record.last_seq == 0 {
            opening.push(first_event(&record, &toolbox));
            opening.extend(concerns(
                context.models.warning(&record.spec.model),
                &unknown,
            ));
        }
        opening.extend(had.and_then(|had| changed_tools(&had, &toolbox)));
        let setup = Setup {
            session: identity.session.id.clone(),
            agent: identity.agent.clone(),
            epoch: identity.epoch,
            card: context.models.card(&record.spec.model),
            tools: toolbox.specs(),
            arguments: Arc::new(toolbox.clone()),
            limits: identity.session.limits,
            settings: context.settings.clone(),
            dir: identity.session.dir.to_string_lossy().into(),
            spec: record.spec,
        };
        let restored = Agent::restore(setup, memory, Timestamp::now());
        let (agent, effects) = restored.map_err(|error| StoreError::Broken(error.to_string()))?;
        let actor = Actor {
            runner: Runner::new(context.calls, Some(baselines::wall(&context.store))),
            saves: Saves::new(writer(&context, &identity), handle),
            agent,
            toolbox: Arc::new(toolbox),
            encoding: Encoding::default(),
            work: ActorWork::default(),
            spans: Spans::default(),
            acks: PendingAcks::new(dropped),
            checks_waits: false,
            context,
            identity,
            clients,
        };
        Ok((Box::new(actor), effects, opening))
    }
}

fn writer(context: &ActorContext, identity: &ActorIdentity) -> Writer {
    Writer {
        agent_id: identity.agent.clone(),
        session_id: identity.session.id.clone(),
        team_id: identity.session.team.clone(),
        node_id: context.node.clone(),
        epoch: identity.epoch,
    }
}

fn first_event(record: &AgentRecord, toolbox: &Toolbox) -> Event {
    Event::AgentStarted(AgentStarted {
        role: record.spec.role,
        model: record.spec.model.clone(),
        tools: names(toolbox),
    })
}

fn changed_tools(had: &Toolbox, toolbox: &Toolbox) -> Option<Event> {
    let ToolsDiffer { added, removed } = ToolsDiffer::between(had, toolbox)?;
    Some(Event::ToolsChanged(ToolsChanged {
        added,
        removed,
        tools: names(toolbox),
    }))
}

/// Returns warnings about an unknown model and unknown tools, which are written to the agent's log.
fn concerns(model: Option<String>, unknown_tools: &[String]) -> Vec<Event> {
    let model = unknown_model(model);
    let tools = (!unknown_tools.is_empty()).then(|| {
        let missing = unknown_tools.join(", ");
        Warning::new(
            "unknown_tools",
            format!(
                "this node has no tool {missing}; the agent works without it until it is offered"
            ),
        )
    });
    model.into_iter().chain(tools).map(Event::Warning).collect()
}

pub(super) fn unknown_model(message: Option<String>) -> Option<Warning> {
    message.map(|message| Warning::new("unknown_model", message))
}
